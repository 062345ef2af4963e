"""The one training loop. It yields an epoch's records and knows no method, task or table by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.training.capture import recorded, steps_for
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.metrics import (
    Sketch,
    encode,
    evaluate,
    is_snapshot,
    norms,
    singular_values,
    spectral_measures,
)
from egalitarian.lab.training.stepper import Stepper

Record = dict[str, Any]


class Epoch(NamedTuple):
    """What one epoch gave: a list of records for each seed, and what it cost, training and measuring apart."""

    number: int
    records: list[list[Record]]
    training_seconds: float
    measuring_seconds: float


def train(ensemble: Ensemble, stepper: Stepper, first: int = 0, spectra: str = "epochs") -> Iterator[Epoch]:
    """Trains all seeds side by side, epoch by epoch, for ever: whoever iterates decides when to stop."""
    sketch = Sketch(ensemble.parameters)
    steps, meter = steps_for(ensemble, stepper), meter_for(ensemble)
    choices = ensemble.choices(first)
    epoch = first
    while True:
        clock = Clock(ensemble.device)
        active = stepper.active
        ensemble.begin(epoch)
        values = None
        for place, chosen in enumerate(choices):
            steps.gradients(chosen)
            if place == 0 and (spectra == "epochs" or is_snapshot(epoch)):
                with clock.measuring():
                    values = singular_values(stepper.gradient)
            steps.update()
        choices = ensemble.choices(epoch + 1)  # while a GPU is still at work
        with clock.measuring():
            measures, accuracy = _measures(meter(), values)
            records = _records(epoch, measures, active)
            if values is not None and is_snapshot(epoch):
                _add_snapshots(records, epoch, values, sketch(ensemble.parameters, ensemble.start))
        stepper.observe(accuracy)
        yield Epoch(epoch, records, *clock.stop())
        epoch += 1


Meter = Callable[[], dict[str, Tensor]]
"""Every measure that needs no spectrum, by name, one number per seed."""


def meter_for(ensemble: Ensemble) -> Meter:
    """Computes the measures; on a GPU as one recorded graph."""

    def measure() -> dict[str, Tensor]:
        train_loss, train_accuracy = ensemble.learnt()
        test_loss, test_accuracy = evaluate(ensemble.forward, ensemble.loss, *ensemble.test)
        both = {"train_loss": train_loss, "train_accuracy": train_accuracy, "test_loss": test_loss}
        held_out = {}
        if ensemble.validation is not None:
            held_out["validation_accuracy"] = evaluate(ensemble.forward, ensemble.loss, *ensemble.validation)[1]
        return {**both, "test_accuracy": test_accuracy, **held_out, **norms(ensemble.parameters, ensemble.start)}

    return measure if ensemble.device.type != "cuda" else recorded(measure)


def _measures(measured: dict[str, Tensor], values: Tensor | None) -> tuple[dict[str, list[float]], Tensor]:
    """Every measure by name, one number per seed; and once more the accuracies that the switch-off reads."""
    if values is not None:
        measured = {**measured, **spectral_measures(values)}
    read = "validation_accuracy" if "validation_accuracy" in measured else "test_accuracy"
    table = torch.stack([value.double() for value in measured.values()]).cpu()  # read back at once
    return dict(zip(measured, table.tolist(), strict=True)), table[list(measured).index(read)]


def _records(epoch: int, measures: dict[str, list[float]], active: list[bool]) -> list[list[Record]]:
    by_seed = zip(*measures.values(), strict=True)
    return [
        [{"epoch": epoch, **dict(zip(measures, numbers, strict=True)), "active": on}]
        for numbers, on in zip(by_seed, active, strict=True)
    ]


def _add_snapshots(records: list[list[Record]], epoch: int, values: Tensor, sketches: Tensor) -> None:
    for own, spectrum, sketch in zip(records, values.tolist(), sketches, strict=True):
        rounded = [float(f"{value:.6g}") for value in spectrum]
        own.append({"epoch": epoch, "snapshot": {"singular_values": rounded, "displacement": encode(sketch)}})


class Clock:
    """Wall-clock time since its making, with the time for measuring kept apart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._measured = 0.0
        self._start = self._now()

    def measuring(self) -> Clock:
        return self

    def __enter__(self) -> None:
        self._entered = self._now()

    def __exit__(self, *_: object) -> None:
        self._measured += self._now() - self._entered

    def stop(self) -> tuple[float, float]:
        """(seconds of training, seconds of measuring)."""
        return self._now() - self._start - self._measured, self._measured

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
