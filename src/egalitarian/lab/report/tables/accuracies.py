"""Accuracies where no threshold is waited for: Table 8, the mean of training accuracy; and tables of final accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from egalitarian.lab.analysis.accuracies import Accuracy, final_accuracy, in_percent, mean_train_accuracy
from egalitarian.lab.analysis.counts import NOTHING
from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.analysis.rows import NO_CLAIM, mixed_polar
from egalitarian.lab.config.contents import TablePlan
from egalitarian.lab.config.spec import Claim, Experiment
from egalitarian.lab.report.render import Block, Table, Value
from egalitarian.lab.report.tables.cells import gained, pair, pooled


@dataclass(frozen=True)
class Row:
    """One method on one experiment."""

    experiment: Experiment
    method: str
    claim: Claim
    found: Accuracy
    paper_gain: float | None
    gain: float | None
    """Over the same optimizer without a transform."""
    polar: str

    @property
    def title(self) -> str:
        return self.experiment.method(self.method).title


def means_table(plan: TablePlan, gathered: Gathered) -> Table:
    """For each experiment a row for every method of the paper, and for ours that were run."""
    experiments = gathered.named_in(plan.experiments)
    made = {experiment.title: _rows(gathered, experiment, plan) for experiment in experiments}
    listed = [row for rows in made.values() for row in rows]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("method", "in %, paper", "in %, ours: median (min–max)", "seeds", "gain by EGD, paper / ours"),
        blocks=tuple(Block(title, tuple(map(_cells, rows))) for title, rows in made.items()),
        notes=(
            f"The mean of training accuracy over all epochs, {_when(experiments)}. Only runs of full length count",
            "A seed whose loss is not a number has diverged. It stops there, is counted as diverged, and is in no mean",
            "Gains are over the same optimizer without EGD: the paper's from its one run, ours of medians",
            *pooled(listed),
        ),
        records=tuple(map(_record, listed)),
    )


def _when(experiments: Sequence[Experiment]) -> str:
    """When the accuracies of the table are read."""
    ways = {
        "after": "measured at the end of each on the labels it was trained on",
        "during": "measured during each, on every batch before its own step",
    }
    return "; ".join(ways[when] for when in dict.fromkeys(each.training.accuracy for each in experiments))


def finals_table(plan: TablePlan, gathered: Gathered) -> Table:
    """Test accuracy after the last epoch, for experiments of ours in which nothing groks."""
    experiments = gathered.named_in(plan.experiments)
    rows = {
        experiment.title: [_final_row(experiment, method, gathered) for method in _methods(gathered, experiment, plan)]
        for experiment in experiments
    }
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("method", "final test accuracy in %: median (min–max)", "training, in %", "seeds"),
        blocks=tuple(Block(title, tuple(cells for cells, _ in own)) for title, own in rows.items()),
        notes=(
            "After the last epoch of runs of full length. The brackets are over the last tenth of the epochs of all seeds",
        ),
        records=tuple(record for own in rows.values() for _, record in own),
    )


def _final_row(experiment: Experiment, method: str, gathered: Gathered) -> tuple[tuple[str, ...], dict[str, Value]]:
    """As cells, and for machines."""
    seeds = gathered.of(experiment.name, method)
    found = final_accuracy(seeds)
    learnt = [seed.train_accuracy for seed in seeds if seed.full and seed.train_accuracy is not None]
    training = float(np.median(learnt)) if learnt else None
    cells = (
        experiment.method(method).title,
        str(found) or ("unfinished" if found.others else "not run"),
        NOTHING if training is None else in_percent(training),
        str(found.n) if found.n else NOTHING,
    )
    ends = {"median": found.median, "min": found.low, "max": found.high, "training": training}
    counts = {"n": found.n, "diverged": found.diverged, "unfinished": found.others}
    return cells, {"experiment": experiment.name, "method": method, **ends, **counts}


def _rows(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> list[Row]:
    return [_row(gathered, experiment, method) for method in _methods(gathered, experiment, plan)]


def _methods(gathered: Gathered, experiment: Experiment, plan: TablePlan) -> list[str]:
    """The paper's in the plan's order, then ours that were run."""
    ours = [method for method in experiment.methods if method not in plan.methods]
    paper = [method for method in plan.methods if method in experiment.methods]
    return paper + [method for method in ours if gathered.of(experiment.name, method)]


def _row(gathered: Gathered, experiment: Experiment, method: str) -> Row:
    seeds, plain = gathered.of(experiment.name, method), bare(experiment, method)
    found, behind = mean_train_accuracy(seeds), mean_train_accuracy(gathered.of(experiment.name, plain)).median
    claim, under = [experiment.claims.get(name, NO_CLAIM) for name in (method, plain)]
    paper = (claim.mean_train_accuracy, under.mean_train_accuracy)
    return Row(
        experiment=experiment,
        method=method,
        claim=claim,
        found=found,
        paper_gain=paper[0] / paper[1] if paper[0] and paper[1] else None,
        gain=found.median / behind if found.median is not None and behind else None,
        polar=mixed_polar(seeds),
    )


def bare(experiment: Experiment, method: str) -> str:
    """The method with the same optimizer and without a transform; empty where the method itself is that."""
    own = experiment.method(method)
    same = [name for name, other in experiment.methods.items() if other.optim == own.optim and not other.transform]
    return next(iter(same), "") if own.transform else ""


def _cells(row: Row) -> tuple[str, ...]:
    paper = row.claim.mean_train_accuracy
    return (
        row.title,
        NOTHING if paper is None else in_percent(paper),
        ", ".join(filter(None, (str(row.found), f"{row.found.others} unfinished" * bool(row.found.others)))) or "not run",
        str(row.found.n) if row.found.n else NOTHING,
        pair(gained(row.paper_gain), gained(row.gain)),
    )


def _record(row: Row) -> dict[str, Value]:
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "paper": row.claim.mean_train_accuracy,
        "median": row.found.median,
        "min": row.found.low,
        "max": row.found.high,
        "n": row.found.n,
        "diverged": row.found.diverged,
        "unfinished": row.found.others,
        "paper_gain": row.paper_gain,
        "gain": row.gain,
    }
