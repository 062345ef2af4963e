"""Do early gradient spectra tell when a network will grok? Rank correlations over all stored runs that did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from egalitarian.lab.analysis.counts import NOTHING
from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.config.contents import TablePlan
from egalitarian.lab.report.render import Block, Table

EPOCHS = (0, 1, 2, 5, 10)
"""At whose first batch the spectrum is read."""
FEWEST = 5
"""Points without which no correlation is told."""
CHANCE = 0.05
MEASURES = {"condition": "condition number", "effective_rank": "effective rank"}


class Point(NamedTuple):
    """One run that passed its threshold: what was seen early, and when it passed."""

    experiment: str
    method: str
    seen: float
    crossed: int


class Found(NamedTuple):
    """The rank correlations of several groups of points."""

    values: tuple[float, ...]
    significant: int

    @property
    def said(self) -> str:
        if not self.values:
            return NOTHING
        low, middle, high = min(self.values), float(np.median(self.values)), max(self.values)
        return f"{middle:+.2f} ({low:+.2f} to {high:+.2f}); {self.significant} of {len(self.values)}"


def early_table(plan: TablePlan, gathered: Gathered) -> Table:
    rows, records = [], []
    for measure, words in MEASURES.items():
        for epoch in EPOCHS:
            points = list(_points(gathered, plan.experiments, measure, epoch))
            seeds, methods = correlations(_by_method(points)), correlations(_medians(points))
            rows.append((words, f"{epoch}", f"{len(points)}", seeds.said, methods.said))
            records.append({"measure": measure, "epoch": epoch, "runs": len(points), **_numbers(seeds, methods)})
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "of the first batch's gradient",
            "epoch",
            "runs",
            "between seeds of a method",
            "between methods of a task",
        ),
        blocks=(Block("", tuple(rows)),),
        notes=NOTES,
        records=tuple(records),
    )


NOTES = (
    "Spearman's rank correlation with the epoch at which test accuracy passes the threshold. Only runs that passed later "
    "than the epoch of the spectrum count.",
    "Each entry is the median over groups (smallest to largest), and how many groups are beyond chance "
    f"(p < {CHANCE:g}, each by itself).",
    "A group is the seeds of one method on one task, or the methods of one task, each by the medians of its seeds. It has "
    f"{FEWEST} members or more.",
    "Methods differ in much else, so the last column says nothing about a cause.",
)


def correlations(groups: Mapping[object, Sequence[tuple[float, float]]]) -> Found:
    """Of every group that is large enough and not all alike."""
    values, significant = [], 0
    for points in groups.values():
        seen, crossed = np.array(points, dtype=float).T
        if len(points) >= FEWEST and len(set(seen)) > 1 and len(set(crossed)) > 1:
            outcome = stats.spearmanr(seen, crossed)
            values.append(float(outcome.statistic))
            significant += bool(outcome.pvalue < CHANCE)
    return Found(tuple(values), significant)


def _points(gathered: Gathered, experiments: Sequence[str], measure: str, epoch: int) -> Iterator[Point]:
    for run, reading in zip(gathered.runs, gathered.readings, strict=True):
        curve = reading.curve
        if run.crossed is None or run.crossed <= epoch or run.experiment not in experiments or "sigma_max" not in curve:
            continue
        then = curve[curve.epoch == epoch]
        if len(then):
            row = then.iloc[0]
            with np.errstate(all="ignore"):
                seen = row.sigma_max / row.sigma_min if measure == "condition" else row[measure]
            if np.isfinite(seen):
                yield Point(run.experiment, run.method, float(seen), run.crossed)


def _by_method(points: Sequence[Point]) -> dict[object, list[tuple[float, float]]]:
    groups: dict[object, list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault((point.experiment, point.method), []).append((point.seen, point.crossed))
    return groups


def _medians(points: Sequence[Point]) -> dict[object, list[tuple[float, float]]]:
    """By task, a point for every method."""
    groups: dict[object, list[tuple[float, float]]] = {}
    for key, own in _by_method(points).items():
        seen, crossed = np.median(np.array(own), 0)
        groups.setdefault(key[0], []).append((float(seen), float(crossed)))  # type: ignore[index]
    return groups


def _numbers(seeds: Found, methods: Found) -> dict[str, float | int | None]:
    said: dict[str, float | int | None] = {}
    for name, found in (("seeds", seeds), ("methods", methods)):
        said[f"{name}_groups"] = len(found.values)
        said[f"{name}_median_rho"] = float(np.median(found.values)) if found.values else None
        said[f"{name}_significant"] = found.significant
    return said
