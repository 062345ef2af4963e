"""What became of a run: the epoch that passed the threshold, accuracies, divergence, seconds. Only this file computes it.

A sweep builds an `Outcome` record by record while it trains. Tables, figures, tuning and benchmarks build it from stored
records.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from egalitarian.lab.config import Experiment, Record, Run
from egalitarian.lab.runs.files import Checkpoint

Line = Mapping[str, Any]
"""A record or a timing, as it is stored."""
Reads = Literal["test_accuracy", "validation_accuracy"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run in the epochs that were trained so far.

    A seed *passes* at the epoch `crossed`, the first whose accuracy exceeds the threshold.
    """

    threshold: float
    reads: Reads = "test_accuracy"
    """The accuracy that must exceed the threshold."""
    epochs: int = 0
    """Trained so far: the number of the next epoch."""
    crossed: int | None = None
    """The epoch at which the seed passed, counted from 0; None if it has not."""
    diverged: bool = False
    """Whether the training loss of the last epoch is not finite."""
    accuracy: float | None = None
    """The accuracy that is compared with the threshold, after the last epoch; None if it is not finite."""
    train_accuracy: float | None = None
    """After the last epoch; None if it is not finite, or was not measured."""
    test_accuracy: float | None = None
    """After the last epoch; None if it is not finite."""
    best_test_accuracy: float | None = None
    """The largest of all epochs."""
    total_train_accuracy: float = 0.0
    """Summed over the epochs that have one."""
    counted: int = 0
    """The epochs that have a training accuracy."""

    @staticmethod
    def of(
        records: Iterable[Line], threshold: float, *, reads: Reads = "test_accuracy", budget: int | None = None
    ) -> Outcome:
        """The outcome of these records, snapshots left out; with a `budget`, of the epochs within it."""
        outcome = Outcome(threshold, reads)
        for record in records:
            if budget is None or record["epoch"] < budget:
                outcome = outcome.after(record)
        return outcome

    def after(self, record: Line) -> Outcome:
        """The outcome with one more record; a snapshot changes nothing."""
        if "snapshot" in record:
            return self
        epoch, train, test = record["epoch"], _finite(record.get("train_accuracy")), _finite(record["test_accuracy"])
        read = test if self.reads == "test_accuracy" else _finite(record[self.reads])
        passes = self.crossed is None and read is not None and read > self.threshold
        best = self.best_test_accuracy
        return Outcome(
            threshold=self.threshold,
            reads=self.reads,
            epochs=epoch + 1,
            crossed=epoch if passes else self.crossed,
            diverged="train_loss" in record and _finite(record["train_loss"]) is None,
            accuracy=read,
            train_accuracy=train,
            test_accuracy=test,
            best_test_accuracy=test if best is None or (test is not None and test > best) else best,
            total_train_accuracy=self.total_train_accuracy + (train or 0.0),
            counted=self.counted + (train is not None),
        )

    @property
    def mean_train_accuracy(self) -> float | None:
        """Over the epochs that have one."""
        return self.total_train_accuracy / self.counted if self.counted else None

    @property
    def epochs_until_passed(self) -> int:
        """Epochs trained through the one that passed; all epochs so far if none did."""
        return self.epochs if self.crossed is None else self.crossed + 1


def training_seconds(timings: Iterable[Line], outcome: Outcome) -> list[float]:
    """Seconds of training, epoch by epoch, through the one that passed: one seed's share of its batch of seeds."""
    by_epoch = {timing["epoch"]: timing["training"] / timing["seeds"] for timing in timings}  # the last line counts
    return [seconds for epoch, seconds in sorted(by_epoch.items()) if epoch < outcome.epochs_until_passed]


def _finite(value: float | None) -> float | None:
    """The value; None if it is NaN or infinite, or was not measured."""
    return None if value is None or not math.isfinite(value) else value


@dataclass(frozen=True)
class Stop:
    """When a seed is done: at its budget, or some epochs after it passed. A later stop extends a stored run."""

    threshold: float
    epochs: int
    """The budget."""
    past: int
    """Epochs to train after the one that passed."""

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


def threshold_text(share: float) -> str:
    """A threshold with all its digits, for the terminal: 95%, 99.9%."""
    return f"{100 * share:.6g}%"


@dataclass
class Progress:
    """One seed and its epochs so far, as a listener gets it."""

    run: Run
    outcome: Outcome
    checkpoint: Checkpoint | None = None
    """The one to resume from."""
    last: Record | None = None
    """The record of the last epoch."""
    curve: list[float] = field(default_factory=list)
    """Test accuracy by epoch."""
    evidence: Path | None = None
    """The folder of the evidence that has the seed; None for one of a store."""

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
        """The number of the next epoch, which equals the count of epochs so far."""
        return self.outcome.epochs

    @property
    def crossed(self) -> int | None:
        """The epoch at which the seed passed."""
        return self.outcome.crossed

    @property
    def diverged(self) -> bool:
        """Whether the loss is not finite any more."""
        return self.outcome.diverged

    @property
    def name(self) -> str:
        """Experiment and method, as in a request's name."""
        return f"{self.run.experiment.name} {self.run.method_name}"

    def ending_text(self, stop: Stop) -> str:
        """How the seed ended, for the terminal."""
        assert self.last is not None
        if self.diverged:
            return f"diverged at epoch {self.last['epoch']}: the loss is not finite"
        threshold = threshold_text(stop.threshold)
        if self.crossed is not None:
            return f"passed {threshold} at epoch {self.crossed}, with {self.curve[self.crossed]:.1%}"
        reached = f"{self.next_epoch} epochs, best {max(self.curve):.1%}"
        return f"did not pass {threshold} in {reached}" if stop.threshold < 1 else reached


def epoch_text(records: Sequence[Record]) -> str:
    """Medians over the seeds' records of one epoch, for the terminal: accuracies, and the gradient's condition number."""
    accuracies = {part: _median([record[f"{part}_accuracy"] for record in records]) for part in ("train", "test")}
    text = "  ".join(f"{part} {accuracy:6.1%}" for part, accuracy in accuracies.items())
    condition = _median([_condition(record) for record in records])
    return text if math.isnan(condition) else f"{text}  cond {condition:7.1e}"


def _median(values: Sequence[float | None]) -> float:
    """Over the values that were measured; NaN if none was."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def _condition(record: Record) -> float | None:
    """The condition number of the hidden gradient, above its rounding noise."""
    largest, smallest = record.get("sigma_max"), record.get("sigma_min")
    return largest / smallest if largest and smallest else None


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
