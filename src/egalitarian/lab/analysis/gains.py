"""Average gains over tasks, as the paper defines them: the mean over tasks of the baseline's epochs over the method's.

Our gains are ratios of medians. Their spread is that of averages from one seed per cell, which is what the paper has. Both,
and the paper's average that they are compared with, are over the tasks that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.analysis.counts import Count, mean, ratio
from egalitarian.lab.analysis.gathered import Gathered
from egalitarian.lab.analysis.reading import RunSummary
from egalitarian.lab.analysis.rows import paper_gain
from egalitarian.lab.analysis.statistics import Estimate, Quartiles, cost_of, estimate, seconds_to_threshold
from egalitarian.lab.config import Gain

DRAWS = 4000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class AverageGain:
    """One row of a table of average gains."""

    plan: Gain
    paper: float | None
    """The paper's average over the experiments that count, from its own cells; None if it lacks one."""
    epochs: Count | None
    seconds: Count | None
    """Over the experiments where method and baseline were timed on the same platform."""
    timed: tuple[str, ...]
    """These experiments."""
    counted: Mapping[str, str]
    """From each experiment that counts to its best method."""
    left_out: Mapping[str, str]
    """From each experiment that does not count to the reason."""
    spread: tuple[float, float] | None
    """The central 95 % of the averages from one seed per cell."""
    quartiles: Quartiles | None
    """Of the same averages."""
    n: int
    """Seeds in the smallest cell."""
    unfinished: bool


class TaskGain(NamedTuple):
    """The gain on one experiment."""

    paper: float | None
    """The paper's, of its best method."""
    baseline: list[RunSummary]
    methods: dict[str, list[RunSummary]]
    best: str | None
    """The method that counts."""
    epochs: Count | None
    seconds: Count | None

    @property
    def cells(self) -> list[list[RunSummary]]:
        return [self.baseline, *self.methods.values()]

    @property
    def left_out(self) -> str:
        """The reason why it does not count; empty if it counts."""
        if not self.baseline or not self.methods:
            return "not run"
        if self.epochs:
            return ""
        if any(seed.state == "unfinished" for cell in self.cells for seed in cell):
            return "unfinished"
        medians = [estimate(cell).median for cell in self.cells]
        passes = all(median is not None and median.is_exact for median in medians)
        return "passes at epoch 0" if passes else "half of the seeds or more do not pass"


def average_gain(gathered: Gathered, plan: Gain, experiments: Sequence[str]) -> AverageGain:
    """The mean over the experiments where the baseline and one of the methods pass."""
    tasks = {name: _task(gathered, plan, name) for name in experiments if name not in plan.leaves_out}
    counted = {name: task for name, task in tasks.items() if not task.left_out}
    run = [task for task in tasks.values() if task.baseline and task.methods]
    cells = [cell for task in run for cell in task.cells]
    theirs = [task.paper for task in counted.values() if task.paper is not None]
    spread, quartiles = _of_single_seeds(list(counted.values()))
    return AverageGain(
        plan=plan,
        paper=sum(theirs) / len(theirs) if theirs and len(theirs) == len(counted) else None,
        epochs=mean(task.epochs for task in counted.values() if task.epochs),
        seconds=mean(task.seconds for task in counted.values() if task.seconds),
        timed=tuple(name for name, task in counted.items() if task.seconds),
        counted={name: task.best or "" for name, task in counted.items()},
        left_out={
            name: tasks[name].left_out if name in tasks else "by definition" for name in experiments if name not in counted
        },
        spread=spread,
        quartiles=quartiles,
        n=min(map(len, cells), default=0),
        unfinished=any(seed.state == "unfinished" for cell in cells for seed in cell),
    )


def _task(gathered: Gathered, plan: Gain, experiment: str) -> TaskGain:
    baseline = gathered.of(experiment, plan.baseline)
    found = {method: gathered.of(experiment, method) for method in plan.methods}
    methods = {method: seeds for method, seeds in found.items() if seeds}
    (loaded,) = gathered.named_in([experiment])
    theirs = [gain for method in plan.methods if (gain := paper_gain(loaded, method, plan.baseline)) is not None]
    paper = max(theirs, default=None)
    best = _best({method: estimate(seeds) for method, seeds in methods.items()})
    plain = estimate(baseline).settled_median
    # a bound would depend on the budget alone, and dominate the average
    if best is None or plain is None or not plain.is_exact:
        return TaskGain(paper, baseline, methods, best, None, None)
    epochs = ratio(plain, estimate(methods[best]).settled_median)
    return TaskGain(paper, baseline, methods, best, epochs, _fastest(baseline, list(methods.values())))


def _best(estimates: Mapping[str, Estimate]) -> str | None:
    """The method with the smallest median; None if no median passed."""
    medians = {name: found.median.value for name, found in estimates.items() if found.median and found.median.is_exact}
    return min(medians, key=lambda name: medians[name]) if medians else None


def _fastest(baseline: Sequence[RunSummary], methods: Sequence[Sequence[RunSummary]]) -> Count | None:
    """The best gain in seconds; None if the baseline was timed on another platform, or no method passed."""
    cost = cost_of(baseline)
    others = [(seeds, cost_of(seeds)) for seeds in methods]
    same = [(seeds, found) for seeds, found in others if found and cost and found.platform == cost.platform]
    over = seconds_to_threshold(estimate(baseline), cost)
    gains = [ratio(over, seconds_to_threshold(estimate(seeds), found)) for seeds, found in same]
    known = [gain for gain in gains if gain is not None and gain.sign != "<"]
    return max(known, default=None)


def _of_single_seeds(tasks: Sequence[TaskGain]) -> tuple[tuple[float, float] | None, Quartiles | None]:
    """The central 95 % and the quartiles of averages from one seed per cell. A draw counts if it passes on every task."""
    draw = np.random.default_rng(0)
    gains = []
    for task in tasks:
        over = _drawn(task.baseline, draw)
        under = np.min([_drawn(seeds, draw) for seeds in task.methods.values()], axis=0)
        valid = np.isfinite(over) & np.isfinite(under) & (under > 0)
        gains.append(np.divide(over, under, out=np.full(DRAWS, np.nan), where=valid))
    means = np.mean(gains, axis=0) if gains else np.empty(0)
    means = means[np.isfinite(means)]
    if not len(means):
        return None, None
    low, lower, middle, upper, high = map(float, np.quantile(means, [0.025, 0.25, 0.5, 0.75, 0.975]))
    return (low, high), Quartiles(lower, middle, upper)


def _drawn(seeds: Sequence[RunSummary], draw: np.random.Generator) -> Array:
    """(DRAWS,): epochs of seeds drawn at random, infinite for a seed that did not pass."""
    crossings = [seed.outcome.crossed for seed in seeds]
    epochs = np.array([np.inf if crossed is None else crossed for crossed in crossings], dtype=np.float64)
    return epochs[draw.integers(len(epochs), size=DRAWS)]
