"""What the tables of methods share: how a cell is written, and the notes on where its times are from."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase
from typing import Protocol

from egalitarian.lab.analysis.counts import NOTHING, Count, measured, times
from egalitarian.lab.analysis.rows import Row
from egalitarian.lab.analysis.statistics import Estimate
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.render import Value


def pair(paper: Value, ours: Value) -> str:
    """The paper's / ours."""
    if paper is None and ours is None:
        return NOTHING
    return f"{NOTHING if paper is None else paper} / {NOTHING if ours is None else ours}"


def gained(gain: Count | float | None) -> str | None:
    return None if gain is None else times(gain)


def plain(count: Count | None) -> str | None:
    """For machines."""
    return None if count is None else count.plain


def passed(found: Estimate) -> str:
    """2/3, 1 diverged."""
    lost = f", {found.diverged} diverged" if found.diverged else ""
    return f"{found.passed}/{found.n}{lost}" if found.n else NOTHING


class Places:
    """The platforms that a table's times come from, each with a letter where there are several."""

    def __init__(self, listed: Iterable[Row]) -> None:
        found = dict.fromkeys(row.cost.place for row in listed if row.cost is not None)
        letters = [*ascii_lowercase, *(first + second for first in ascii_lowercase for second in ascii_lowercase)]
        self._letters = dict(zip(found, letters, strict=False))

    def time(self, row: Row, value: Count | float | None) -> str | None:
        """Of a row, with its letter."""
        if row.cost is None or value is None:
            return None
        return measured(value) + (f" {self._letters[row.cost.place]}" if len(self._letters) > 1 else "")

    @property
    def notes(self) -> list[str]:
        if len(self._letters) == 1:
            return [f"Our times: {next(iter(self._letters))}"]
        return [f"Our times, {letter}: {place}" for place, letter in self._letters.items()]


class Pooled(Protocol):
    """A row of any table."""

    @property
    def title(self) -> str: ...
    @property
    def experiment(self) -> Experiment: ...
    @property
    def polar(self) -> str: ...


def pooled(rows: Iterable[Pooled]) -> list[str]:
    """A note on rows whose seeds took the polar factor in different ways."""
    mixed = [f"{row.experiment.title}, {row.title} ({row.polar})" for row in rows if row.polar]
    return [f"Rows that pool seeds with the polar factor taken in different ways: {'; '.join(mixed)}"] if mixed else []


def threshold_notes(experiment: Experiment, hardware: str | None) -> list[str]:
    """How a run ends, and what its times are; and the paper's, if it has some."""
    ours = "training without measuring, divided by the number of seeds trained together"
    theirs = f"The paper's times are a {hardware}'s and cannot be compared with ours; ours are {ours}"
    return [
        f"A run ends {experiment.measure.past} epochs after it passes, or when its budget is spent",
        theirs if hardware else f"Times are {ours}",
    ]


def threshold_record(row: Row) -> dict[str, Value]:
    """What every row that waits for a threshold has, for machines."""
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
