"""Tables 2 to 4, and those of a user's own experiments: epochs and time to the threshold."""

from __future__ import annotations

from functools import partial

from egalitarian.lab.analysis import NOTHING, Gathered, MethodRow, Value
from egalitarian.lab.config import Contents, TablePlan
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
    """For each experiment the paper's methods, and below them ours that were run."""
    listing = Listing.of(plan, gathered)
    claimed = any(experiment.claims for experiment in listing.experiments)
    gains = claimed or any(row.gain is not None for row in listing.rows)
    whose = f", {contents.paper.hardware} / ours" if claimed else ""
    of_paper = ("epochs, paper", "epochs, ours: median (min–max)", "passed", "gain, paper / ours")
    of_others = ("epochs: median (min–max)", "passed", *(["gain"] if gains else []))
    cells = partial(_cells, listing.platforms) if claimed else partial(_own_cells, listing.platforms, gains)
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
        blocks=listing.blocks(cells),
        notes=(
            f"Epochs: the first, counted from 0, whose test accuracy exceeds {listing.threshold}. A seed that does not "
            "pass counts as more than its budget. If half of the seeds or more do not pass, the median is a bound",
            *([_gain_note(plan, listing, claimed)] if gains else []),
            *threshold_notes(listing.first, contents.paper.hardware if claimed else None),
            *listing.platforms.notes,
            *listing.notes(),
        ),
        records=tuple(_record(row) for row in listing.rows),
    )


def _gain_note(plan: TablePlan, listing: Listing, claimed: bool) -> str:
    titles = [each.methods[plan.baseline].title for each in listing.experiments if plan.baseline in each.methods]
    baseline = titles[0] if titles else plan.baseline
    of = "the paper's from its one run, ours of medians" if claimed else "of medians"
    return f"Gains are {baseline}'s epochs over the method's: {of}"


def _cells(platforms: Platforms, row: MethodRow) -> tuple[str, ...]:
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


def _record(row: MethodRow) -> dict[str, Value]:
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
