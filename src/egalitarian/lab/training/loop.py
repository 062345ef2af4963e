"""The one training loop. It yields the records of each epoch and knows no method, task or table by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from egalitarian.lab.config import Record, encode, is_snapshot
from egalitarian.lab.training.capture import MakeSteps, captured, steps_for
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.fourier import Fourier
from egalitarian.lab.training.metrics import Sketch, evaluate, norms, singular_values, spectral_measures
from egalitarian.lab.training.stepper import Stepper

T = TypeVar("T")
Spectra = Literal["epochs", "snapshots"]
"""When the gradient's singular values are computed: at every epoch, or at ten epochs per factor of ten."""


class Meter(Protocol):
    """Measures the networks of an ensemble while they train."""

    splits_time: bool
    """Whether training and measuring are timed separately, which synchronises the device between them."""

    def wants_gradient(self, epoch: int) -> bool:
        """Whether `take_gradient` is to be called in this epoch."""

    def take_gradient(self, gradient: Tensor) -> None:
        """The target's gradient at the first step of the epoch, (seeds, out, in)."""

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        """A list of records for each seed, and the accuracies that decide about the switch-off, (seeds,)."""


class FullMeter:
    """Losses, accuracies, norms, spectra, Fourier measures, and snapshots at ten epochs per factor of ten."""

    splits_time = True

    def __init__(
        self, ensemble: Ensemble, stepper: Stepper, spectra: Spectra = "epochs", fourier: Fourier | None = None
    ) -> None:
        self._ensemble, self._stepper, self._spectra, self._fourier = ensemble, stepper, spectra, fourier
        self._sketch = Sketch(ensemble.parameters)
        self._measures = _captured_on_gpu(self._compute_measures, ensemble)
        self._values: Tensor | None = None

    def wants_gradient(self, epoch: int) -> bool:
        return self._spectra == "epochs" or is_snapshot(epoch)

    def take_gradient(self, gradient: Tensor) -> None:
        self._values = singular_values(gradient)

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        measured, values = self._measures(), self._values
        if values is not None:
            measured = {**measured, **spectral_measures(values)}
        power = None
        if self._fourier is not None and self._fourier.wants(epoch):
            power = self._fourier.power()
            measured = {**measured, **self._fourier.measures(power)}
        table = torch.stack([value.double() for value in measured.values()]).cpu()  # one transfer
        records = [
            [{"epoch": epoch, **dict(zip(measured, numbers, strict=True)), "active": on}]
            for numbers, on in zip(table.mT.tolist(), self._stepper.active, strict=True)
        ]
        if values is not None and is_snapshot(epoch):
            sketches = self._sketch(self._ensemble.parameters, self._ensemble.start)
            _add_snapshots(records, epoch, values, sketches, power)
        self._values = None
        decides = "validation_accuracy" if "validation_accuracy" in measured else "test_accuracy"
        return records, table[list(measured).index(decides)]

    def _compute_measures(self) -> dict[str, Tensor]:
        """Every measure that needs no spectrum, by name, one number per seed."""
        ensemble = self._ensemble
        train_loss, train_accuracy = ensemble.learnt()
        test_loss, test_accuracy = evaluate(ensemble.forward, ensemble.loss, *ensemble.test)
        both = {"train_loss": train_loss, "train_accuracy": train_accuracy, "test_loss": test_loss}
        held_out = {}
        if ensemble.validation is not None:
            held_out["validation_accuracy"] = evaluate(ensemble.forward, ensemble.loss, *ensemble.validation)[1]
        return {**both, "test_accuracy": test_accuracy, **held_out, **norms(ensemble.parameters, ensemble.start)}


class AccuracyMeter:
    """Test accuracy alone, for benchmarks: enough to see when a seed has passed."""

    splits_time = False

    def __init__(self, ensemble: Ensemble) -> None:
        parts = [part for part in (ensemble.test, ensemble.validation) if part is not None]

        def compute() -> Tensor:
            found = [evaluate(ensemble.forward, ensemble.loss, *part)[1] for part in parts]
            return found[0][None] if len(found) == 1 else torch.stack(found)

        self._accuracies = _captured_on_gpu(compute, ensemble)

    def wants_gradient(self, epoch: int) -> bool:
        return False

    def take_gradient(self, gradient: Tensor) -> None: ...

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        accuracies = self._accuracies().cpu()
        return [[{"epoch": epoch, "test_accuracy": accuracy}] for accuracy in accuracies[0].tolist()], accuracies[-1]


def _captured_on_gpu(compute: Callable[[], T], ensemble: Ensemble) -> Callable[[], T]:
    """The function as a CUDA graph if the ensemble is on a GPU."""
    return captured(compute) if ensemble.device.type == "cuda" else compute


def _add_snapshots(records: list[list[Record]], epoch: int, values: Tensor, sketches: Tensor, power: Tensor | None) -> None:
    for index, (own, sketch) in enumerate(zip(records, sketches.cpu().numpy(), strict=True)):
        found: Record = {"singular_values": _rounded(values[index]), "displacement": encode(sketch)}
        if power is not None:
            found["fourier_power"] = _rounded(power[index])
        own.append({"epoch": epoch, "snapshot": found})


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


class Epoch(NamedTuple):
    """One epoch of all seeds: a list of records for each, and the seconds of training and of measuring."""

    number: int
    records: list[list[Record]]
    training_seconds: float
    measuring_seconds: float


def train(
    ensemble: Ensemble,
    stepper: Stepper,
    first: int = 0,
    *,
    meter: Meter | None = None,
    make_steps: MakeSteps = steps_for,
) -> Iterator[Epoch]:
    """Trains all seeds as one batch, epoch by epoch, without end: the caller decides when to stop.

    `first` is the number of the first epoch: above 0 when a run resumes, since an epoch's number decides its batches.
    `meter` is what is measured, by default everything. `make_steps` is how a training step runs.
    """
    steps = make_steps(ensemble, stepper)
    meter = meter or FullMeter(ensemble, stepper)
    choices = ensemble.choices(first)
    for epoch in itertools.count(first):
        clock = Clock(ensemble.device, splits=meter.splits_time)
        ensemble.begin(epoch)
        if ensemble.resets(epoch):
            stepper.reset()
        for index, chosen in enumerate(choices):
            steps.gradients(chosen)
            if index == 0 and meter.wants_gradient(epoch):
                with clock.measuring():
                    meter.take_gradient(stepper.gradient)
            steps.update()
        choices = ensemble.choices(epoch + 1)  # while a GPU is still busy
        with clock.measuring():
            records, accuracy = meter.measure(epoch)
        stepper.observe(accuracy)
        yield Epoch(epoch, records, *clock.stop())


class Clock:
    """Wall-clock time since its construction. Without `splits`, all of it counts as training, and nothing synchronises."""

    def __init__(self, device: torch.device, *, splits: bool = True) -> None:
        self._synchronises, self._splits = splits and device.type == "cuda", splits
        self._device = device
        self._measured = 0.0
        self._start = self._now()

    def measuring(self) -> Clock:
        """A context whose time counts as measuring."""
        return self

    def __enter__(self) -> None:
        self._entered = self._now()

    def __exit__(self, *_: object) -> None:
        if self._splits:
            self._measured += self._now() - self._entered

    def stop(self) -> tuple[float, float]:
        """(seconds of training, seconds of measuring)."""
        return self._now() - self._start - self._measured, self._measured

    def _now(self) -> float:
        if self._synchronises:
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
