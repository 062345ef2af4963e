"""What fresh seeds needed, and how two methods compare by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

AHEAD, LEVEL, BEHIND = "ahead", "level", "behind"
Side = Literal["stock", "rival", "form", "ours"]
"""A stock optimizer, another method, a form of EGD, or the form that is named ours."""


class FreshCost(NamedTuple):
    """What the fresh seeds of a method needed, one number each; less is better. A failed seed has infinity."""

    seeds: tuple[float, ...]
    bound: float
    """What a failed seed was given."""
    hardware: str = ""
    """Where they were measured, if that matters."""

    @property
    def median(self) -> float:
        return statistics.median(self.seeds)

    @property
    def failed(self) -> int:
        return sum(map(math.isinf, self.seeds))

    def against(self, baseline: FreshCost) -> str:
        """Ahead or behind if no seed of the one is as good as any of the other; else level."""
        if max(self.seeds) < min(baseline.seeds):
            return AHEAD
        return BEHIND if min(self.seeds) > max(baseline.seeds) else LEVEL

    def pairs_won(self, baseline: FreshCost) -> float:
        """The share of pairs of seeds in which this one needs less; a tie counts half."""
        won = [(one < other) + (one == other) / 2 for one in self.seeds for other in baseline.seeds]
        return statistics.fmean(won)

    def text(self, form: str = ".3g") -> str:
        """Median and range: `6.3 (6–7.1)`; `> 1500` if all seeds failed."""
        if self.failed == len(self.seeds):
            return self._text(self.median, form)
        low, high = self._text(min(self.seeds), form), self._text(max(self.seeds), form)
        between = " to " if self.failed else "–"
        return f"{self._text(self.median, form)} ({low}{between}{high})"

    def _text(self, value: float, form: str) -> str:
        return f"> {self.bound:{form}}" if math.isinf(value) else f"{value:{form}}"


class MethodCost(NamedTuple):
    """A method of a comparison."""

    method: str
    title: str
    side: Side
    cost: FreshCost


def fastest_stock(methods: Sequence[MethodCost]) -> MethodCost | None:
    """The stock optimizer with the smallest median; of equals the one with fewer failed seeds."""
    stock = [each for each in methods if each.side == "stock"]
    return min(stock, key=lambda each: (each.cost.median, each.cost.failed), default=None)


def ratios_to_stock(families: Mapping[str, Sequence[MethodCost]]) -> dict[str, dict[str, float]]:
    """For each method and family, its median over that of the fastest stock optimizer; infinite where it fails.

    Families without a stock optimizer that passes are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for family, methods in families.items():
        best = fastest_stock(methods)
        if best is not None and math.isfinite(best.cost.median) and best.cost.median > 0:
            for each in methods:
                found.setdefault(each.method, {})[family] = each.cost.median / best.cost.median
    return found
