"""The report as an HTML page, and as its Markdown twin for browsing a repository; both show the figures' files."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from egalitarian.lab.analysis.verdicts import Verdict, in_words
from egalitarian.lab.report.render import Block, Table, markdown
from egalitarian.lab.report.summary import Overview


@dataclass(frozen=True)
class Picture:
    """A figure as it stands in a page."""

    title: str
    caption: str
    file: str
    """Beside the page, without its ending; empty: there is none."""


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    title: str
    runs: int
    folder: str
    """Of the stored runs, by its name."""
    toy: bool
    """Whether the toy problem's report lies beside it."""
    tuned: bool
    """Whether a table of fair tuning does."""
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
        """The cells that can be compared; wall-clock cells stand in the tables."""
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
                "verdict on the paper's value",
            ),
            blocks=tuple(Block(heading, rows) for heading, rows in blocks.items()),
            notes=(
                "Spread: smallest to largest seed. A seed that does not pass counts as larger than all others",
                "Of an average gain, the spread is the central 95 % of averages made from one seed per cell, and passed "
                "counts tasks",
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
    return (verdict.experiment, verdict.method, verdict.measure, verdict.paper, *ours, counted, verdict.verdict)


def html(page: Page) -> str:
    """With its styles inside; opens from a file, in light and in dark."""
    return _environment(autoescape=True).get_template("report.html.j2").render(page=page)


def readme(page: Page) -> str:
    """The same with links to the figures' files."""
    return _environment(autoescape=False).get_template("report.md.j2").render(page=page, markdown=markdown)


def _environment(*, autoescape: bool) -> Environment:
    loader = PackageLoader("egalitarian.lab.report", "templates")
    return Environment(
        loader=loader,
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
