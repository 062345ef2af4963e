"""A number or only a bound of it: ratios, means and quantiles of such, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Value = str | int | float | None
"""A plain value, as CSV and JSON files have it."""
NOTHING = "–"
"""The text of a cell without a value."""


class Count(NamedTuple):
    """A number of epochs, of seconds, or a ratio of them; or a bound of it."""

    value: float
    sign: str = ""
    """Empty: the number itself; ">": it is larger; "<": it is smaller."""

    def __str__(self) -> str:
        return f"{self.sign} {number(self.value)}".strip()

    @property
    def is_exact(self) -> bool:
        """Whether it is the number itself, not a bound."""
        return not self.sign

    @property
    def plain(self) -> str:
        """The text for CSV and JSON files: >1500."""
        value = f"{self.value:.6g}" if abs(self.value) < 1e5 else f"{self.value:.1f}".removesuffix(".0")
        return f"{self.sign}{value}"


def ratio(over: Count | None, under: Count | None) -> Count | None:
    """over / under; a bound if one of them is a bound, None if both are or if it is not defined."""
    if over is None or under is None or not under.value or (over.sign and under.sign):
        return None
    if not over.value and (over.sign or under.sign):
        return None  # a bound of 0 carries no information
    return Count(over.value / under.value, over.sign or {">": "<", "<": ">", "": ""}[under.sign])


def mean(numbers: Iterable[Count]) -> Count | None:
    """A bound if one of the numbers is a bound; None without numbers, or if there are bounds of both signs."""
    listed = list(numbers)
    signs = {item.sign for item in listed if item.sign}
    if not listed or len(signs) > 1:
        return None
    return Count(sum(item.value for item in listed) / len(listed), next(iter(signs), ""))


def number(value: float) -> str:
    """Four digits at most; above 1000 to halves, as a median of two whole numbers can be one."""
    return f"{round(2 * value) / 2:.1f}".removesuffix(".0") if abs(value) >= 1000 else f"{value:.4g}"


def measured(value: Count | float) -> str:
    """The text of a measured time, which is known to three digits at best."""
    count = value if isinstance(value, Count) else Count(value)
    return str(count._replace(value=float(f"{count.value:.3g}")))


def times(gain: Count | float) -> str:
    """The text of a gain: 46.5×."""
    count = gain if isinstance(gain, Count) else Count(gain)
    number = f"{count.value:.1f}" if count.value >= 0.1 else f"{count.value:.2g}"
    return f"{count.sign} {number}×".strip()


def percent(share: float) -> str:
    """The text of a threshold, with all its digits: 99.9 %."""
    return f"{100 * share:g} %"


def in_percent(share: float) -> str:
    """The text of an accuracy in percent, to a tenth, as the paper prints it: 91.9."""
    return f"{100 * share:.1f}"


def quantile(passed: Sequence[float], bounds: Sequence[float], share: float) -> Count:
    """The share-quantile, linear between neighbours. Every seed with a bound counts as larger than all that passed.

    If a bound is below the quantile, its seed might be, too. The quantile is then a bound: the value it would have if all
    seeds that did not pass were at their bounds.

    Args:
        passed: of the seeds that passed, sorted.
        bounds: of the seeds that did not, sorted. There must be at least one seed.
    """
    index = share * (len(passed) + len(bounds) - 1)
    if math.ceil(index) < len(passed):
        largest, smallest = _between(passed, index), _between(sorted([*passed, *bounds]), index)
        return Count(largest) if smallest == largest else Count(smallest, ">")
    if share == 1.0:
        return Count(max(*passed, *bounds, 0.0), ">")
    return Count(bounds[0], ">")


def _between(numbers: Sequence[float], index: float) -> float:
    """Linear between the two neighbours of a fractional index."""
    lower, upper = numbers[math.floor(index)], numbers[math.ceil(index)]
    return lower + (index - math.floor(index)) * (upper - lower)
