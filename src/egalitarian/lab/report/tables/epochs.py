"""The paper's tables from stored runs: Tables 2 to 4 (epochs and time to the threshold), and a user's own of that kind."""

from __future__ import annotations

from functools import partial

from egalitarian.lab.analysis.counts import NOTHING
from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.analysis.rows import Row
from egalitarian.lab.config.contents import Contents, TablePlan
from egalitarian.lab.report.render import Table, Value
from egalitarian.lab.report.tables.accuracies import finals_table, means_table
from egalitarian.lab.report.tables.cells import (
    Places,
    gained,
    pair,
    passed,
    plain,
    threshold_notes,
    threshold_record,
)
from egalitarian.lab.report.tables.early import early_table
from egalitarian.lab.report.tables.listing import Listing
from egalitarian.lab.report.tables.overview import gains_table, methods_table
from egalitarian.lab.report.tables.settings import settings_table
from egalitarian.lab.report.tables.steps import steps_table


def build(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """The table of a plan, of whatever kind."""
    if plan.kind == "settings":
        return settings_table(plan, gathered)
    if plan.kind == "methods":
        return methods_table(plan, gathered)
    if plan.kind == "gains":
        return gains_table(plan, contents, gathered)
    if plan.kind == "steps":
        return steps_table(plan, contents, gathered)
    if plan.kind == "means":
        return means_table(plan, gathered)
    if plan.kind == "early":
        return early_table(plan, gathered)
    if plan.kind == "finals":
        return finals_table(plan, gathered)
    return epochs_table(plan, contents, gathered)


def epochs_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """For each experiment the paper's methods, and below them ours that were run."""
    listing = Listing.of(plan, gathered)
    claimed = any(experiment.claims for experiment in listing.experiments)
    gains = claimed or any(row.gain is not None for row in listing.rows)
    whose = f", {contents.paper.hardware} / ours" if claimed else ""
    of_paper = ("epochs, paper", "epochs, ours: median (min–max)", "passed", "gain, paper / ours")
    of_others = ("epochs: median (min–max)", "passed", *(["gain"] if gains else []))
    of = "the paper's from its one run, ours of medians" if claimed else "of medians"
    gain = f"Gains are SGD's epochs over the method's: {of}"
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "method",
            *(of_paper if claimed else of_others),
            f"ms per epoch{whose}",
            f"s to {listing.threshold}{whose}",
        ),
        blocks=listing.blocks(partial(_cells, listing.places) if claimed else partial(_own_cells, listing.places, gains)),
        notes=(
            f"Epochs: the first, counted from 0, whose test accuracy exceeds {listing.threshold}. A seed that does not "
            "pass counts as more than its budget. If half of the seeds or more do not pass, the median is a bound",
            *([gain] if gains else []),
            *threshold_notes(listing.first, contents.paper.hardware if claimed else None),
            *listing.places.notes,
            *listing.remarks(),
        ),
        records=tuple(_record(row) for row in listing.rows),
    )


def _cells(places: Places, row: Row) -> tuple[str, ...]:
    claim = row.claim
    return (
        row.title,
        NOTHING if claim.epochs is None else str(claim.epochs),
        str(row.reached),
        passed(row.reached),
        pair(gained(row.paper_gain), gained(row.gain)),
        pair(claim.ms_per_epoch, places.time(row, row.ms_per_epoch)),
        pair(claim.seconds, places.time(row, row.seconds)),
    )


def _own_cells(places: Places, gains: bool, row: Row) -> tuple[str, ...]:
    """Of an experiment that is not in the paper."""
    gain = [gained(row.gain)] if gains else []
    rest = (*gain, places.time(row, row.ms_per_epoch), places.time(row, row.seconds))
    return row.title, str(row.reached), passed(row.reached), *(cell or NOTHING for cell in rest)


def _record(row: Row) -> dict[str, Value]:
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
