"""Which method passes first on each task, and how many times fewer epochs EGD needs than the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from egalitarian.lab.analysis.counts import Count, ratio
from egalitarian.lab.analysis.gathered import Gathered
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.config import Experiment

EQUALISING = ("polar", "lowrank-polar")
"""The kinds of transform that EGD consists of."""


class TaskSpeed(NamedTuple):
    """The methods of one experiment that were run, by their median epochs to the threshold."""

    experiment: Experiment
    medians: Mapping[str, Count]
    """In the experiment's order. A bound where half of the seeds or more do not pass."""
    baseline: str | None
    """The first method without EGD: the paper's baseline."""

    @property
    def passed(self) -> dict[str, float]:
        """The medians that are numbers."""
        return {method: count.value for method, count in self.medians.items() if count.is_exact}

    @property
    def fastest(self) -> tuple[str, ...]:
        """The methods with the smallest median; empty if none passed."""
        least = min(self.passed.values(), default=None)
        return tuple(method for method, median in self.passed.items() if median == least)

    @property
    def equalised(self) -> str | None:
        """The fastest method with EGD; None if none passed."""
        own = {method: median for method, median in self.passed.items() if equalises(self.experiment, method)}
        return min(own, key=lambda method: own[method], default=None)

    @property
    def gain(self) -> Count | None:
        """The baseline's median over that of the fastest method with EGD; None if one of them does not pass."""
        if self.baseline not in self.passed or self.equalised is None:
            return None
        return ratio(self.medians[self.baseline], self.medians[self.equalised])


def equalises(experiment: Experiment, method: str) -> bool:
    """Whether a method has EGD."""
    return any(link.kind in EQUALISING for link in experiment.method(method).transform)


def task_speeds(gathered: Gathered, experiments: Sequence[str]) -> list[TaskSpeed]:
    """Of each of these experiments that has a threshold and runs. Medians that may still change are left out."""
    found = []
    for experiment in gathered.named_in(experiments):
        run = gathered.methods_run(experiment.name, list(experiment.methods))
        settled = {method: estimate(gathered.of(experiment.name, method)).settled_median for method in run}
        medians = {method: count for method, count in settled.items() if count is not None}
        if experiment.measure.has_threshold and medians:
            plain = [method for method in medians if not equalises(experiment, method)]
            found.append(TaskSpeed(experiment, medians, next(iter(plain), None)))
    return found


def wins(speeds: Sequence[TaskSpeed]) -> Counter[str]:
    """On how many tasks each method, by its title, has the smallest median of two methods or more. Ties count for each."""
    compared = [speed for speed in speeds if len(speed.medians) > 1]
    titles = [speed.experiment.method(method).title for speed in compared for method in speed.fastest]
    return Counter(titles)
