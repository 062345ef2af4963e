"""The output of `egalitarian tune`: progress, a family's table, the Markdown page of all families, the estimated cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from egalitarian.lab.console.display import status_line
from egalitarian.lab.console.tables import put, table
from egalitarian.lab.runs import write_atomically
from egalitarian.lab.tuning import (
    Family,
    Job,
    OutOfTime,
    Results,
    TunedRow,
    about,
    all_results,
    compared,
    deadline_after,
    estimate,
    file_suffix,
    headings,
    load_plan,
    locked,
    rank_forms,
    read_results,
    rows,
    unit_of,
    writable,
)

if TYPE_CHECKING:  # matplotlib is slow to import
    from egalitarian.lab.report import Table

SHOWN = ("method", "lr", "decay", "third", "fresh", "passed", "against")
"""Columns that the terminal shows; the page has all."""
WRAPPED = ("method", "third", "fresh", "against")
"""Columns that may take several lines, so that the table fits into 80 characters."""
ALIGNMENT = "lrrlrlrrlrl"
"""Of the columns in the Markdown table: numbers to the right."""
INTRODUCTION = (
    "Rules, and what is equal: docs/tuning.md. Epochs are passes over the data, through the reading that passes the "
    "threshold. Ahead: every fresh seed is better than every one of every stock optimizer. Behind: every one is worse than "
    "every one of some stock optimizer. Level: else, with the share of pairs of seeds that are won. A ratio is the "
    "smallest median of a stock optimizer over the method's. Inside: points were tried on both sides of the best learning "
    "rate and decay."
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
    _print_tuned(console, found, results.kept, (results.path, page, *_draw(page, every)))
    _print_waiting(console, results, every)
    if results.reused:
        nothing = results.finished and not results.seconds
        rest = " Nothing was left to train; name another --out to repeat the search." if nothing else ""
        console.print(f"{results.reused} points were in the file already.{rest}")


def _draw(page: Path, every: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The pictures of every experiment with fresh seeds, and one of all if there are several. Returns those in PNG."""
    families = {name: compared(results, name) for results in every for name in results["titles"]}
    known = {name: methods for name, methods in families.items() if methods}
    if not known:
        return []
    from egalitarian.lab.report.figures import draw_costs, draw_ratios, save, slim  # here: matplotlib is slow to import

    pictures = {
        name: draw_costs(results["titles"][name], known[name], unit_of(results))
        for results in every
        for name in results["titles"]
        if name in known
    }
    if len(known) > 1:
        pictures["all"] = draw_ratios(known)
    files = [file for name, picture in pictures.items() for file in save(picture, page.with_name(f"{page.stem}-{name}"))]
    for file in files:
        slim(file)
    return [file for file in files if file.suffix == ".png"]


def _print_waiting(console: Console, results: Results, every: Sequence[Mapping[str, Any]]) -> None:
    """Why fresh seeds were not trained, if they were not, and which form the rules call ours."""
    if results.waits:
        forms = escape(" or ".join(results.waits))
        console.print(f"[yellow]Fresh seeds wait until the plan says which form is `ours`: {forms}.[/yellow]")
        for form, worst, product in rank_forms(every):
            console.print(f"{escape(form)}: worst ratio {worst:.3g}, product {product:.3g} over {len(every)} families")
    elif results.fresh_wait and not results.complete:
        console.print("[yellow]Fresh seeds are timed, so they are trained alone: run this again without --jobs.[/yellow]")


def markdown(found: Iterable[Mapping[str, Any]]) -> str:
    """The page 'Tuned fairly': a table for each experiment of each family's results."""
    from egalitarian.lab.report import Block, markdown_lines  # here, since it imports matplotlib, which is slow

    lines = ["# Tuned fairly", "", INTRODUCTION]
    for results in found:
        partial = "" if results["complete"] else " (partial)"
        for name, title in results["titles"].items():
            lines += ["", f"## {title}{partial}", "", about(results, name), ""]
            lines += markdown_lines(headings(results), [Block("", tuple(rows(results, name)))], ALIGNMENT)
    return "\n".join(lines) + "\n"


def tuned_tables(folder: Path) -> tuple[list[Table], list[str]]:
    """The tables of the fair comparison's results in a folder, for a report, and a message for each damaged file."""
    from egalitarian.lab.report import Block, Table

    every, messages = all_results(folder, "", list(load_plan()))
    tables = [
        Table(
            name=f"tuned-{name}",
            title=title + ("" if results["complete"] else " (partial)"),
            number="",
            columns=tuple(headings(results)),
            blocks=(Block("", tuple(rows(results, name))),),
            notes=(about(results, name),),
            records=tuple(row._asdict() for row in rows(results, name)),
        )
        for results in every
        for name, title in results["titles"].items()
    ]
    return tables, messages


def _print_tuned(console: Console, results: Mapping[str, Any], kept: Sequence[str], files: Sequence[Path]) -> None:
    for name, title in results["titles"].items():
        _print_table(console, results, name, title)
    for method in kept:
        console.print(f"[yellow]{method}: the file keeps its earlier entry, which is complete or has more points.[/yellow]")
    for path in files:
        console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)


def _print_table(console: Console, results: Mapping[str, Any], name: str, title: str) -> None:
    names = dict(zip(TunedRow._fields, headings(results), strict=True))
    made = table(
        *(names[each] if each in WRAPPED else f">{names[each]}" for each in SHOWN), title=f"[bold]{escape(title)}[/bold]"
    )
    for column, each in zip(made.columns, SHOWN, strict=True):
        column.no_wrap = each not in WRAPPED
    for row in rows(results, name):
        made.add_row(*(escape(getattr(row, each)) for each in SHOWN))
    put(console, made)
    console.print(f"[dim]{escape(about(results, name))}[/dim]")


def print_estimate(console: Console, families: Sequence[Family], methods: Sequence[str]) -> None:
    """The points of every family and the passes over its data, at most."""
    made = table("family", ">methods", ">points", ">at most", ">passes over the data, at most")
    for family in families:
        found = estimate(family, tuple(methods))
        made.add_row(family.name, *(f"{number:,}".replace(",", " ") for number in found))
    put(console, made)
    console.print(
        "[dim]At most: with all points beyond edges, and if no point passes. Most take a small part of it, since later "
        "points get a few times the epochs of the best. All tuning seeds count as one.[/dim]"
    )
