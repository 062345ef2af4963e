"""A seed while it trains: its progress, the rule that ends it, and listeners that follow a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from egalitarian.lab.config import Experiment, Record, Run
from egalitarian.lab.runs.checkpoint import Checkpoint
from egalitarian.lab.runs.outcome import Outcome


@dataclass(frozen=True)
class Stop:
    """When a seed is done: at its budget, or so many epochs past the threshold; a longer one extends a stored run."""

    threshold: float
    epochs: int
    past: int

    @staticmethod
    def of(experiment: Experiment, method: str, epochs: int | None = None, past: int | None = None) -> Stop:
        """The experiment's own rule, with another budget or other epochs past the threshold where given."""
        measure = experiment.measure
        budget = experiment.method(method).epochs if epochs is None else epochs
        return Stop(measure.threshold, budget, measure.past if past is None else past)

    def ends(self, outcome: Outcome) -> bool:
        """Whether a seed with this outcome trains no further."""
        past = outcome.crossed is not None and outcome.epochs > outcome.crossed + self.past
        return outcome.diverged or past or outcome.epochs >= self.epochs


def percent(share: float) -> str:
    """A threshold, with all its digits: 95%, 99.9%."""
    return f"{100 * share:.6g}%"


@dataclass
class Progress:
    """One seed and its epochs so far."""

    run: Run
    outcome: Outcome
    checkpoint: Checkpoint | None = None
    """The one to resume from."""
    last: Record | None = None
    """The record of the last epoch."""
    curve: list[float] = field(default_factory=list)
    """Test accuracy by epoch."""

    def take(self, record: Record) -> None:
        """One more record; a snapshot changes nothing."""
        if "snapshot" not in record:
            self.outcome, self.last = self.outcome.after(record), record
            self.curve.append(record["test_accuracy"])

    def done(self, stop: Stop) -> bool:
        """Whether the seed trains no further."""
        return stop.ends(self.outcome)

    @property
    def next_epoch(self) -> int:
        """The number of the next epoch, which is that of the epochs so far."""
        return self.outcome.epochs

    @property
    def crossed(self) -> int | None:
        """The first epoch past the threshold."""
        return self.outcome.crossed

    @property
    def diverged(self) -> bool:
        """Whether the loss is not finite any more."""
        return self.outcome.diverged


class Listener(Protocol):
    """Follows a sweep: a progress bar, lines of a log, a TensorBoard file."""

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        """These seeds were done before the sweep began."""

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        """A batch of seeds begins or resumes."""

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        """An epoch of these seeds ended, with these records."""

    def ends(self, runs: Sequence[Progress]) -> None:
        """These seeds are done."""

    def note(self, text: str) -> None:
        """A message for the user."""


class Silent:
    """No listener."""

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def begins(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None: ...
    def ends(self, runs: Sequence[Progress]) -> None: ...
    def note(self, text: str) -> None: ...


class Interrupted(Exception):  # noqa: N818  # a request of the user, not an error
    """The sweep was asked to stop, and everything is saved."""

    runs: list[Progress]
    """The progress of each seed."""
