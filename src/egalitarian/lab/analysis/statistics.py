"""Medians and spreads over seeds where some have not passed: those count as larger than all others, never as missing.

A seed that did not pass has a bound: the epochs within which it did not. The median is over all seeds, and "> N" when half
of them or more did not pass, N being the smallest of their bounds: at least half of the seeds need more than N epochs. The
range is from the smallest to the largest, and the largest is "> N" when any seed did not pass. A seed that was trained for
fewer epochs than others needed may turn out to be below these: a median that this could move is a bound, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from egalitarian.lab.analysis.counts import Count

if TYPE_CHECKING:  # so that other rooms may count seeds without pandas
    from egalitarian.lab.analysis.gather import Summary


@dataclass(frozen=True)
class Estimate:
    """What the seeds of one method come to. `n` may be 0, and there is no median then."""

    n: int
    passed: int
    diverged: int
    unfinished: int
    """Not passed, and their budget not spent: what is said of them may change."""
    median: Count | None
    low: Count | None
    high: Count | None
    lower_quartile: Count | None
    upper_quartile: Count | None
    slowest: float | None
    """The largest of the seeds that passed."""
    bound: float | None
    """The smallest number of epochs within which a seed did not pass."""

    @property
    def failed(self) -> int:
        """Seeds that did not pass, for whatever reason."""
        return self.n - self.passed

    @property
    def settled(self) -> Count | None:
        """The median, unless it is a bound only because seeds are unfinished: that says nothing."""
        return None if self.median is not None and self.median.sign and self.unfinished else self.median

    @property
    def spread(self) -> str:
        """min–max, in words."""
        if self.low is None or self.high is None:
            return ""
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}{' to ' if self.high.sign else '–'}{self.high}"

    def __str__(self) -> str:
        if self.median is None:
            return "not run"
        spread = f" ({self.spread})" if self.n > 1 and self.low != self.high else ""
        return f"{self.median}{spread}{', unfinished' if self.unfinished else ''}"


def estimate(seeds: Sequence[Summary], steps: int | None = None) -> Estimate:
    """Epochs to the threshold over seeds, from 0; or, with so many `steps` an epoch, steps, through the one that passes."""
    states = [seed.state for seed in seeds]
    counts = {"diverged": states.count("diverged"), "unfinished": states.count("unfinished")}
    if steps is None:
        return _estimate([(seed.crossed, seed.bound) for seed in seeds], **counts)
    taken = [(None if seed.crossed is None else steps * (seed.crossed + 1), steps * seed.bound) for seed in seeds]
    return _estimate(taken, **counts)


def median_and_range(seeds: Sequence[tuple[int | None, int]]) -> str:
    """`20 (10–40)`, `20 (10 to > 1000)`, `> 1000 (10 to > 1000)`: for any room, from what each seed came to.

    Args:
        seeds: of each the epoch at which it passed, or None, and the epochs it was trained.
    """
    return str(_estimate(seeds))


def _estimate(seeds: Sequence[tuple[int | None, int]], diverged: int = 0, unfinished: int = 0) -> Estimate:
    """From (epoch of passing or None, bound) of each seed."""
    passed = sorted(float(crossed) for crossed, _ in seeds if crossed is not None)
    bounds = sorted(float(bound) for crossed, bound in seeds if crossed is None)
    shares = (0.5, 0.0, 1.0, 0.25, 0.75)
    median, low, high, lower, upper = [quantile(passed, bounds, share) if seeds else None for share in shares]
    ends = (max(passed, default=None), min(bounds, default=None))
    return Estimate(len(seeds), len(passed), diverged, unfinished, median, low, high, lower, upper, *ends)


def quantile(passed: Sequence[float], bounds: Sequence[float], share: float) -> Count:
    """The share-quantile, linear between neighbours, the censored above all others. Both lists sorted, not both empty.

    Where a bound is so small that it might as well be below, it is what is left if the censored are at their bounds.
    """
    place = share * (len(passed) + len(bounds) - 1)
    if math.ceil(place) < len(passed):
        above, at_least = _between(passed, place), _between(sorted([*passed, *bounds]), place)
        return Count(above) if at_least == above else Count(at_least, ">")
    if share == 1.0:
        return Count(max(*passed, *bounds, 0.0), ">")
    return Count(bounds[0], ">")


def _between(numbers: Sequence[float], place: float) -> float:
    """Linear between the two neighbours of a place."""
    lower, upper = numbers[math.floor(place)], numbers[math.ceil(place)]
    return lower + (place - math.floor(place)) * (upper - lower)
