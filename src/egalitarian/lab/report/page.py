"""The report as an HTML page, and as Markdown for a repository's web page. Both link the files of the figures."""

from __future__ import annotations

from dataclasses import dataclass

from egalitarian.lab.analysis import Verdict, in_words
from egalitarian.lab.report.render import Block, Table, markdown, render_template
from egalitarian.lab.report.summary import DISTANCE, Overview


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    title: str
    caption: str
    file: str
    """Relative to the page, without its suffix; empty: there is none."""


@dataclass(frozen=True)
class Page:
    """The contents of a page."""

    title: str
    runs: int
    toy: bool
    """Whether the toy problem's report is in the same folder."""
    tuned: bool
    """Whether the table of tuned methods is."""
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
            table: tuple(_cells(verdict) for verdict in shown if verdict.table == table)
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
            blocks=tuple(Block(heading, rows) for heading, rows in blocks.items()),
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


def html(page: Page) -> str:
    """One file with its styles, for light and dark screens."""
    return render_template("report.html.j2", page=page)


def readme(page: Page) -> str:
    """The same as Markdown."""
    return render_template("report.md.j2", page=page, markdown=markdown)
