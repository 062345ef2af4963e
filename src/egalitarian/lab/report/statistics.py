"""Medians and spreads over seeds where some have not passed: those count as "> bound", never as missing.

A seed that did not pass has a bound: the epochs within which it did not. The median is "> N" when half of the seeds or more
did not pass, N being the smallest of their bounds: at least half of the seeds need more than N epochs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from egalitarian.lab.report.counts import Count
from egalitarian.lab.report.gather import Summary


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


def estimate(seeds: Sequence[Summary]) -> Estimate:
    """Epochs to the threshold over seeds."""
    passed = sorted(float(seed.crossed) for seed in seeds if seed.crossed is not None)
    bounds = sorted(float(seed.bound) for seed in seeds if seed.crossed is None)
    states = [seed.state for seed in seeds]
    quantiles = [quantile(passed, bounds, share) for share in (0.5, 0.0, 1.0, 0.25, 0.75)] if seeds else [None] * 5
    return Estimate(len(seeds), len(passed), states.count("diverged"), states.count("unfinished"), *quantiles)


def quantile(passed: Sequence[float], bounds: Sequence[float], share: float) -> Count:
    """The share-quantile, linear between neighbours, the censored above all others. Both lists sorted, not both empty."""
    place = share * (len(passed) + len(bounds) - 1)
    lower, upper = math.floor(place), math.ceil(place)
    if upper < len(passed):
        return Count(passed[lower] + (place - lower) * (passed[upper] - passed[lower]))
    if share == 1.0:
        return Count(max(*passed, *bounds, 0.0), ">")
    return Count(bounds[0], ">")
