"""Whether early gradient spectra predict when a network groks: rank correlations over all stored runs that did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from egalitarian.lab.analysis.counts import NOTHING, Value
from egalitarian.lab.analysis.gathered import Gathered

EPOCHS = (0, 1, 2, 5, 10)
"""The epochs whose spectra are read, at their first batch."""
FEWEST = 5
"""Points that a group must have for a correlation."""
CHANCE = 0.05
"""The p-value below which a correlation is significant."""
MEASURES = ("condition", "effective_rank")

Group = Sequence[tuple[float, float]]
"""Points of an early measure and the epoch that passed."""


class EarlyPoint(NamedTuple):
    """One run that passed its threshold: an early measure of its spectrum, and the epoch that passed."""

    experiment: str
    method: str
    seen: float
    crossed: int


class Correlations(NamedTuple):
    """The rank correlations of several groups of points."""

    values: tuple[float, ...]
    significant: int

    @property
    def median(self) -> float | None:
        return float(np.median(self.values)) if self.values else None

    def __str__(self) -> str:
        if self.median is None:
            return NOTHING
        low, high = min(self.values), max(self.values)
        return f"{self.median:+.2f} ({low:+.2f} to {high:+.2f}); {self.significant} of {len(self.values)}"


class EarlyRow(NamedTuple):
    """One measure at one epoch."""

    measure: str
    epoch: int
    runs: int
    seeds: Correlations
    """Between the seeds of a method."""
    methods: Correlations
    """Between the methods of a task, each by the medians of its seeds."""

    def record(self) -> dict[str, Value]:
        """One row of the CSV file."""
        found: dict[str, Value] = {"measure": self.measure, "epoch": self.epoch, "runs": self.runs}
        for name, own in (("seeds", self.seeds), ("methods", self.methods)):
            found[f"{name}_groups"] = len(own.values)
            found[f"{name}_median_rho"] = own.median
            found[f"{name}_significant"] = own.significant
        return found


def early_rows(gathered: Gathered, experiments: Sequence[str]) -> list[EarlyRow]:
    """Every measure at every epoch."""
    rows = []
    for measure in MEASURES:
        for epoch in EPOCHS:
            points = list(_points(gathered, experiments, measure, epoch))
            seeds, methods = correlations(_by_method(points)), correlations(_medians(points))
            rows.append(EarlyRow(measure, epoch, len(points), seeds, methods))
    return rows


def correlations(groups: Mapping[tuple[str, ...], Group]) -> Correlations:
    """Spearman's rank correlation of every group that has enough points, not all of them equal."""
    from scipy import stats  # type: ignore[import-untyped]  # slow to import, and one table alone needs it

    values, significant = [], 0
    for points in groups.values():
        seen, crossed = np.array(points, dtype=float).T
        if len(points) >= FEWEST and len(set(seen)) > 1 and len(set(crossed)) > 1:
            found = stats.spearmanr(seen, crossed)
            values.append(float(found.statistic))
            significant += bool(found.pvalue < CHANCE)
    return Correlations(tuple(values), significant)


def _points(gathered: Gathered, experiments: Sequence[str], measure: str, epoch: int) -> Iterator[EarlyPoint]:
    """The runs that passed later than the epoch, and have a spectrum of it."""
    for run, reading in zip(gathered.runs, gathered.readings, strict=True):
        curve, crossed = reading.curve, run.outcome.crossed
        if crossed is None or crossed <= epoch or run.experiment not in experiments or "sigma_max" not in curve:
            continue
        then = curve[curve.epoch == epoch]
        if len(then):
            row = then.iloc[0]
            with np.errstate(all="ignore"):
                seen = row.sigma_max / row.sigma_min if measure == "condition" else row[measure]
            if np.isfinite(seen):
                yield EarlyPoint(run.experiment, run.method, float(seen), crossed)


def _by_method(points: Sequence[EarlyPoint]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault((point.experiment, point.method), []).append((point.seen, point.crossed))
    return groups


def _medians(points: Sequence[EarlyPoint]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """By task, with a point for every method."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for (task, _), own in _by_method(points).items():
        seen, crossed = np.median(np.array(own), 0)
        groups.setdefault((task,), []).append((float(seen), float(crossed)))
    return groups
