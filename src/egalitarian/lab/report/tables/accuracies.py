"""Accuracies of experiments without a threshold: Table 8, the mean of training accuracy, and final accuracies."""

from __future__ import annotations

from collections.abc import Sequence

from egalitarian.lab.analysis import NOTHING, AccuracyRow, Cell, Gathered, Value, accuracy_rows, in_percent
from egalitarian.lab.config import Contents, Experiment, TablePlan
from egalitarian.lab.report.render import Block, Table
from egalitarian.lab.report.tables.cells import compared_cells, gain_text, pair, polar_notes

WHEN = {
    "after": "measured at the end of each on the labels it was trained on",
    "during": "measured during each, on every batch before its own step",
}
"""When training accuracy is read, by the setting `training.accuracy`."""


def means_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """For each experiment a row for every method of the paper, and for ours that were run."""
    experiments = gathered.named_in(plan.experiments)
    rows = _rows(plan, gathered)
    listed = [row for own in rows.values() for row in own]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("method", "in %, paper", "in %, ours: median (min–max)", "seeds", "gain by EGD, paper / ours"),
        blocks=tuple(Block(title, tuple(map(_mean_cells, own)), tuple(map(_compared, own))) for title, own in rows.items()),
        notes=(
            f"The mean of training accuracy over all epochs, {_when(experiments)}. Only runs of full length count",
            "A seed whose loss is not a number has diverged. It stops there, is counted as diverged, and is in no mean",
            "Gains are over the same optimizer without EGD: the paper's from its one run, ours of medians",
            *polar_notes(listed),
        ),
        records=tuple(map(_mean_record, listed)),
    )


def finals_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """Test accuracy after the last epoch, for experiments of ours without a threshold."""
    rows = _rows(plan, gathered)
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("method", "final test accuracy in %: median (min–max)", "training, in %", "seeds"),
        blocks=tuple(Block(title, tuple(map(_final_cells, own))) for title, own in rows.items()),
        notes=(
            "After the last epoch of runs of full length. The brackets are over the last tenth of the epochs of all seeds",
        ),
        records=tuple(_final_record(row) for own in rows.values() for row in own),
    )


def _rows(plan: TablePlan, gathered: Gathered) -> dict[str, list[AccuracyRow]]:
    """By the experiment's title."""
    return {each.title: accuracy_rows(gathered, each, plan) for each in gathered.named_in(plan.experiments)}


def _when(experiments: Sequence[Experiment]) -> str:
    return "; ".join(WHEN[when] for when in dict.fromkeys(each.training.accuracy for each in experiments))


def _compared(row: AccuracyRow) -> dict[int, Cell]:
    return compared_cells(row.experiment.name, row.method, {2: "mean accuracy"})


def _mean_cells(row: AccuracyRow) -> tuple[str, ...]:
    paper, found = row.claim.mean_train_accuracy, row.found
    unfinished = f"{found.others} unfinished" if found.others else ""
    return (
        row.title,
        NOTHING if paper is None else in_percent(paper),
        ", ".join(filter(None, (str(found), unfinished))) or "not run",
        str(found.n) if found.n else NOTHING,
        pair(gain_text(row.paper_gain), gain_text(row.gain)),
    )


def _final_cells(row: AccuracyRow) -> tuple[str, ...]:
    found = row.found
    return (
        row.title,
        str(found) or ("unfinished" if found.others else "not run"),
        NOTHING if row.training is None else in_percent(row.training),
        str(found.n) if found.n else NOTHING,
    )


def _mean_record(row: AccuracyRow) -> dict[str, Value]:
    found = row.found
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "paper": row.claim.mean_train_accuracy,
        "median": found.median,
        "min": found.low,
        "max": found.high,
        "n": found.n,
        "diverged": found.diverged,
        "unfinished": found.others,
        "paper_gain": row.paper_gain,
        "gain": row.gain,
    }


def _final_record(row: AccuracyRow) -> dict[str, Value]:
    found = row.found
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "median": found.median,
        "min": found.low,
        "max": found.high,
        "training": row.training,
        "n": found.n,
        "diverged": found.diverged,
        "unfinished": found.others,
    }
