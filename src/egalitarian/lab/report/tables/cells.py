"""What tables of methods share: the rows of all experiments, the texts of cells, and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase

from egalitarian.lab.analysis import (
    NOTHING,
    AccuracyRow,
    Cell,
    Count,
    Estimate,
    Gathered,
    MethodRow,
    Quantity,
    Value,
    measured,
    method_rows,
    percent,
    times,
)
from egalitarian.lab.config import OLD_VERSION, Experiment, TablePlan
from egalitarian.lab.report.render import Block


def pair(paper: Value, ours: Value) -> str:
    """The paper's value / ours."""
    if paper is None and ours is None:
        return NOTHING
    return f"{NOTHING if paper is None else paper} / {NOTHING if ours is None else ours}"


def gain_text(gain: Count | float | None) -> str | None:
    """46.5×."""
    return None if gain is None else times(gain)


def plain(count: Count | None) -> str | None:
    """The text for CSV files."""
    return None if count is None else count.plain


def passed(found: Estimate) -> str:
    """2/3, 1 diverged."""
    lost = f", {found.diverged} diverged" if found.diverged else ""
    return f"{found.passed}/{found.n}{lost}" if found.n else NOTHING


class Platforms:
    """The platforms of a table's times, each with a letter if there are several."""

    def __init__(self, rows: Iterable[MethodRow]) -> None:
        found = dict.fromkeys(row.cost.platform for row in rows if row.cost is not None)
        letters = [*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase)]
        self._letters = dict(zip(found, letters, strict=False))

    def time(self, row: MethodRow, value: Count | float | None) -> str | None:
        """A time of a row, with the letter of its platform."""
        if row.cost is None or value is None:
            return None
        return measured(value) + (f" {self._letters[row.cost.platform]}" if len(self._letters) > 1 else "")

    @property
    def notes(self) -> list[str]:
        if len(self._letters) == 1:
            return [f"Our times: {next(iter(self._letters))}"]
        return [f"Our times, {letter}: {platform}" for platform, letter in self._letters.items()]


def compared_cells(experiment: str, method: str, columns: Mapping[int, Quantity]) -> dict[int, Cell]:
    """The numbers of the paper that a row compares, by column."""
    return {column: Cell(experiment, method, measure) for column, measure in columns.items()}


@dataclass(frozen=True)
class Listing:
    """The rows of a table: for each experiment those of the paper's methods, and those of ours."""

    experiments: Sequence[Experiment]
    rows_by_experiment: Sequence[tuple[list[MethodRow], list[MethodRow]]]

    @staticmethod
    def of(plan: TablePlan, gathered: Gathered) -> Listing:
        experiments = gathered.named_in(plan.experiments)
        return Listing(experiments, [method_rows(gathered, experiment, plan) for experiment in experiments])

    @cached_property
    def rows(self) -> list[MethodRow]:
        return [row for paper, ours in self.rows_by_experiment for row in (*paper, *ours)]

    @cached_property
    def platforms(self) -> Platforms:
        return Platforms(self.rows)

    @property
    def first(self) -> Experiment:
        """Its threshold and its rule to end a run are those of all."""
        return self.experiments[0]

    @property
    def threshold(self) -> str:
        return percent(self.first.measure.threshold)

    def blocks(self, cells: Callable[[MethodRow], tuple[str, ...]], compared: Mapping[int, Quantity]) -> tuple[Block, ...]:
        """For each experiment the paper's methods, and below them ours that were run.

        Args:
            cells: the texts of a row.
            compared: from columns to what is compared with the paper there.
        """
        made: list[Block] = []
        for experiment, (paper, ours) in zip(self.experiments, self.rows_by_experiment, strict=True):
            run = [row for row in ours if row.reached.n]
            if paper:
                places = tuple(compared_cells(experiment.name, row.method, compared) for row in paper)
                made.append(Block(experiment.title, tuple(map(cells, paper)), places))
            if run:
                heading = f"{experiment.title}: not in the paper, ours" if paper else experiment.title
                made.append(Block(heading, tuple(map(cells, run))))
        return tuple(made)

    def notes(self) -> list[str]:
        """On methods of ours that are not run, on rows whose seeds took different polar factors, and on older records."""
        missing: dict[str, list[str]] = {}
        for experiment, (_, ours) in zip(self.experiments, self.rows_by_experiment, strict=True):
            missing.setdefault("; ".join(row.title for row in ours if not row.reached.n), []).append(experiment.title)
        notes = [f"Ours that are not run on {', '.join(where)}: {methods}" for methods, where in missing.items() if methods]
        return notes + polar_notes(self.rows)


def polar_notes(rows: Iterable[MethodRow | AccuracyRow]) -> list[str]:
    """Notes on rows whose seeds took the polar factor in different tiers, and on rows of older records alone."""
    notes = {
        "Rows that pool seeds with the polar factor taken in different ways": [row for row in rows if "," in row.polar],
        f"Rows of older records, of version {OLD_VERSION}": [row for row in rows if row.polar and "," not in row.polar],
    }
    return [
        f"{said}: {'; '.join(f'{row.experiment.title}, {row.title} ({row.polar})' for row in found)}"
        for said, found in notes.items()
        if found
    ]


def threshold_notes(experiment: Experiment, hardware: str | None) -> list[str]:
    """How a run ends, and what its times are; with the hardware of the paper's times, if it has some."""
    ours = "training without measuring, divided by the number of seeds trained together"
    theirs = f"The paper's times are a {hardware}'s and cannot be compared with ours; ours are {ours}"
    return [
        f"A run ends {experiment.measure.past} epochs after it passes, or when its budget is spent",
        theirs if hardware else f"Times are {ours}",
    ]


def threshold_record(row: MethodRow) -> dict[str, Value]:
    """The plain values of every row with a threshold."""
    found = row.reached
    return {
        "median": plain(found.median),
        "min": plain(found.low),
        "lower_quartile": plain(found.lower_quartile),
        "upper_quartile": plain(found.upper_quartile),
        "max": plain(found.high),
        "n": found.n,
        "passed": found.passed,
        "diverged": found.diverged,
        "unfinished": found.unfinished,
        "paper_gain": row.paper_gain,
        "gain": plain(row.gain),
        "gain_seconds": plain(row.gain_seconds),
    }
