"""What became of a run: the epoch that passed the threshold, accuracies, divergence, seconds. Its one owner.

A sweep builds an `Outcome` record by record while it trains. Tables, figures, tuning and benchmarks build it from stored
records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Line = Mapping[str, Any]
"""A record or a timing, as it is stored."""
Reads = Literal["test_accuracy", "validation_accuracy"]


@dataclass(frozen=True)
class Outcome:
    """What became of a run in the epochs that were trained so far."""

    threshold: float
    reads: Reads = "test_accuracy"
    """The accuracy that must exceed the threshold."""
    epochs: int = 0
    """Trained so far: the number of the next epoch."""
    crossed: int | None = None
    """The first epoch, counted from 0, whose accuracy exceeds the threshold."""
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
    def end(self) -> int:
        """Epochs through the one that passed; all epochs if none did."""
        return self.epochs if self.crossed is None else self.crossed + 1


def training_seconds(timings: Iterable[Line], outcome: Outcome) -> list[float]:
    """Seconds of training, epoch by epoch, through the one that passed: one seed's share of its batch of seeds."""
    by_epoch = {timing["epoch"]: timing["training"] / timing["seeds"] for timing in timings}  # the last line counts
    return [seconds for epoch, seconds in sorted(by_epoch.items()) if epoch < outcome.end]


def _finite(value: float | None) -> float | None:
    """None for what is not finite: JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else value
