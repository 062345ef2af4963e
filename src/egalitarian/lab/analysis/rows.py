"""The numbers of a table's rows: one method on one experiment, the paper's values and ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from egalitarian.lab.analysis.counts import Count, quantile, ratio
from egalitarian.lab.analysis.gathered import Gathered
from egalitarian.lab.analysis.reading import RunSummary
from egalitarian.lab.analysis.statistics import (
    Accuracy,
    Cost,
    Estimate,
    cost_of,
    epochs_to_threshold,
    estimate,
    final_accuracy,
    mean_train_accuracy,
    seconds_to_threshold,
)
from egalitarian.lab.config import Claim, Experiment, Record, TablePlan
from egalitarian.lab.runs import Outcome, training_seconds

NO_CLAIM = Claim(table="")


@dataclass(frozen=True)
class MethodRow:
    """One method on one experiment: epochs or steps to the threshold, gains, times."""

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
    """To the threshold: training without measuring, one seed's share, the median over seeds."""
    paper_gain: float | None
    gain: Count | None
    """Over the table's baseline, as a ratio of medians."""
    gain_seconds: Count | None
    """None if the baseline was timed on another platform."""
    fair_gain: Count | None
    """Over the fair baseline, `plan.fair`, as a ratio of medians."""
    final: Accuracy
    polar: str
    """How many seeds took the polar factor in which tier; empty if all took the same, and none is an older record."""

    @property
    def title(self) -> str:
        return self.experiment.method(self.method).title

    @property
    def timed_on(self) -> str | None:
        return None if self.cost is None else self.cost.platform

    @property
    def ms_per_epoch(self) -> float | None:
        return None if self.cost is None else self.cost.ms_per_epoch

    @property
    def ms_per_step(self) -> float | None:
        steps = self.experiment.steps_per_epoch
        return None if self.ms_per_epoch is None or steps is None else self.ms_per_epoch / steps


def method_rows(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> tuple[list[MethodRow], list[MethodRow]]:
    """The rows of the paper's methods, in the plan's order, and those of ours, in the experiment's order."""
    paper = [
        _method_row(gathered, experiment, method, plan, ours=False)
        for method in plan.methods
        if method in experiment.methods
    ]
    others = [method for method in experiment.methods if method not in plan.methods]
    return paper, [_method_row(gathered, experiment, method, plan, ours=True) for method in others]


def _method_row(gathered: Gathered, experiment: Experiment, method: str, plan: TablePlan, *, ours: bool) -> MethodRow:
    unit: Literal["epochs", "steps"] = "steps" if plan.kind == "steps" else "epochs"
    seeds, baseline = gathered.of(experiment.name, method), gathered.of(experiment.name, plan.baseline)
    found, baseline_reached = reached(experiment, seeds, unit), reached(experiment, baseline, unit)
    fair = reached(experiment, gathered.of(experiment.name, plan.fair), unit)
    cost, baseline_cost = cost_of(seeds), cost_of(baseline)
    seconds = seconds_to_threshold(estimate(seeds), cost)
    baseline_seconds = seconds_to_threshold(estimate(baseline), baseline_cost)
    same_platform = cost is not None and baseline_cost is not None and cost.platform == baseline_cost.platform
    is_baseline = method == plan.baseline
    return MethodRow(
        experiment=experiment,
        method=method,
        ours=ours,
        claim=NO_CLAIM if ours else experiment.claims.get(method, NO_CLAIM),
        reached=found,
        cost=cost,
        seconds=seconds,
        paper_gain=None if ours or is_baseline else paper_gain(experiment, method, plan.baseline),
        gain=None if is_baseline else ratio(baseline_reached.settled_median, found.settled_median),
        gain_seconds=ratio(baseline_seconds, seconds) if same_platform and not is_baseline else None,
        fair_gain=None if is_baseline or method == plan.fair else ratio(fair.settled_median, found.settled_median),
        final=final_accuracy(seeds),
        polar=polar_tiers(seeds),
    )


def reached(experiment: Experiment, seeds: Sequence[RunSummary], unit: Literal["epochs", "steps"]) -> Estimate:
    """Epochs or steps to the threshold; an empty Estimate if the task does not define the steps of an epoch."""
    if unit == "epochs":
        return estimate(seeds)
    steps = experiment.steps_per_epoch
    return estimate([]) if steps is None else estimate(seeds, steps)


def paper_gain(experiment: Experiment, method: str, baseline: str) -> float | None:
    """The paper's gain over the baseline, from its own epochs or steps."""
    claims = [experiment.claims.get(name) for name in (baseline, method)]
    over, under = [claim and (claim.epochs if claim.steps is None else claim.steps) for claim in claims]
    return over / under if isinstance(over, int) and isinstance(under, int) else None


def polar_tiers(seeds: Iterable[RunSummary]) -> str:
    """`3 exact, 5 fast`: how many seeds took the polar factor in which tier; empty if all took the same.

    Older records are always named, as `8 fast to 1e-2 (version 1)`.
    """
    listed = list(seeds)
    kinds = Counter(seed.polar for seed in listed)
    said = len(kinds) > 1 or any(seed.old for seed in listed)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) if said else ""


@dataclass(frozen=True)
class AccuracyRow:
    """One method on an experiment that has no threshold."""

    experiment: Experiment
    method: str
    claim: Claim
    found: Accuracy
    """The mean of training accuracy, or the final test accuracy."""
    training: float | None
    """Training accuracy after the last epoch, the median over full-length runs."""
    paper_gain: float | None
    gain: float | None
    """Over the same optimizer without a transform, as a ratio of medians."""
    polar: str

    @property
    def title(self) -> str:
        return self.experiment.method(self.method).title


def accuracy_rows(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> list[AccuracyRow]:
    """The paper's methods in the plan's order, then those of ours that were run."""
    paper = [method for method in plan.methods if method in experiment.methods]
    ours = [method for method in experiment.methods if method not in plan.methods]
    return [
        _accuracy_row(gathered, experiment, method, plan)
        for method in (*paper, *gathered.methods_run(experiment.name, ours))
    ]


def _accuracy_row(gathered: Gathered, experiment: Experiment, method: str, plan: TablePlan) -> AccuracyRow:
    accuracy = mean_train_accuracy if plan.kind == "means" else final_accuracy
    seeds, plain = gathered.of(experiment.name, method), without_transform(experiment, method)
    found, baseline = accuracy(seeds), accuracy(gathered.of(experiment.name, plain)).median
    learnt = [seed.outcome.train_accuracy for seed in seeds if seed.full and seed.outcome.train_accuracy is not None]
    claim, under = [experiment.claims.get(name, NO_CLAIM) for name in (method, plain)]
    paper = (claim.mean_train_accuracy, under.mean_train_accuracy)
    return AccuracyRow(
        experiment=experiment,
        method=method,
        claim=claim,
        found=found,
        training=median(learnt) if learnt else None,
        paper_gain=paper[0] / paper[1] if paper[0] and paper[1] else None,
        gain=found.median / baseline if found.median is not None and baseline else None,
        polar=polar_tiers(seeds),
    )


def without_transform(experiment: Experiment, method: str) -> str:
    """The method with the same optimizer and no transform; empty if the method itself has none."""
    own = experiment.method(method)
    same = [name for name, other in experiment.methods.items() if other.optim == own.optim and not other.transform]
    return next(iter(same), "") if own.transform else ""


def seed_counts(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> dict[str, int]:
    """How many seeds were run of each of the paper's methods, or of all methods if the plan names none."""
    counts = {method: len(gathered.of(experiment.name, method)) for method in plan.methods or experiment.methods}
    return {method: count for method, count in counts.items() if count}


@dataclass(frozen=True)
class MethodSummary:
    """The seeds of one method, right after they were trained."""

    epochs: Estimate
    """To the threshold."""
    seconds: Count
    """Training time of one seed through the epoch that passed, the median over seeds. Infinite if half of them diverged."""
    ms_per_epoch: float
    """One seed's share of the training time of an epoch, the median over epochs and seeds. NaN without timings."""

    @property
    def passed(self) -> bool:
        """Whether more than half of the seeds passed."""
        return self.seconds.is_exact


def summarize_method(outcomes: Sequence[Outcome], timings: Sequence[Iterable[Record]], budget: int) -> MethodSummary:
    """Epochs, seconds and the cost of an epoch over the seeds of one method.

    Args:
        outcomes: of each seed; at least one.
        timings: the stored timings of each seed.
        budget: epochs of a seed that does not pass.
    """
    shares = [training_seconds(own, outcome) for own, outcome in zip(timings, outcomes, strict=True)]
    spent = [sum(own) for own in shares]
    passed = sorted(seconds for seconds, outcome in zip(spent, outcomes, strict=True) if outcome.crossed is not None)
    bounds = sorted(
        math.inf if outcome.diverged else seconds  # a seed that diverged will never pass
        for seconds, outcome in zip(spent, outcomes, strict=True)
        if outcome.crossed is None
    )
    epochs = [seconds for own in shares for seconds in own]
    return MethodSummary(
        epochs=epochs_to_threshold(outcomes, budget),
        seconds=quantile(passed, bounds, 0.5),
        ms_per_epoch=1e3 * median(epochs) if epochs else math.nan,
    )
