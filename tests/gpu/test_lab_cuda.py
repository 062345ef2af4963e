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
