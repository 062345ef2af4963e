"""What `egalitarian tune` shows: where it is, the table at the end, what it would cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from egalitarian.lab.console import tables as shows
from egalitarian.lab.runs.progress import Progress, Silent
from egalitarian.lab.runs.store import Record
from egalitarian.lab.tuning.estimate import estimate
from egalitarian.lab.tuning.files import all_results, alone, apart, read_results, write
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.results import Results
from egalitarian.lab.tuning.table import HEAD, about, markdown, rows

FOLDED = ("points", "inside", "fresh seeds")
"""Columns that may take several lines, so that the table fits 80 letters."""
INSIDE = "inside: whether all neighbours of the best point were tried."


class Aloud(Silent):
    """Says at every epoch where a point is; what is being done comes from `doing`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._doing = tell, ""

    def doing(self, text: str) -> None:
        self._doing = text
        self._tell(text)

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        latest = [own[0] for own in records]
        seen = [record.get("validation_accuracy", record["test_accuracy"]) or 0.0 for record in latest]
        self._tell(f"{self._doing}; epoch {latest[0]['epoch']}, accuracy {statistics.median(seen):.1%}")

    def note(self, text: str) -> None:
        self._tell(text)


def finish(console: Console, out: Path, results: Results, order: Sequence[str]) -> None:
    """Shows a family's table and writes the one of all families, of what is known now."""
    if not results.path.exists():
        return
    found = read_results(results.path)
    if not found["methods"]:
        return
    suffix = apart(found)
    page = out / f"tuned{suffix}.md"
    with alone(out):
        told: list[str] = []
        write(page, markdown(all_results(out, suffix, order, told.append)))
    for text in told:
        console.print(f"[yellow]{escape(text)}[/yellow]")
    _say_tuned(console, found, results.kept, (results.path, page))
    if results.taken:
        nothing = results.finished and not results.seconds
        rest = " Nothing was left to train; name another --out to repeat the search." if nothing else ""
        console.print(f"{results.taken} points were in the file already.{rest}")


def _say_tuned(console: Console, results: Mapping[str, Any], kept: Sequence[str], files: Sequence[Path]) -> None:
    made = shows.table("method", *(f">{heading}" for heading in HEAD[1:]), title=f"[bold]{escape(results['title'])}[/bold]")
    for column in made.columns:
        if column.header in FOLDED:
            column.no_wrap = False
    for row in rows(results):
        made.add_row(*(escape(cell) for cell in row))
    shows.put(console, made)
    console.print(f"[dim]{INSIDE}[/dim]")
    console.print(f"[dim]{escape(about(results).replace('**', ''))}[/dim]")
    for method in kept:
        console.print(f"[yellow]{method}: the file keeps its earlier entry, which is complete or has more points.[/yellow]")
    for path in files:
        console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)


def say_estimate(console: Console, families: Sequence[Family], methods: Sequence[str]) -> None:
    made = shows.table("family", "method", ">points", ">at most", ">minutes", ">at most ")
    total = [0.0, 0.0]
    for family in families:
        for name in family.only(tuple(methods)):
            found = estimate(family, family.methods[name])
            minutes = [found.seconds / 60, found.most_seconds / 60]
            total = [one + other for one, other in zip(total, minutes, strict=True)]
            made.add_row(family.name, name, str(found.points), str(found.most_points), *(f"{each:.1f}" for each in minutes))
    made.add_row("[bold]all[/bold]", "", "", "", *(f"[bold]{each:.1f}[/bold]" for each in total))
    shows.put(console, made)
    console.print(
        "[dim]On an H200. At most: with every move of the grid. Each point counts with its whole budget, so most searches "
        "take less. These are guesses from the times in lab/paper/_tuning.toml.[/dim]"
    )
