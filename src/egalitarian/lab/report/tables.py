"""The paper's tables from stored runs: Tables 2 to 4 (epochs and time to the threshold), and a user's own of that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase

from egalitarian.lab.report.contents import Contents, TablePlan
from egalitarian.lab.report.counts import NOTHING, Count, measured, percent, times
from egalitarian.lab.report.gather import Gathered
from egalitarian.lab.report.overview import gains_table, methods_table, settings_table
from egalitarian.lab.report.render import Block, Table, Value
from egalitarian.lab.report.rows import Row, rows
from egalitarian.lab.spec import Claim, Experiment

NO_CLAIM = Claim(table="")


def build(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """The table of a plan, of whatever kind."""
    if plan.kind == "settings":
        return settings_table(plan, gathered)
    if plan.kind == "methods":
        return methods_table(plan, gathered)
    if plan.kind == "gains":
        return gains_table(plan, contents, gathered)
    return epochs_table(plan, contents, gathered)


def epochs_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """For each experiment the paper's methods, and below them ours that were run."""
    by_name = {experiment.name: experiment for experiment in gathered.experiments}
    experiments = [by_name[name] for name in plan.experiments]
    both = [rows(gathered, experiment, plan.methods) for experiment in experiments]
    places = _places([row for paper, ours in both for row in (*paper, *ours)])
    blocks: list[Block] = []
    missing: dict[str, list[str]] = {}
    for experiment, (paper, ours) in zip(experiments, both, strict=True):
        run = [row for row in ours if row.epochs.n]
        missing.setdefault("; ".join(row.title for row in ours if not row.epochs.n), []).append(experiment.title)
        if paper:
            blocks.append(Block(experiment.title, tuple(_cells(row, places) for row in paper)))
        if run:
            heading = f"{experiment.title}: not in the paper, ours" if paper else experiment.title
            blocks.append(Block(heading, tuple(_cells(row, places) for row in run)))
    notes = [*_reading_notes(experiments, contents), *_place_notes(places)]
    notes += [f"Ours that are not run on {', '.join(where)}: {methods}" for methods, where in missing.items() if methods]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=_columns(experiments, contents),
        blocks=tuple(blocks),
        notes=tuple(notes),
        records=tuple(_record(row) for paper, ours in both for row in (*paper, *ours)),
    )


def _columns(experiments: Sequence[Experiment], contents: Contents) -> tuple[str, ...]:
    threshold = percent(experiments[0].measure.threshold)
    whose = f"{contents.paper.hardware} / ours"
    return (
        "method",
        "epochs, paper",
        "epochs, ours: median (min–max)",
        "passed",
        "gain, paper / ours",
        f"ms per epoch, {whose}",
        f"s to {threshold}, {whose}",
    )


def _cells(row: Row, places: Mapping[str, str]) -> tuple[str, ...]:
    claim, found = row.claim or NO_CLAIM, row.epochs
    mark = f" {places[row.cost.place]}" if row.cost is not None and len(places) > 1 else ""
    ms = None if row.cost is None else measured(row.cost.ms_per_epoch) + mark
    seconds = None if row.seconds is None else measured(row.seconds) + mark
    return (
        row.title,
        NOTHING if claim.epochs is None else str(claim.epochs),
        str(found),
        f"{found.passed}/{found.n}" if found.n else NOTHING,
        _pair(_times(row.paper_gain), _times(row.gain)),
        _pair(claim.ms_per_epoch, ms),
        _pair(claim.seconds, seconds),
    )


def _times(gain: Count | float | None) -> str | None:
    return None if gain is None else times(gain)


def _pair(paper: Value, ours: Value) -> str:
    if paper is None and ours is None:
        return NOTHING
    return f"{NOTHING if paper is None else paper} / {NOTHING if ours is None else ours}"


def _places(listed: Sequence[Row]) -> dict[str, str]:
    """A letter for each platform that times come from."""
    found = dict.fromkeys(row.cost.place for row in listed if row.cost is not None)
    letters = [*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase)]
    return dict(zip(found, letters, strict=False))


def _reading_notes(experiments: Sequence[Experiment], contents: Contents) -> list[str]:
    threshold = percent(experiments[0].measure.threshold)
    return [
        f"Epochs count from 0 to the first whose test accuracy exceeds {threshold}; a seed that does not pass counts as "
        "more than its budget, and the median is a bound when half of the seeds or more do not pass",
        "Gains are SGD's epochs over the method's: the paper's from its one run, ours of medians",
        f"The paper's times are a {contents.paper.hardware}'s and cannot be compared with ours; ours are training without "
        "measuring, divided by the seeds trained side by side",
    ]


def _place_notes(places: Mapping[str, str]) -> list[str]:
    if len(places) == 1:
        return [f"Our times: {next(iter(places))}"]
    return [f"Our times, {letter}: {place}" for place, letter in places.items()]


def _record(row: Row) -> dict[str, Value]:
    claim, found = row.claim or NO_CLAIM, row.epochs
    return {
        "experiment": row.experiment.name,
        "method": row.method,
        "ours": "yes" if row.ours else "no",
        "paper_epochs": claim.epochs,
        "median": _plain(found.median),
        "min": _plain(found.low),
        "lower_quartile": _plain(found.lower_quartile),
        "upper_quartile": _plain(found.upper_quartile),
        "max": _plain(found.high),
        "n": found.n,
        "passed": found.passed,
        "diverged": found.diverged,
        "unfinished": found.unfinished,
        "paper_gain": row.paper_gain,
        "gain": _plain(row.gain),
        "gain_seconds": _plain(row.gain_seconds),
        "paper_ms_per_epoch": claim.ms_per_epoch,
        "ms_per_epoch": None if row.cost is None else row.cost.ms_per_epoch,
        "paper_seconds": claim.seconds,
        "seconds": _plain(row.seconds),
        "timed_on": None if row.cost is None else row.cost.place,
    }


def _plain(count: Count | None) -> str | None:
    return None if count is None else count.plain
