"""What is on the pages of a report, and the contents page, README.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from egalitarian.lab.analysis import Verdict, in_words
from egalitarian.lab.report.charts import Chart
from egalitarian.lab.report.render import Block, Table, render_template
from egalitarian.lab.report.summary import DISTANCE, Overview

LAST = 8
"""The column of verdicts."""


class Picture(NamedTuple):
    """A figure of a page."""

    name: str
    title: str
    caption: str
    file: str
    """Relative to the page, without its suffix; empty: there is none."""
    command: str = ""
    """Trains and draws it."""
    image: str = ""
    """The picture as an address that holds it, for the HTML page."""
    chart: Chart | None = None
    """For the HTML page; None: it is a picture alone."""
    clock: str = ""
    """What seconds are."""


@dataclass(frozen=True)
class Page:
    """The contents of a page."""

    title: str
    runs: int
    toy: bool
    """Whether the toy problem's report is in the same folder."""
    tuned: bool
    """Whether the table of tuned methods is."""
    html: bool
    """Whether there is an HTML page."""
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    verdicts: tuple[Verdict, ...]
    overview: Overview
    provenance: Table
    variants: Table
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]

    @property
    def summary(self) -> str:
        return in_words(self.verdicts)

    @property
    def judged(self) -> Table:
        """The cells that can be compared. Times are in the other tables."""
        shown = [verdict for verdict in self.verdicts if verdict.compared]
        blocks = {
            table: [verdict for verdict in shown if verdict.table == table]
            for table in dict.fromkeys(verdict.table for verdict in shown)
        }
        return Table(
            name="verdicts",
            title="The paper against our seeds, cell by cell",
            number="",
            columns=(
                "experiment",
                "method",
                "measure",
                "paper",
                "ours, median",
                "spread",
                "passed",
                "distance",
                "verdict on the paper's value",
            ),
            blocks=tuple(
                Block(heading, tuple(map(_cells, own)), tuple({LAST: verdict.cell} for verdict in own))
                for heading, own in blocks.items()
            ),
            notes=(
                "Spread: smallest to largest seed. A seed that does not pass counts as larger than all others",
                DISTANCE,
                "Of an average gain, spread and distance are of averages made from one seed per cell, and passed counts "
                "tasks. The spread is their central 95 %. Judged is the paper's average over the same tasks",
                "Of an accuracy (in %), passed counts the runs that went through their whole budget. Of a final accuracy, "
                "the spread is over the last tenth of their epochs, with half of the paper's last digit to spare",
                'Inside: between the smallest and the largest seed that passed. The paper\'s "never" is inside if half of '
                "the seeds or more do not pass",
                "Undecided: above every seed that passed, while others did not pass. Known: outside, and docs/errata.md "
                "says why",
                "Wall-clock cells come from other hardware and have no verdict. They are in the tables",
            ),
            records=(),
        )


def _cells(verdict: Verdict) -> tuple[str, ...]:
    passed = str(verdict.passed) if verdict.measure == "gain in epochs" else f"{verdict.passed}/{verdict.n}"
    ours = [cell or "–" for cell in (verdict.ours, verdict.spread)]
    counted = passed if verdict.n else "–"
    rest = (counted, verdict.distance or "–", verdict.verdict)
    return (verdict.experiment, verdict.method, verdict.measure, verdict.paper, *ours, *rest)


def readme(page: Page) -> str:
    """The contents page: links to tables, figures and summaries."""
    return render_template("report.md.j2", page=page)
