"""What is known of a seed on its way, when it is done, and whoever wants to be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from egalitarian.lab.config.spec import Experiment, Run
from egalitarian.lab.runs.store import Checkpoint, Record


@dataclass(frozen=True)
class Stop:
    """When a seed is done: at its budget, or so many epochs past the threshold; a longer one extends a stored run."""

    threshold: float
    epochs: int
    past: int

    @staticmethod
    def of(experiment: Experiment, method: str, epochs: int | None = None, past: int | None = None) -> Stop:
        measure = experiment.measure
        budget = experiment.method(method).epochs if epochs is None else epochs
        return Stop(measure.threshold, budget, measure.past if past is None else past)


def percent(share: float) -> str:
    """A threshold, with all its digits: 95%, 99.9%."""
    return f"{100 * share:.6g}%"


@dataclass
class Progress:
    """What is known of one seed so far."""

    run: Run
    checkpoint: Checkpoint | None = None
    """Where it would go on from."""
    next_epoch: int = 0
    crossed: int | None = None
    """The first epoch past the threshold."""
    last: Record | None = None
    curve: list[float] = field(default_factory=list)
    """Test accuracy by epoch."""
    diverged: bool = False

    def take(self, record: Record, threshold: float) -> None:
        if "snapshot" in record:
            return
        self.last, self.next_epoch = record, record["epoch"] + 1
        self.curve.append(record["test_accuracy"])
        loss, accuracy = record["train_loss"], record["test_accuracy"]
        self.diverged = loss is None or not math.isfinite(loss)
        if self.crossed is None and accuracy > threshold:
            self.crossed = record["epoch"]

    def done(self, stop: Stop) -> bool:
        past = self.crossed is not None and self.next_epoch > self.crossed + stop.past
        return self.diverged or past or self.next_epoch >= stop.epochs


class Listener(Protocol):
    """Whoever wants to see a sweep go on: a progress bar, a TensorBoard file."""

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        """Seeds that were done before."""

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None: ...
    def ends(self, runs: Sequence[Progress]) -> None: ...
    def note(self, text: str) -> None:
        """Something worth knowing has happened."""


class Silent:
    """No listener."""

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def begins(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None: ...
    def ends(self, runs: Sequence[Progress]) -> None: ...
    def note(self, text: str) -> None: ...


class Interrupted(Exception):  # noqa: N818  # not an error: somebody asked
    """The sweep was asked to stop, and everything is saved."""

    runs: list[Progress]
    """What is known of each seed."""
