"""What became of one seed, read from its records, and what the seeds of a point come to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from egalitarian.lab.runs.store import Record
from egalitarian.lab.tuning.window import Place


@dataclass(frozen=True)
class Outcome:
    """One seed within its budget."""

    seed: int
    id: str
    """Of its run."""
    epochs: int
    """Trained, at most the budget."""
    crossed: int | None
    """The first epoch, from 0, whose accuracy is past the threshold."""
    accuracy: float
    """After the last of these epochs."""
    mean_train_accuracy: float
    """Over the budget; epochs that a diverged seed does not have count as 0."""
    diverged: bool

    @staticmethod
    def of(seed: int, run: str, records: Iterable[Record], reads: str, threshold: float, budget: int) -> Outcome:
        """`reads` is the accuracy that counts; what lies beyond the budget does not."""
        within = [record for record in records if "snapshot" not in record and record["epoch"] < budget]
        passed = (record["epoch"] for record in within if (record[reads] or 0.0) > threshold)
        learnt = sum(record["train_accuracy"] or 0.0 for record in within)
        crossed = next(passed, None)
        last = within[-1] if within else {reads: 0.0, "train_loss": None}
        diverged = last["train_loss"] is None or not math.isfinite(last["train_loss"])
        whole = budget if diverged or not within else len(within)
        return Outcome(seed, run, len(within), crossed, float(last[reads] or 0.0), learnt / whole, diverged)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """One learning rate and one decay, and what became of the tuning seeds there."""

    place: Place
    lr: float
    decay: float
    budget: int
    seeds: tuple[Outcome, ...]

    @property
    def median(self) -> float:
        """Epochs to the threshold; a seed that did not pass counts as infinity."""
        return statistics.median(math.inf if seed.crossed is None else seed.crossed for seed in self.seeds)

    @property
    def failed(self) -> int:
        """Seeds that did not pass."""
        return sum(seed.crossed is None for seed in self.seeds)

    @property
    def mean_train_accuracy(self) -> float:
        return statistics.fmean(seed.mean_train_accuracy for seed in self.seeds)

    @property
    def accuracy(self) -> float:
        return statistics.fmean(seed.accuracy for seed in self.seeds)

    def rank(self, score: str) -> tuple[float, ...]:
        """Smaller is better: fewer failures, then a smaller median, then fewer epochs, then a higher accuracy at last."""
        if score == "train-accuracy":
            return (-self.mean_train_accuracy,)
        passed = [seed.crossed for seed in self.seeds if seed.crossed is not None]
        return self.failed, self.median, statistics.fmean(passed) if passed else math.inf, -self.accuracy

    def plain(self) -> dict[str, Any]:
        median = None if math.isinf(self.median) else self.median
        scores = {"median": median, "accuracy": self.accuracy, "mean_train_accuracy": self.mean_train_accuracy}
        settings = {"place": list(self.place), "lr": self.lr, "decay": self.decay, "budget": self.budget}
        return {**settings, **scores, "seeds": [seed.plain() for seed in self.seeds]}


class Known:
    """What an earlier table says of seeds, so that they need not be trained again, wherever their runs are."""

    def __init__(self, entry: Mapping[str, Any] | None = None) -> None:
        entry = entry or {}
        self._points = {point_ids(point): point for what in ("points", "further") for point in entry.get(what, ())}
        self._fresh: Sequence[Mapping[str, Any]] = entry.get("fresh", ())

    def point(self, ids: Sequence[str], budget: int, most: int) -> tuple[int, tuple[Outcome, ...]] | None:
        """Of the runs with these ids, and the budget it was said for: this one or a longer, up to `most`, or any where all
        passed within this."""
        found = self._points.get(tuple(ids))
        if found is None:
            return None
        passed = all(seed["crossed"] is not None and seed["crossed"] < budget for seed in found["seeds"])
        if not passed and not budget <= found["budget"] <= most:
            return None
        return budget if passed else found["budget"], _outcomes(found["seeds"])

    def fresh(self, ids: Sequence[str]) -> tuple[Outcome, ...] | None:
        return _outcomes(self._fresh) if self._fresh and _ids(self._fresh) == tuple(ids) else None


def point_ids(point: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a point's runs: which point it is, whatever the plan calls it."""
    return _ids(point["seeds"])


def _ids(seeds: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(seed["id"] for seed in seeds)


def _outcomes(seeds: Iterable[Mapping[str, Any]]) -> tuple[Outcome, ...]:
    return tuple(Outcome(**seed) for seed in seeds)
