"""The report as one HTML page that needs nothing else, and as its Markdown twin for browsing a repository."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from egalitarian.lab.report.check import Verdict, in_words
from egalitarian.lab.report.render import Block, Table, markdown
from egalitarian.lab.report.slim import inline


@dataclass(frozen=True)
class Picture:
    """A figure as it stands in a page."""

    name: str
    """Of its files."""
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    title: str
    runs: int
    folder: str
    """Of the stored runs, by its name."""
    toy: bool
    """Whether the toy problem's report lies beside it."""
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    verdicts: tuple[Verdict, ...]
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
        shown = [verdict for verdict in self.verdicts if verdict.measure in ("epochs", "gain in epochs")]
        blocks = {
            table: tuple(_cells(verdict) for verdict in shown if verdict.table == table)
            for table in dict.fromkeys(verdict.table for verdict in shown)
        }
        return Table(
            name="verdicts",
            title="The paper against our seeds, cell by cell",
            number="",
            columns=("experiment", "method", "paper", "ours, median", "spread", "passed", "verdict on the paper's value"),
            blocks=tuple(Block(heading, rows) for heading, rows in blocks.items()),
            notes=(
                "The spread is minimum to maximum over seeds, a seed that does not pass counting as larger than all; of "
                "average gains, the central 95 % of those made from one seed per cell, and passed counts tasks there",
                'Inside: within the smallest to largest of the seeds that passed, and of the paper\'s "never", if half of '
                "the seeds or more do not pass. Undecided: above every seed that passed while others did not. Known: "
                "outside, for a reason that the errata tell",
                "The paper's wall-clock cells are of other hardware and have no verdict; they stand in the tables",
            ),
            records=(),
        )


def _cells(verdict: Verdict) -> tuple[str, ...]:
    passed = str(verdict.passed) if verdict.measure == "gain in epochs" else f"{verdict.passed}/{verdict.n}"
    ours = [cell or "–" for cell in (verdict.ours, verdict.spread)]
    return (verdict.experiment, verdict.method, verdict.paper, *ours, passed if verdict.n else "–", verdict.verdict)


def html(page: Page) -> str:
    """Inline figures and styles; opens from a file, in light and in dark."""
    figures = [(picture, inline(picture.svg, f"f{place}")) for place, picture in enumerate(page.pictures)]
    return _environment(autoescape=True).get_template("report.html.j2").render(page=page, figures=figures)


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
