"""The output of `egalitarian tune`: progress, a family's table, the Markdown page of all families, the estimated cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from egalitarian.lab.console.display import status_line
from egalitarian.lab.console.tables import put, table
from egalitarian.lab.runs import write_atomically
from egalitarian.lab.tuning import (
    COLUMNS,
    Family,
    Job,
    OutOfTime,
    Results,
    about,
    all_results,
    deadline_after,
    estimate,
    file_suffix,
    locked,
    read_results,
    rows,
    writable,
)

WRAPPED = ("points", "inside", "fresh seeds")
"""Columns that may take several lines, so that the table fits into 80 characters."""
INSIDE = "inside: whether all neighbours of the best point were tried."
ALIGNMENT = "lrrrlrrr"
"""Of the columns in the Markdown table: numbers to the right."""
INTRODUCTION = (
    "Rules, and what is equal: docs/tuning.md. Gains are over the tuned plain optimizer, where no seed of it fails. "
    "Epochs count from 0. A gain is a ratio of epochs trained, each one more than its number. Inside: all neighbours "
    "of the best point were tried."
)


def tune_families(job: Job, console: Console, order: Sequence[str], minutes: float | None = None) -> bool:
    """Tunes one family after another in this process, and prints each one's table. False if the minutes ran out."""
    deadline = deadline_after(minutes)
    for family, results in zip(job.families, job.prepare(), strict=True):
        try:
            _tune_family(job, family, results, console, deadline)
        except OutOfTime:
            return False
        finally:
            finish(console, job.out, results, order)
    return True


def _tune_family(job: Job, family: Family, results: Results, console: Console, deadline: float | None) -> None:
    with status_line(console, family.name) as show:
        job.tune(family, results, lambda method, text: show(f"{method}: {text}"), deadline)


def print_stored(job: Job, console: Console, order: Sequence[str]) -> None:
    """Every family's table from its file."""
    for family in job.families:
        finish(console, job.out, job.results(family, replace=False), order)


def finish(console: Console, out: Path, results: Results, order: Sequence[str]) -> None:
    """Prints a family's table, and writes the page of all families in the folder, the plan's order first."""
    if not results.path.exists():
        return
    found = read_results(results.path)
    if not found["methods"]:
        return
    page = out / f"tuned{file_suffix(found)}.md"
    with locked(out), writable(page):
        every, messages = all_results(out, file_suffix(found), order)
        write_atomically(page, markdown(every))
    for text in messages:
        console.print(f"[yellow]{escape(text)}[/yellow]")
    _print_tuned(console, found, results.kept, (results.path, page))
    if results.reused:
        nothing = results.finished and not results.seconds
        rest = " Nothing was left to train; name another --out to repeat the search." if nothing else ""
        console.print(f"{results.reused} points were in the file already.{rest}")


def markdown(found: Iterable[Mapping[str, Any]]) -> str:
    """The page 'Tuned fairly': a table for each family's results."""
    from egalitarian.lab.report import Block, markdown_lines  # here, since it imports matplotlib, which is slow

    lines = ["# Tuned fairly", "", INTRODUCTION]
    for results in found:
        partial = "" if results["complete"] else " (partial)"
        lines += ["", f"## {results['title']}{partial}", "", about(results), ""]
        lines += markdown_lines(COLUMNS, [Block("", tuple(rows(results)))], ALIGNMENT)
    return "\n".join(lines) + "\n"


def _print_tuned(console: Console, results: Mapping[str, Any], kept: Sequence[str], files: Sequence[Path]) -> None:
    title = f"[bold]{escape(results['title'])}[/bold]"
    made = table("method", *(f">{column}" for column in COLUMNS[1:]), title=title)
    for column in made.columns:
        if column.header in WRAPPED:
            column.no_wrap = False
    for row in rows(results):
        made.add_row(*(escape(cell) for cell in row))
    put(console, made)
    console.print(f"[dim]{INSIDE}[/dim]")
    console.print(f"[dim]{escape(about(results).replace('**', ''))}[/dim]")
    for method in kept:
        console.print(f"[yellow]{method}: the file keeps its earlier entry, which is complete or has more points.[/yellow]")
    for path in files:
        console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)


def print_estimate(console: Console, families: Sequence[Family], methods: Sequence[str]) -> None:
    """The points and minutes of every method, and their sum."""
    made = table("family", "method", ">points", ">at most", ">minutes", ">at most ")
    total = [0.0, 0.0]
    for family in families:
        for name in family.only(tuple(methods)):
            found = estimate(family, family.methods[name])
            minutes = [found.seconds / 60, found.most_seconds / 60]
            total = [one + other for one, other in zip(total, minutes, strict=True)]
            made.add_row(family.name, name, str(found.points), str(found.most_points), *(f"{each:.1f}" for each in minutes))
    made.add_row("[bold]all[/bold]", "", "", "", *(f"[bold]{each:.1f}[/bold]" for each in total))
    put(console, made)
    console.print(
        "[dim]On an H200. At most: with every move of the grid. Each point counts with its whole budget, so most searches "
        "take less. These are guesses from the times in lab/paper/_tuning.toml.[/dim]"
    )
