"""Average gains over tasks, as the paper defines them: the mean over tasks of the baseline's epochs over the method's.

Our gains are ratios of medians. Their spread is that of averages from one seed per cell, which is what the paper has.
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
from egalitarian.lab.analysis.statistics import Estimate, cost_of, estimate, seconds_to_threshold
from egalitarian.lab.config import Gain

DRAWS = 4000
FEWEST = 3
"""Seeds that every cell must have for a spread."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class AverageGain:
    """One row of a table of average gains."""

    plan: Gain
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
    n: int
    """Seeds in the smallest cell."""
    unfinished: bool


class TaskGain(NamedTuple):
    """The gain on one experiment."""

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
    smallest = min(map(len, cells), default=0)
    return AverageGain(
        plan=plan,
        epochs=mean(task.epochs for task in counted.values() if task.epochs),
        seconds=mean(task.seconds for task in counted.values() if task.seconds),
        timed=tuple(name for name, task in counted.items() if task.seconds),
        counted={name: task.best or "" for name, task in counted.items()},
        left_out={
            name: tasks[name].left_out if name in tasks else "by definition" for name in experiments if name not in counted
        },
        spread=_spread(run) if smallest >= FEWEST else None,
        n=smallest,
        unfinished=any(seed.state == "unfinished" for cell in cells for seed in cell),
    )


def _task(gathered: Gathered, plan: Gain, experiment: str) -> TaskGain:
    baseline = gathered.of(experiment, plan.baseline)
    found = {method: gathered.of(experiment, method) for method in plan.methods}
    methods = {method: seeds for method, seeds in found.items() if seeds}
    best = _best({method: estimate(seeds) for method, seeds in methods.items()})
    plain = estimate(baseline).settled_median
    # a bound would depend on the budget alone, and dominate the average
    if best is None or plain is None or not plain.is_exact:
        return TaskGain(baseline, methods, best, None, None)
    epochs = ratio(plain, estimate(methods[best]).settled_median)
    return TaskGain(baseline, methods, best, epochs, _fastest(baseline, list(methods.values())))


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


def _spread(tasks: Sequence[TaskGain]) -> tuple[float, float] | None:
    """From `DRAWS` draws of one seed per cell. A draw leaves out tasks whose baseline or methods did not pass."""
    draw = np.random.default_rng(0)
    gains = []
    for task in tasks:
        over = _drawn(task.baseline, draw)
        under = np.min([_drawn(seeds, draw) for seeds in task.methods.values()], axis=0)
        valid = np.isfinite(over) & np.isfinite(under) & (under > 0)
        gains.append(np.divide(over, under, out=np.full(DRAWS, np.nan), where=valid))
    stacked = np.stack(gains)
    counts = np.isfinite(stacked).sum(0)
    means = np.nansum(stacked, axis=0)[counts > 0] / counts[counts > 0]
    if not len(means):
        return None
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _drawn(seeds: Sequence[RunSummary], draw: np.random.Generator) -> Array:
    """(DRAWS,): epochs of seeds drawn at random, infinite for a seed that did not pass."""
    crossings = [seed.outcome.crossed for seed in seeds]
    epochs = np.array([np.inf if crossed is None else crossed for crossed in crossings], dtype=np.float64)
    return epochs[draw.integers(len(epochs), size=DRAWS)]
