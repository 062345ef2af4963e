"""Average gains over tasks, as the paper makes them: for each task the baseline's epochs over the method's, then the mean.

Ours are ratios of medians. Their spread is that of the same average made as the paper's is, from one seed per cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.analysis.counts import Count, mean, ratio
from egalitarian.lab.analysis.gather import Gathered, Summary
from egalitarian.lab.analysis.rows import cost_of, seconds_of
from egalitarian.lab.analysis.statistics import Estimate, estimate
from egalitarian.lab.config.contents import Gain

DRAWS = 4000
FEWEST = 3
"""Seeds in every cell, below which no spread is given."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class AverageGain:
    """One row of a table of average gains."""

    plan: Gain
    epochs: Count | None
    seconds: Count | None
    """Over those counted where method and baseline were timed on the same platform."""
    timed: tuple[str, ...]
    """The experiments that are so."""
    counted: Mapping[str, str]
    """Experiment to the method that was best there."""
    left_out: Mapping[str, str]
    """Experiment to why."""
    spread: tuple[float, float] | None
    """The central 95 % of the averages that one seed per cell gives."""
    n: int
    """Seeds in the smallest cell."""
    unfinished: bool


class Task(NamedTuple):
    """One experiment's part in an average."""

    baseline: list[Summary]
    methods: dict[str, list[Summary]]
    best: str | None
    """The method that counts."""
    epochs: Count | None
    seconds: Count | None

    @property
    def cells(self) -> list[list[Summary]]:
        return [self.baseline, *self.methods.values()]

    @property
    def left_out(self) -> str:
        """Why it does not count; empty if it does."""
        if not self.baseline or not self.methods:
            return "not run"
        if self.epochs:
            return ""
        if any(seed.state == "unfinished" for cell in self.cells for seed in cell):
            return "unfinished"
        medians = [estimate(cell).median for cell in self.cells]
        passes = all(median is not None and not median.sign for median in medians)
        return "passes at epoch 0" if passes else "half of the seeds or more do not pass"


def average_gain(gathered: Gathered, plan: Gain, experiments: Sequence[str]) -> AverageGain:
    """The mean over those experiments where both the baseline and one of the methods passed; it says which."""
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


def _task(gathered: Gathered, plan: Gain, experiment: str) -> Task:
    baseline = gathered.of(experiment, plan.baseline)
    found = {method: gathered.of(experiment, method) for method in plan.methods}
    methods = {method: seeds for method, seeds in found.items() if seeds}
    best = _best({method: estimate(seeds) for method, seeds in methods.items()})
    plain = estimate(baseline).settled
    if best is None or plain is None or plain.sign:  # a bound is one of the budget, and would be the average's largest part
        return Task(baseline, methods, best, None, None)
    epochs = ratio(plain, estimate(methods[best]).settled)
    return Task(baseline, methods, best, epochs, _fastest(baseline, list(methods.values())))


def _best(estimates: Mapping[str, Estimate]) -> str | None:
    """The method with the smallest median, of those whose median passed."""
    medians = {name: found.median.value for name, found in estimates.items() if found.median and not found.median.sign}
    return min(medians, key=lambda name: medians[name]) if medians else None


def _fastest(baseline: Sequence[Summary], methods: Sequence[Sequence[Summary]]) -> Count | None:
    """The best gain in seconds; None where the baseline was timed elsewhere, or no method passed."""
    cost = cost_of(baseline)
    others = [(seeds, cost_of(seeds)) for seeds in methods]
    same = [(seeds, found) for seeds, found in others if found and cost and found.place == cost.place]
    gains = [ratio(seconds_of(estimate(baseline), cost), seconds_of(estimate(seeds), found)) for seeds, found in same]
    known = [gain for gain in gains if gain is not None and gain.sign != "<"]
    return max(known, default=None)


def _spread(tasks: Sequence[Task]) -> tuple[float, float] | None:
    """One seed per cell, many times over; a task is left out where the drawn baseline or all drawn methods did not pass."""
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


def _drawn(seeds: Sequence[Summary], draw: np.random.Generator) -> Array:
    """(DRAWS,): epochs of seeds drawn at random, infinite where one did not pass."""
    epochs = np.array([np.inf if seed.crossed is None else seed.crossed for seed in seeds], dtype=np.float64)
    return epochs[draw.integers(len(epochs), size=DRAWS)]
