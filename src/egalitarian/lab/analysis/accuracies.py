"""Accuracies over runs: at the end of full-length ones, and the mean of training accuracy over all epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from egalitarian.lab.analysis.gather import Summary


class Value(NamedTuple):
    """Of one run: what it has, and how far that moves within the run."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Accuracy:
    """What the runs of one method come to. `n` may be 0, and there is no median then."""

    n: int
    """Runs that count: those that went through their whole budget."""
    diverged: int
    others: int
    """Runs that stopped before, and did not diverge."""
    median: float | None
    low: float | None
    high: float | None

    @property
    def spread(self) -> str:
        """min–max in percent."""
        if self.low is None or self.high is None:
            return ""
        ends = [in_percent(end) for end in (self.low, self.high)]
        return "–".join(dict.fromkeys(ends))

    def __str__(self) -> str:
        lost = f"{self.diverged} diverged" if self.diverged else ""
        if self.median is None:
            return lost
        spread = f" ({self.spread})" if "–" in self.spread else ""
        return f"{in_percent(self.median)}{spread}{', ' * bool(lost)}{lost}"


def final_accuracy(seeds: Sequence[Summary]) -> Accuracy:
    """Test accuracy after the last epoch; the spread is that of the last tenth of the epochs, over all full-length runs.

    Where some stopped past the threshold, one that did not pass it, or only at the very end, is of full length by that. It
    does not count, unless it is the first seed, which is taken to the end whatever it does.
    """
    full = [seed for seed in seeds if seed.full]
    if any(seed.crossed is not None and not seed.full and not seed.diverged for seed in seeds):
        first = min(seed.seed for seed in seeds)
        full = [seed for seed in full if seed.extended or seed.seed == first]
    return _accuracy(seeds, {seed.seed: _end(seed) for seed in full})


def mean_train_accuracy(seeds: Sequence[Summary]) -> Accuracy:
    """The mean of training accuracy over all epochs; the spread is over seeds."""
    means = {seed.seed: seed.mean_train_accuracy for seed in seeds if seed.full}
    return _accuracy(seeds, {seed: None if mean is None else Value(mean, mean, mean) for seed, mean in means.items()})


def _end(seed: Summary) -> Value | None:
    return None if seed.test_accuracy is None or seed.end is None else Value(seed.test_accuracy, *seed.end)


def _accuracy(seeds: Sequence[Summary], full: dict[int, Value | None]) -> Accuracy:
    values = [value for value in full.values() if value is not None]
    diverged = sum(seed.diverged for seed in seeds)
    counts = (len(values), diverged, len(seeds) - len(values) - diverged)
    if not values:
        return Accuracy(*counts, None, None, None)
    median = float(np.median([value.value for value in values]))
    return Accuracy(*counts, median, min(value.low for value in values), max(value.high for value in values))


def in_percent(share: float) -> str:
    """To a tenth, as the paper prints it."""
    return f"{100 * share:.1f}"
