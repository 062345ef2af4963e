"""The lab with `--device cuda`: the same runs as on the CPU, up to rounding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from egalitarian.lab import config
from egalitarian.lab.config import FOURIER, Method, Optim, catalog
from egalitarian.lab.console.cli import main
from egalitarian.lab.problems import CNN, Data, Split, Task, stream
from egalitarian.lab.runs import Stop, Store, sweep
from egalitarian.lab.training import Captured, Eager, Ensemble, Fourier, FullMeter, Stepper, train, why_eager
from egalitarian.lab.training.optimizers import Muon
from egalitarian.lab.training.spectra import HalfSpectrum, Power, RandomSpectrum, ReversedSpectrum
from egalitarian.transforms import MatrixTransform, Site

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = ["task.modulus=11", "model.width=32", "training.batch=16", "training.precision=float64"]
METHODS = ["sgd", "egd", "egd-after", "row-norm", "natural", "muon", "grokfast-ema", "grokfast-ma", "egd-grokfast"]


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
    assert {"polynomial, exact", "polynomial, fast", "row norm"} <= captured
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


POLAR = config.PolarSettings()
LION = Optim(optimizer="lion", lr=1e-3, weight_decay=0.1)
KINDS = {
    "sgd": Method(title="", epochs=1, optim=Optim(lr=0.5, weight_decay=1e-4)),
    "momentum": Method(title="", epochs=1, optim=Optim(lr=0.1, momentum=0.9, nesterov=True)),
    "egd": Method(title="", epochs=1, optim=Optim(lr=0.5, weight_decay=1e-4), transform=(POLAR,), until=0.95),
    "the gradient itself": Method(title="", epochs=1, optim=Optim(lr=0.5), transform=(config.PowerSettings(c=0),)),
    "after": Method(title="", epochs=1, decay="after", optim=Optim(lr=0.5, weight_decay=0.03), transform=(POLAR,)),
    "row norm": Method(title="", epochs=1, optim=Optim(lr=0.5), transform=(config.RowNormSettings(floor=0.01),)),
    "randomized": Method(
        title="", epochs=1, optim=Optim(lr=0.5), transform=(config.LowRankPolarSettings(rank=6),), until=0.95
    ),
    "one sketch": Method(
        title="", epochs=1, optim=Optim(lr=0.5), transform=(config.LowRankPolarSettings(rank=6, fixed=True),)
    ),
    "grokfast": Method(
        title="", epochs=1, optim=Optim(lr=0.5), transform=(config.GrokfastEMASettings(alpha=0.8, lamb=2.0),)
    ),
    "window": Method(
        title="", epochs=1, optim=Optim(lr=0.5), transform=(config.GrokfastMASettings(window=3, lamb=2.0), POLAR)
    ),
    "momentum, polar": Method(
        title="", epochs=1, optim=Optim(lr=0.5), transform=(config.MomentumSettings(), POLAR), until=0.95
    ),
    "muon": Method(title="", epochs=1, decay="decoupled", optim=Optim(), hidden=Optim(optimizer="muon", momentum=0.9)),
    "muon on all matrices": Method(
        title="",
        epochs=1,
        decay="decoupled",
        targets=("*",),
        optim=Optim(optimizer="adamw", lr=1e-2, weight_decay=0.1),
        hidden=Optim(optimizer="muon", lr=1e-2, momentum=0.95, nesterov=True, weight_decay=0.1),
    ),
    "lion": Method(title="", epochs=1, decay="decoupled", decayed="all", optim=LION),
    "lion, clipped": Method(title="", epochs=1, decay="decoupled", clip=0.5, optim=LION.replace(weight_decay=0.0)),
    "egd (a)": Method(
        title="",
        epochs=1,
        decay="after",
        targets=("*",),
        optim=Optim(lr=1e-2, weight_decay=0.1),
        transform=(config.MomentumSettings(beta=0.9, on="targets"), POLAR),
    ),
    "egd (c)": Method(
        title="",
        epochs=1,
        decay="decoupled",
        optim=Optim(optimizer="adamw", lr=1e-2, weight_decay=0.1),
        hidden=Optim(lr=1e-2, weight_decay=0.1),
        transform=(config.MomentumSettings(beta=0.9, on="targets"), POLAR),
    ),
    **{
        name: Method(title="", epochs=1, decay="decoupled" if name == "adamw" else "after", decayed="all", optim=optim)
        for name, optim in {
            name: Optim(optimizer=name, lr=1e-2, weight_decay=0.1)  # type: ignore[arg-type]
            for name in ("adam", "adamw", "radam", "rmsprop")
        }.items()
    },
    "adam, polar": Method(title="", epochs=1, optim=Optim(optimizer="adam", lr=1e-2), transform=(POLAR,), until=0.95),
}


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_is_the_step(kind: str, warmup: int) -> None:
    """Two seeds, one switched off after the first epoch, the other before the last; an incomplete batch; half-way anew from
    a state."""
    experiment = catalog.load("addition-97", [*SMALL[:3], "training.drop_last=false"])
    after: dict[type[Eager | Captured], list[torch.Tensor]] = {}
    for way in (Eager, Captured):
        ensemble = Ensemble(experiment, [3, 5], torch.device("cuda"))
        stepper = Stepper(KINDS[kind], ensemble.parameters, warmup)
        assert not why_eager(ensemble, stepper)
        for sitting in range(2):
            steps = way(ensemble, stepper)
            for epoch in range(3 * sitting, 3 * sitting + 3):
                for chosen in ensemble.choices(epoch):
                    steps.gradients(chosen)
                    steps.update()
                stepper.observe(torch.tensor([0.99, 0.5 if epoch < 4 else 0.99]))
            states = stepper.states()
            stepper = Stepper(KINDS[kind], ensemble.parameters, warmup)
            stepper.load(states)
        assert stepper.count == 6 * ensemble.batches
        after[way] = [value.detach().clone() for value in ensemble.parameters.values()]
    in_bfloat16, by_signs = dict.fromkeys(("muon", "muon on all matrices"), 1e-2), {"lion": 1e-2, "lion, clipped": 1e-2}
    of_polar = dict.fromkeys(("egd (a)", "egd (c)"), 1e-3)
    loose = {
        **in_bfloat16,
        **by_signs,
        **of_polar,
        "rmsprop": 1e-3,
        "adam": 1e-3,
        "adamw": 1e-3,
        "radam": 1e-3,
        "adam, polar": 5e-2,
    }
    for one, other in zip(after[Captured], after[Eager], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=loose.get(kind, 1e-3 if "polar" in kind else 2e-4))


@pytest.mark.parametrize("shape", [(16, 14), (14, 16), (4, 3, 3, 3), (97, 512)])
def test_muon_of_a_batch_is_torchs_for_every_seed(shape: tuple[int, ...]) -> None:
    """To the roundings of its fifteen products to the eight bits of bfloat16."""
    draw = torch.Generator().manual_seed(0)
    start, grad = (torch.randn(8, *shape, generator=draw).cuda() for _ in range(2))
    settings = {"lr": 1.0, "weight_decay": 0.0, "momentum": 0.9, "nesterov": True}
    stack = start.clone().requires_grad_()
    stack.grad = grad.clone()
    Muon([stack], **settings).step()
    for index in range(8):
        alone = start[index].flatten(1).clone().requires_grad_()
        alone.grad = grad[index].flatten(1).clone()
        torch.optim.Muon([alone], **settings).step()
        step = alone.detach() - start[index].flatten(1)
        assert (stack.detach()[index].flatten(1) - alone.detach()).norm() < 15 * 2**-9 * step.norm()


@dataclass(frozen=True, kw_only=True)
class Noise(Task, kind="noise-of-a-gpu-test"):
    """Images of noise, whose labels are shuffled before epochs 3 and 6."""

    image: ClassVar[tuple[int, ...]] = (3, 8, 8)
    features = 3 * 8 * 8
    outputs = 10

    def build(self, seed: int) -> Data:
        draw = stream(seed, "noise")
        split = Split(torch.randn(40, *self.image, generator=draw), torch.randint(0, 10, (40,), generator=draw))
        return Data(split, split)

    def era(self, epoch: int) -> int:
        return epoch // 3

    def relabelled(self, labels: torch.Tensor, seed: int, era: int) -> torch.Tensor:
        return labels[torch.randperm(40, generator=stream(seed, "shuffle", era))]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("filters", ["together", "apart"])
def test_captured_steps_have_the_masks_of_their_epoch_and_reset_optimizers(kind: str, filters: str) -> None:
    """Those of stale masks, or of an optimizer that goes on, would be far off."""
    method = KINDS[kind].replace(targets=("conv.*.weight", "hidden.weight"))
    base = catalog.load("cifar-castanyer")
    model = CNN(channels=(8, 8, 8, 8), block=2, dropout=0.5, width=16, hidden="orthogonal", filters=filters)
    training = base.training.replace(batch=16, reset=True)

    def after(make_steps: type[Eager | Captured], model: CNN = model, reset: bool = True) -> torch.Tensor:
        own = training.replace(reset=reset)
        experiment = base.replace(task=Noise(), model=model, training=own, methods={kind: method})
        ensemble = Ensemble(experiment, [3, 5], torch.device("cuda"))
        stepper = Stepper(method, ensemble.parameters)
        for epoch in train(ensemble, stepper, make_steps=make_steps):
            if epoch.number == 7:
                break
        return torch.cat([value.detach().flatten() for value in ensemble.parameters.values()])

    eager = after(Eager)
    torch.testing.assert_close(after(Captured), eager, rtol=0, atol=1e-3)
    assert (after(Eager, reset=False) - eager).abs().max() > 1e-2
    assert (after(Eager, model.replace(dropout=0.0)) - eager).abs().max() > 1e-2


def test_what_synchronises_is_not_captured() -> None:
    experiment = catalog.load("addition-97", SMALL[:3])
    ensemble = Ensemble(experiment, [0], torch.device("cuda"))
    assert "SVD" in why_eager(ensemble, Stepper(experiment.methods["natural"], ensemble.parameters))
    adaptive = KINDS["randomized"].replace(transform=(config.LowRankPolarSettings(rank=6, share=0.9),))
    assert "SVD" in why_eager(ensemble, Stepper(adaptive, ensemble.parameters))
    spectrum = KINDS["sgd"].replace(transform=(config.ReversedSpectrumSettings(),))
    assert "eigenvectors" in why_eager(ensemble, Stepper(spectrum, ensemble.parameters))


@pytest.mark.parametrize(
    "transform", [Power(0.5), Power(1), Power(2), RandomSpectrum(), HalfSpectrum(), ReversedSpectrum()]
)
@pytest.mark.parametrize("shape", [(3, 512, 194), (3, 97, 512)])
def test_another_spectrum_is_the_same_on_the_gpu(transform: MatrixTransform, shape: tuple[int, ...]) -> None:
    G, site = torch.randn(shape, generator=stream(0, "gradient")), Site("hidden.weight", 3, torch.float32)
    on_cpu = transform(G, site)
    torch.testing.assert_close(transform(G.cuda(), site).cpu(), on_cpu, rtol=1e-4, atol=1e-5 * float(on_cpu.abs().max()))


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


def test_accuracy_during_an_epoch_is_counted_by_captured_steps() -> None:
    """An incomplete batch among them."""
    experiment = catalog.load("addition-97", [*SMALL[:3], "training.drop_last=false", "training.accuracy=during"])
    found = []
    for way in (Eager, Captured):
        ensemble = Ensemble(experiment, [3, 5], torch.device("cuda"))
        stepper = Stepper(KINDS["sgd"], ensemble.parameters)
        steps = way(ensemble, stepper)
        for epoch in range(4):
            ensemble.begin(epoch)
            for chosen in ensemble.choices(epoch):
                steps.gradients(chosen)
                steps.update()
        found.append(ensemble.learnt())
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert found[0][1].min() > 0


def test_fourier_measures_are_the_same_on_the_gpu() -> None:
    """Beside the captured measures, from the same weights."""
    experiment = catalog.load("addition-97", [*SMALL, "measure.fourier=epochs"])
    found = {}
    for device in ("cpu", "cuda"):
        ensemble = Ensemble(experiment, [3, 5], torch.device(device))
        stepper = Stepper(experiment.method("egd"), ensemble.parameters)
        meter = FullMeter(ensemble, stepper, "snapshots", Fourier.of(experiment, ensemble))
        epochs = train(ensemble, stepper, meter=meter)
        found[device] = [records[0] for _ in range(4) for records in next(epochs).records]
    for cpu, cuda in zip(found["cpu"], found["cuda"], strict=True):
        assert [cuda[name] for name in FOURIER] == pytest.approx([cpu[name] for name in FOURIER], rel=1e-6)
