"""Epochs or steps, and time, to the threshold: the paper's tables, and those of a user's own experiments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from egalitarian.lab.analysis import NOTHING, Gathered, MethodRow, Value, in_percent, percent
from egalitarian.lab.config import Contents, Experiment, TablePlan
from egalitarian.lab.report.render import Table
from egalitarian.lab.report.tables.cells import (
    Listing,
    Platforms,
    gain_text,
    pair,
    passed,
    plain,
    threshold_notes,
    threshold_record,
)


def epochs_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """Epochs and time: for each experiment the paper's methods, and below them ours that were run."""
    listing = Listing.of(plan, gathered)
    claimed = any(experiment.claims for experiment in listing.experiments)
    gains = claimed or any(row.gain is not None for row in listing.rows)
    hardware = f", {contents.paper.hardware} / ours" if claimed else ""
    of_paper = ("epochs, paper", "epochs, ours: median (min–max)", "passed", "gain, paper / ours")
    of_others = ("epochs: median (min–max)", "passed", *(["gain"] if gains else []))
    cells = partial(_epochs_cells, listing.platforms) if claimed else partial(_own_cells, listing.platforms, gains)
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "method",
            *(of_paper if claimed else of_others),
            f"ms per epoch{hardware}",
            f"s to {listing.threshold}{hardware}",
        ),
        blocks=listing.blocks(cells, {2: "epochs"} if claimed else {}),
        notes=(
            f"Epochs: the first, counted from 0, whose test accuracy exceeds {listing.threshold}. A seed that does not "
            "pass counts as more than its budget. If half of the seeds or more do not pass, the median is a bound",
            *([_gain_note(plan, listing, claimed)] if gains else []),
            *threshold_notes(listing.first, contents.paper.hardware if claimed else None),
            *listing.platforms.notes,
            *listing.notes(),
        ),
        records=tuple(_epochs_record(row) for row in listing.rows),
    )


def _gain_note(plan: TablePlan, listing: Listing, claimed: bool) -> str:
    titles = [each.methods[plan.baseline].title for each in listing.experiments if plan.baseline in each.methods]
    baseline = titles[0] if titles else plan.baseline
    of = "the paper's from its one run, ours of medians" if claimed else "of medians"
    return f"Gains are {baseline}'s epochs over the method's: {of}"


def _epochs_cells(platforms: Platforms, row: MethodRow) -> tuple[str, ...]:
    claim = row.claim
    return (
        row.title,
        NOTHING if claim.epochs is None else str(claim.epochs),
        str(row.reached),
        passed(row.reached),
        pair(gain_text(row.paper_gain), gain_text(row.gain)),
        pair(claim.ms_per_epoch, platforms.time(row, row.ms_per_epoch)),
        pair(claim.seconds, platforms.time(row, row.seconds)),
    )


def _own_cells(platforms: Platforms, gains: bool, row: MethodRow) -> tuple[str, ...]:
    """Of an experiment that is not in the paper."""
    gain = [gain_text(row.gain)] if gains else []
    rest = (*gain, platforms.time(row, row.ms_per_epoch), platforms.time(row, row.seconds))
    return row.title, str(row.reached), passed(row.reached), *(cell or NOTHING for cell in rest)


def _epochs_record(row: MethodRow) -> dict[str, Value]:
    claim = row.claim
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "ours": "yes" if row.ours else "no",
        "paper_epochs": claim.epochs,
        **threshold_record(row),
        "paper_ms_per_epoch": claim.ms_per_epoch,
        "ms_per_epoch": row.ms_per_epoch,
        "paper_seconds": claim.seconds,
        "seconds": plain(row.seconds),
        "timed_on": row.timed_on,
    }


def steps_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """Steps, time and final accuracy: for each experiment the paper's methods, then ours, the fair baseline among them."""
    listing = Listing.of(plan, gathered)
    hardware, last = f"{contents.paper.hardware} / ours", 8 if plan.fair else 7
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "method",
            "steps, paper",
            "steps, ours: median (min–max)",
            "passed",
            "gain, paper / ours",
            *(["gain over the fair baseline"] if plan.fair else []),
            f"ms per step, {hardware}",
            f"s to {listing.threshold}, {hardware}",
            "final test accuracy in %, paper / ours",
        ),
        blocks=listing.blocks(partial(_steps_cells, plan, listing.platforms), {2: "steps", last: "final accuracy"}),
        notes=(
            *_step_notes(listing.first, plan),
            *threshold_notes(listing.first, contents.paper.hardware),
            *listing.platforms.notes,
            *_without_final(listing.rows),
            *listing.notes(),
        ),
        records=tuple(_steps_record(row) for row in listing.rows),
    )


def _step_notes(experiment: Experiment, plan: TablePlan) -> list[str]:
    threshold, steps = percent(experiment.measure.threshold), experiment.steps_per_epoch
    baseline = experiment.methods[plan.baseline].title
    notes = [
        f"Test accuracy is measured every {steps} steps. Steps count up to the first measurement that exceeds "
        f"{threshold}. A seed that does not pass counts as more than its budget",
        f"Gains are {baseline}'s steps over the method's: the paper's from its one run, ours of medians",
        "Final test accuracy is the median over full-length runs, usually one a row, which continue through their whole "
        "budget. The brackets have the smallest and largest over the last tenth of their epochs",
    ]
    if plan.fair:
        fair = experiment.methods[plan.fair].title
        notes.insert(2, f"The fair baseline is ours: {fair}, with the weight decay of all the others (docs/errata.md)")
    return notes


def _without_final(rows: Sequence[MethodRow]) -> list[str]:
    lacking = [row.title for row in rows if row.reached.n and not row.final.n]
    return [f"No full-length run yet, so no final accuracy: {'; '.join(lacking)}"] if lacking else []


def _steps_cells(plan: TablePlan, platforms: Platforms, row: MethodRow) -> tuple[str, ...]:
    claim = row.claim
    final = None if claim.final_accuracy is None else in_percent(claim.final_accuracy)
    return (
        f"{row.title} (ours: the fair baseline)" if row.method == plan.fair else row.title,
        NOTHING if claim.steps is None else str(claim.steps),
        str(row.reached),
        passed(row.reached),
        pair(gain_text(row.paper_gain), gain_text(row.gain)),
        *([gain_text(row.fair_gain) or NOTHING] if plan.fair else []),
        pair(claim.ms_per_step, platforms.time(row, row.ms_per_step)),
        pair(claim.seconds, platforms.time(row, row.seconds)),
        pair(final, str(row.final) or None),
    )


def _steps_record(row: MethodRow) -> dict[str, Value]:
    claim = row.claim
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "ours": "yes" if row.ours else "no",
        "paper_steps": claim.steps,
        **threshold_record(row),
        "fair_gain": plain(row.fair_gain),
        "paper_ms_per_step": claim.ms_per_step,
        "ms_per_step": row.ms_per_step,
        "paper_seconds": claim.seconds,
        "seconds": plain(row.seconds),
        "timed_on": row.timed_on,
        "paper_final_accuracy": claim.final_accuracy,
        "final_accuracy": row.final.median,
        "final_low": row.final.low,
        "final_high": row.final.high,
        "full_length_runs": row.final.n,
    }
