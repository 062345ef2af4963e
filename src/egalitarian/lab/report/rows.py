"""The numbers of a table's row, before anybody lays them out: one method on one experiment, the paper's beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from egalitarian.lab.report.counts import Count, ratio
from egalitarian.lab.report.gather import Gathered, Summary
from egalitarian.lab.report.statistics import Estimate, estimate
from egalitarian.lab.spec import Claim, Experiment

BASELINE = "sgd"
"""What the paper's gains are over."""


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
    claim: Claim | None
    epochs: Estimate
    cost: Cost | None
    seconds: Count | None
    """To the threshold: training alone, one seed's share, the median over seeds."""
    paper_gain: float | None
    gain: Count | None
    """Of medians, over SGD."""
    gain_seconds: Count | None
    """Only where both were timed on the same platform."""

    @property
    def title(self) -> str:
        return self.experiment.method(self.method).title


def rows(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """(the paper's methods, ours): the former in the order given, the latter in the experiment's."""
    paper = [_row(gathered, experiment, method, ours=False) for method in methods if method in experiment.methods]
    others = [method for method in experiment.methods if method not in methods]
    return paper, [_row(gathered, experiment, method, ours=True) for method in others]


def _row(gathered: Gathered, experiment: Experiment, method: str, *, ours: bool) -> Row:
    seeds, baseline = gathered.of(experiment.name, method), gathered.of(experiment.name, BASELINE)
    ahead, behind = estimate(seeds), estimate(baseline)
    cost, baseline_cost = cost_of(seeds), cost_of(baseline)
    seconds, baseline_seconds = seconds_of(ahead, cost), seconds_of(behind, baseline_cost)
    same_place = cost is not None and baseline_cost is not None and cost.place == baseline_cost.place
    is_baseline = method == BASELINE
    return Row(
        experiment=experiment,
        method=method,
        ours=ours,
        claim=None if ours else experiment.claims.get(method),
        epochs=ahead,
        cost=cost,
        seconds=seconds,
        paper_gain=None if ours or is_baseline else paper_gain(experiment, method),
        gain=None if is_baseline else ratio(behind.settled, ahead.settled),
        gain_seconds=ratio(baseline_seconds, seconds) if same_place and not is_baseline else None,
    )


def paper_gain(experiment: Experiment, method: str) -> float | None:
    """The paper's gain in epochs over SGD, from its own epochs."""
    claims = [experiment.claims.get(name) for name in (BASELINE, method)]
    epochs = [claim.epochs if claim is not None else None for claim in claims]
    over, under = epochs
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
