"""The one training loop. It yields the records of each epoch and knows no method, task or table by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from egalitarian.lab.config import Record
from egalitarian.lab.training.capture import MakeSteps, steps_for
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.meter import FullMeter, Meter
from egalitarian.lab.training.stepper import Stepper


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

    `meter` is what is measured, by default everything; `make_steps` is how a training step runs.
    """
    steps = make_steps(ensemble, stepper)
    meter = meter or FullMeter(ensemble, stepper)
    choices = ensemble.choices(first)
    for epoch in itertools.count(first):
        clock = Clock(ensemble.device, splits=meter.splits_time)
        ensemble.begin(epoch)
        for index, chosen in enumerate(choices):
            steps.gradients(chosen)
            if index == 0 and meter.reads_gradient(epoch):
                with clock.measuring():
                    meter.read_gradient(stepper.gradient)
            steps.update()
        choices = ensemble.choices(epoch + 1)  # while a GPU is still busy
        with clock.measuring():
            records, accuracy = meter.read(epoch)
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
