"""The lab with `--device cuda`: the same runs as on the CPU, up to rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from egalitarian.lab import catalog
from egalitarian.lab.cli import main
from egalitarian.lab.ensemble import Ensemble
from egalitarian.lab.methods import Stepper
from egalitarian.lab.steps import Eager, Recorded, why_eager
from egalitarian.lab.store import Store
from egalitarian.lab.sweep import Stop, sweep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = ["task.modulus=11", "model.width=32", "training.batch=16", "training.precision=float64"]
METHODS = ["sgd", "egd", "egd-outside", "column-norm", "natural", "muon", "grokfast-ema", "grokfast-ma", "egd-grokfast"]


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_is_the_same_on_the_gpu(method: str) -> None:
    experiment = catalog.load("addition-97", SMALL)
    after = {}
    for device in ("cpu", "cuda"):
        ensemble = Ensemble(experiment, [3, 5], torch.device(device))
        stepper = Stepper(experiment.methods[method], ensemble.parameters)
        for epoch in range(2):
            for batch in ensemble.epoch(epoch):
                ensemble.backward(batch)
                stepper.add_decay()
                stepper.step()
        after[device] = {name: value.detach().cpu() for name, value in ensemble.parameters.items()}
    tolerance = 1e-2 if method == "muon" else 1e-9  # Muon's iteration is in bfloat16
    for name, value in after["cpu"].items():
        torch.testing.assert_close(after["cuda"][name], value, rtol=tolerance, atol=tolerance)


def test_the_benchmark_runs_on_the_gpu_and_captures_what_it_can(tmp_path: Path) -> None:
    assert main(["bench", "--quick", "--device", "cuda", "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("kernels_*.json")
    rows = json.loads(file.read_text())["rows"]
    captured = {row["method"] for row in rows if row["graph_ms"] is not None}
    assert {"products, exact", "products, fast", "column norm"} <= captured
    assert all("no graph" in row["note"] for row in rows if row["graph_ms"] is None)
    notes = [row["note"] for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())["rows"]]
    assert not [note for note in notes if note.startswith("failed")]


def test_a_run_begun_on_the_gpu_goes_on_on_the_cpu_and_back(tmp_path: Path) -> None:
    experiment = catalog.load("addition-97", SMALL)
    store = Store(tmp_path)
    for epochs, device in ((2, "cuda"), (4, "cpu"), (6, "cuda")):
        runs = sweep(experiment, "egd-grokfast", [0, 1], store, torch.device(device), stop=Stop(0.95, epochs, 5))
    straight = sweep(
        experiment, "egd-grokfast", [0, 1], Store(tmp_path / "cpu"), torch.device("cpu"), stop=Stop(0.95, 6, 5)
    )
    for mixed, plain in zip(runs, straight, strict=True):
        assert mixed.next_epoch == 6
        assert mixed.last is not None
        assert plain.last is not None
        assert mixed.last["train_loss"] == pytest.approx(plain.last["train_loss"], rel=1e-8)


@pytest.mark.parametrize("method", ["sgd", "egd", "egd-outside", "column-norm"])
def test_a_recorded_step_is_the_step(method: str) -> None:
    """Two seeds, three epochs, and one of them switched off after the first."""
    experiment = catalog.load("addition-97", SMALL[:3])
    after = {}
    for kind in (Eager, Recorded):
        ensemble = Ensemble(experiment, [3, 5], torch.device("cuda"))
        stepper = Stepper(experiment.methods[method], ensemble.parameters)
        arguments = (ensemble, stepper) if kind is Eager else (ensemble, stepper, ensemble.choices(0)[0])
        steps = kind(*arguments)
        for epoch in range(3):
            for chosen in ensemble.choices(epoch):
                steps.gradients(chosen)
                steps.update()
            stepper.observe(torch.tensor([0.99, 0.5]))
        after[kind] = [value.detach().clone() for value in ensemble.parameters.values()] + [stepper.count]
        assert stepper.active == ([False, True] if experiment.methods[method].until else stepper.active)
    *recorded, count = after[Recorded]
    *eager, expected = after[Eager]
    assert count == expected
    for one, other in zip(recorded, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_what_remembers_is_not_recorded() -> None:
    experiment = catalog.load("addition-97", SMALL[:3])
    reasons = {}
    for method in ("egd", "sgd", "grokfast-ema", "muon", "natural"):
        ensemble = Ensemble(experiment, [0], torch.device("cuda"))
        reasons[method] = why_eager(ensemble, Stepper(experiment.methods[method], ensemble.parameters))
    assert not reasons["egd"]
    assert not reasons["sgd"]
    assert all("remembers" in reasons[method] for method in ("grokfast-ema", "muon", "natural"))


def test_seeds_that_are_done_stay_until_half_are(tmp_path: Path) -> None:
    """Their records end where they are done, and each is what it is alone, up to rounding."""
    experiment = catalog.load("addition-97", [*SMALL[:3], "measure.threshold=0.05", "measure.past=1"])
    stop = Stop(0.05, 60, 1)
    together = sweep(experiment, "egd", range(6), Store(tmp_path / "a"), torch.device("cuda"), stop=stop)
    for progress in together:
        assert progress.done(stop)
        stored = Store(tmp_path / "a").find(progress.run)
        epochs = [record["epoch"] for record in stored.records() if "snapshot" not in record]
        assert epochs == list(range(progress.next_epoch))
        assert stored.checkpoints()[0].epoch == progress.next_epoch
        if progress.crossed is not None:
            assert progress.next_epoch == progress.crossed + 2
