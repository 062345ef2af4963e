"""What is measured at the end of an epoch: everything that the lab records, or test accuracy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from egalitarian.lab.config import Record, encode, is_snapshot
from egalitarian.lab.training.capture import captured
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.metrics import Sketch, evaluate, norms, singular_values, spectral_measures
from egalitarian.lab.training.stepper import Stepper

T = TypeVar("T")
Spectra = Literal["epochs", "snapshots"]
"""When the gradient's singular values are computed: at every epoch, or ten times a decade."""


class Meter(Protocol):
    """Measures the networks of an ensemble while they train."""

    splits_time: bool
    """Whether training and measuring are timed separately, which synchronises the device between them."""

    def reads_gradient(self, epoch: int) -> bool:
        """Whether `read_gradient` is to be called in this epoch."""

    def read_gradient(self, gradient: Tensor) -> None:
        """The target's gradient at the first step of the epoch, (seeds, out, in)."""

    def read(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        """A list of records for each seed, and the accuracies that decide about the switch-off, (seeds,)."""


class FullMeter:
    """Losses, accuracies, norms, spectra, and snapshots ten times a decade."""

    splits_time = True

    def __init__(self, ensemble: Ensemble, stepper: Stepper, spectra: Spectra = "epochs") -> None:
        self._ensemble, self._stepper, self._spectra = ensemble, stepper, spectra
        self._sketch = Sketch(ensemble.parameters)
        self._measure = _fast(self._measures, ensemble)
        self._values: Tensor | None = None

    def reads_gradient(self, epoch: int) -> bool:
        return self._spectra == "epochs" or is_snapshot(epoch)

    def read_gradient(self, gradient: Tensor) -> None:
        self._values = singular_values(gradient)

    def read(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        measured, values = self._measure(), self._values
        if values is not None:
            measured = {**measured, **spectral_measures(values)}
        table = torch.stack([value.double() for value in measured.values()]).cpu()  # one transfer
        records = [
            [{"epoch": epoch, **dict(zip(measured, numbers, strict=True)), "active": on}]
            for numbers, on in zip(table.mT.tolist(), self._stepper.active, strict=True)
        ]
        if values is not None and is_snapshot(epoch):
            _add_snapshots(records, epoch, values, self._sketch(self._ensemble.parameters, self._ensemble.start))
        self._values = None
        decides = "validation_accuracy" if "validation_accuracy" in measured else "test_accuracy"
        return records, table[list(measured).index(decides)]

    def _measures(self) -> dict[str, Tensor]:
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

        def measure() -> Tensor:
            found = [evaluate(ensemble.forward, ensemble.loss, *part)[1] for part in parts]
            return found[0][None] if len(found) == 1 else torch.stack(found)

        self._measure = _fast(measure, ensemble)

    def reads_gradient(self, epoch: int) -> bool:
        return False

    def read_gradient(self, gradient: Tensor) -> None: ...

    def read(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        accuracies = self._measure().cpu()
        return [[{"epoch": epoch, "test_accuracy": accuracy}] for accuracy in accuracies[0].tolist()], accuracies[-1]


def _fast(measure: Callable[[], T], ensemble: Ensemble) -> Callable[[], T]:
    return captured(measure) if ensemble.device.type == "cuda" else measure


def _add_snapshots(records: list[list[Record]], epoch: int, values: Tensor, sketches: Tensor) -> None:
    for own, spectrum, sketch in zip(records, values.tolist(), sketches.cpu().numpy(), strict=True):
        rounded = [float(f"{value:.6g}") for value in spectrum]
        own.append({"epoch": epoch, "snapshot": {"singular_values": rounded, "displacement": encode(sketch)}})
