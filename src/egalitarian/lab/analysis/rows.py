"""The numbers of a table's row, before anybody lays them out: one method on one experiment, the paper's beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from egalitarian.lab.analysis.accuracies import Accuracy, final_accuracy
from egalitarian.lab.analysis.counts import Count, ratio
from egalitarian.lab.analysis.gather import Gathered, Summary
from egalitarian.lab.analysis.statistics import Estimate, estimate
from egalitarian.lab.config.contents import TablePlan
from egalitarian.lab.config.spec import Claim, Experiment

NO_CLAIM = Claim(table="")


@dataclass(frozen=True)
class Cost:
    """What training takes on one platform, measuring left out."""

    place: str
    ms_per_epoch: float
    """Of one seed."""
    runs: int
    """How many of the seeds were timed there."""


@dataclass(frozen=True)
class Row:
    """One method on one experiment."""

    experiment: Experiment
    method: str
    ours: bool
    """Whether the method is not in the paper."""
    claim: Claim
    """Empty for a method that is not in the paper."""
    reached: Estimate
    """Epochs or steps to the threshold."""
    cost: Cost | None
    seconds: Count | None
    """To the threshold: training alone, one seed's share, the median over seeds."""
    paper_gain: float | None
    gain: Count | None
    """Of medians, over the table's baseline."""
    gain_seconds: Count | None
    """Only where both were timed on the same platform."""
    fair_gain: Count | None
    """Of medians, over the baseline that has all other settings of the method."""
    final: Accuracy
    polar: str
    """How many seeds took the polar factor in which way, where they differ."""

    @property
    def title(self) -> str:
        return self.experiment.method(self.method).title

    @property
    def timed_on(self) -> str | None:
        return None if self.cost is None else self.cost.place

    @property
    def ms_per_epoch(self) -> float | None:
        return None if self.cost is None else self.cost.ms_per_epoch

    @property
    def ms_per_step(self) -> float | None:
        steps = self.experiment.steps_per_epoch
        return None if self.ms_per_epoch is None or steps is None else self.ms_per_epoch / steps


def rows(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> tuple[list[Row], list[Row]]:
    """(the paper's methods, ours): the former in the plan's order, the latter in the experiment's."""
    paper = [
        _row(gathered, experiment, method, plan, ours=False) for method in plan.methods if method in experiment.methods
    ]
    others = [method for method in experiment.methods if method not in plan.methods]
    return paper, [_row(gathered, experiment, method, plan, ours=True) for method in others]


def _row(gathered: Gathered, experiment: Experiment, method: str, plan: TablePlan, *, ours: bool) -> Row:
    unit: Literal["epochs", "steps"] = "steps" if plan.kind == "steps" else "epochs"
    seeds, baseline = gathered.of(experiment.name, method), gathered.of(experiment.name, plan.baseline)
    ahead, behind = reached(experiment, seeds, unit), reached(experiment, baseline, unit)
    fair = reached(experiment, gathered.of(experiment.name, plan.fair), unit)
    cost, baseline_cost = cost_of(seeds), cost_of(baseline)
    seconds, baseline_seconds = seconds_of(estimate(seeds), cost), seconds_of(estimate(baseline), baseline_cost)
    same_place = cost is not None and baseline_cost is not None and cost.place == baseline_cost.place
    is_baseline = method == plan.baseline
    return Row(
        experiment=experiment,
        method=method,
        ours=ours,
        claim=NO_CLAIM if ours else experiment.claims.get(method, NO_CLAIM),
        reached=ahead,
        cost=cost,
        seconds=seconds,
        paper_gain=None if ours or is_baseline else paper_gain(experiment, method, plan.baseline),
        gain=None if is_baseline else ratio(behind.settled, ahead.settled),
        gain_seconds=ratio(baseline_seconds, seconds) if same_place and not is_baseline else None,
        fair_gain=None if method in (plan.baseline, plan.fair) else ratio(fair.settled, ahead.settled),
        final=final_accuracy(seeds),
        polar=mixed_polar(seeds),
    )


def reached(experiment: Experiment, seeds: Sequence[Summary], unit: Literal["epochs", "steps"]) -> Estimate:
    """Epochs or steps to the threshold; no seeds where a task does not say how many steps make an epoch."""
    if unit == "epochs":
        return estimate(seeds)
    steps = experiment.steps_per_epoch
    return estimate([]) if steps is None else estimate(seeds, steps)


def paper_gain(experiment: Experiment, method: str, baseline: str) -> float | None:
    """The paper's gain over the baseline, from its own epochs or steps."""
    claims = [experiment.claims.get(name) for name in (baseline, method)]
    over, under = [claim and (claim.epochs if claim.steps is None else claim.steps) for claim in claims]
    return over / under if isinstance(over, int) and isinstance(under, int) else None


def cost_of(seeds: Sequence[Summary]) -> Cost | None:
    """On the platform where most seeds were trained."""
    timed = [(seed.platform.place, seed.platform.ms_per_epoch) for seed in seeds if seed.platform is not None]
    known = [(place, ms) for place, ms in timed if ms is not None]
    if not known:
        return None
    place, runs = Counter(place for place, _ in known).most_common(1)[0]
    return Cost(place, float(np.median([ms for where, ms in known if where == place])), runs)


def seconds_of(epochs: Estimate, cost: Cost | None) -> Count | None:
    """Through the epoch that passes, at the median cost of an epoch."""
    if epochs.settled is None or cost is None:
        return None
    trained = epochs.settled.value + (not epochs.settled.sign)
    return epochs.settled._replace(value=trained * cost.ms_per_epoch / 1000)


def mixed_polar(seeds: Sequence[Summary]) -> str:
    """3 exact, 5 fast; nothing where all seeds took it in one way."""
    ways = Counter(seed.platform.polar or "not said" for seed in seeds if seed.platform is not None)
    return ", ".join(f"{count} {way}" for way, count in sorted(ways.items())) if len(ways) > 1 else ""
