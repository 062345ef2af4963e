"""One claim of the paper at one setting: the printed value, the corrected one, and the simulated one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from egalitarian.lab.theory.distributions import Array

Verdict = Literal["holds", "fails as printed"]
ROUNDING = 1e-9


@dataclass(frozen=True)
class ToyClaim:
    """printed `relation` measured, up to `sigmas` standard errors and `slack`.

    Args:
        key: the claim's short name; rows with one key are one claim over a grid.
        where: the part of the paper.
        claim: what is claimed, in a few words.
        setting: the grid point.
        printed: the value the paper's formula or sentence gives there.
        corrected: the value of the corrected formula (the printed one where nothing is wrong).
        measured: mean over simulation.
        standard_error: of that mean.
        slack: allowed deviation besides noise: one step for a rounded length, a tenth for an exponent.
        sigmas: how many standard errors a value may be away.
        relation: "=", or "<" and ">" where the paper claims a bound on what is measured.
    """

    key: str
    where: str
    claim: str
    setting: str
    printed: float
    corrected: float
    measured: float
    standard_error: float
    sigmas: float
    slack: float = 0.0
    relation: Literal["=", "<", ">"] = "="

    @property
    def allowed(self) -> float:
        """sigmas x standard error + slack + rounding."""
        return self.sigmas * self.standard_error + self.slack + ROUNDING * max(1.0, abs(self.measured))

    @property
    def verdict(self) -> Verdict:
        off = self.measured - self.printed
        miss = {"=": abs(off), "<": off, ">": -off}[self.relation]
        return "holds" if miss <= self.allowed else "fails as printed"

    @property
    def corrected_holds(self) -> bool:
        return bool(abs(self.measured - self.corrected) <= self.allowed)


@dataclass(frozen=True)
class ClaimSummary:
    """One claim over its grid: at how many points it holds as printed, at how many corrected, and its worst point."""

    key: str
    where: str
    claim: str
    points: int
    printed_holds: int
    corrected_holds: int
    worst: ToyClaim

    @property
    def verdict(self) -> Verdict:
        return "holds" if self.printed_holds == self.points else "fails as printed"


def summarize(rows: Iterable[ToyClaim]) -> list[ClaimSummary]:
    """Rows grouped by key, in their order. The worst point is the one whose printed value is farthest off."""
    groups: dict[str, list[ToyClaim]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[ToyClaim]) -> ClaimSummary:
    def miss(row: ToyClaim) -> float:
        off = abs(row.measured - row.printed)
        return (math.inf if math.isnan(off) else off) / row.allowed

    failing = [row for row in group if row.verdict != "holds"]
    first = group[0]
    return ClaimSummary(
        key=first.key,
        where=first.where,
        claim=first.claim,
        points=len(group),
        printed_holds=len(group) - len(failing),
        corrected_holds=sum(row.corrected_holds for row in group),
        worst=max(failing or group, key=miss),
    )


def mean_and_error(values: Array) -> tuple[Array, Array]:
    """Mean over the first axis and its standard error, sd / sqrt(R)."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def slopes(x: Array, y: Array) -> Array:
    """The least-squares slope of each row of `y` (R, K) against `x` (K,)."""
    centred = x - x.mean()
    fitted: Array = (y - y.mean(axis=1, keepdims=True)) @ centred / (centred @ centred)
    return fitted


def estimate(values: Iterable[float]) -> tuple[float, float]:
    """Mean of some numbers and its standard error."""
    mean, error = mean_and_error(np.array(list(values), dtype=np.float64))
    return float(mean), float(error)
