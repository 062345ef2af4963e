"""A number, or only a bound of it, and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NOTHING = "–"
"""In a cell that has nothing to say."""


class Count(NamedTuple):
    """A number of epochs (or seconds, or a ratio), or a bound of it."""

    value: float
    sign: str = ""
    """Empty: the number itself; ">": it is larger; "<": it is smaller."""

    def __str__(self) -> str:
        return f"{self.sign} {number(self.value)}".strip()

    @property
    def plain(self) -> str:
        """For machines: >1500."""
        value = f"{self.value:.6g}" if abs(self.value) < 1e5 else f"{self.value:.1f}".removesuffix(".0")
        return f"{self.sign}{value}"


def ratio(over: Count | None, under: Count | None) -> Count | None:
    """over / under; a bound where one of them is; None where nothing can be said."""
    if over is None or under is None or not under.value or (over.sign and under.sign):
        return None
    if not over.value and (over.sign or under.sign):
        return None  # a bound of nothing
    return Count(over.value / under.value, over.sign or {">": "<", "<": ">", "": ""}[under.sign])


def mean(numbers: Iterable[Count]) -> Count | None:
    """A bound if all bounds among them point the same way; None of none, or of bounds both ways."""
    listed = list(numbers)
    signs = {item.sign for item in listed if item.sign}
    if not listed or len(signs) > 1:
        return None
    return Count(sum(item.value for item in listed) / len(listed), next(iter(signs), ""))


def number(value: float) -> str:
    """As short as it can be read: to halves above 1000 (a median of two), else four digits at most."""
    return f"{round(2 * value) / 2:.1f}".removesuffix(".0") if abs(value) >= 1000 else f"{value:.4g}"


def measured(value: Count | float) -> str:
    """A time, which is known to three digits at best."""
    count = value if isinstance(value, Count) else Count(value)
    return str(count._replace(value=float(f"{count.value:.3g}")))


def times(gain: Count | float) -> str:
    """A gain: 46.5×."""
    count = gain if isinstance(gain, Count) else Count(gain)
    number = f"{count.value:.1f}" if count.value >= 0.1 else f"{count.value:.2g}"
    return f"{count.sign} {number}×".strip()


def percent(share: float) -> str:
    return f"{100 * share:g} %"
