"""What the commands print that make a report of stored runs, hold them to the paper, or simulate the toy problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from egalitarian.lab.console.tables import LEAST, put, table

if TYPE_CHECKING:  # pandas and matplotlib are slow to import, and most commands do without
    from egalitarian.lab.analysis.verdicts import Checked
    from egalitarian.lab.report.toy import ToyReport
    from egalitarian.lab.report.write import Report


def say_report(console: Console, written: Report) -> None:
    for warning in written.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    for error in written.errors:
        console.print(f"[red]not made:[/red] {escape(error)}", soft_wrap=True)
    for remark in written.remarks:
        console.print(f"[dim]{escape(remark)}.[/dim]", soft_wrap=True)
    variants = f"; {written.variants} runs of other settings are listed separately" if written.variants else ""
    removed = f" Removed {len(written.removed)} files of an earlier report." if written.removed else ""
    if written.cost:
        console.print("Time that the stored runs took, training and measuring:")
    for line in written.cost:
        console.print(f"  {escape(line)}", soft_wrap=True)
    counted = f"{written.runs} run{'s' if written.runs != 1 else ''}"
    console.print(f"Wrote {len(written.paths)} files from {counted}{variants}.{removed}")
    out = escape(str(written.out))
    console.print(f"Open {out}/index.html in a browser, or read {out}/README.md.", soft_wrap=True)


def say_verdicts(console: Console, checked: Checked) -> None:
    from egalitarian.lab.analysis.verdicts import in_words

    elsewhere = "Other settings than those of the paper's numbers: its text read literally, or your own"
    for aside, title in ((False, ""), (True, elsewhere)):
        made = table("method", "what", ">paper", ">ours", "spread", ">n", "verdict", title=title)
        made.columns[0].no_wrap = True
        made.columns[1].max_width = LEAST
        section, rows = "", [row for row in checked.verdicts if row.aside == aside and row.compared]
        begun = {row.experiment for row in rows if row.kind != "not run"}
        absent = list(dict.fromkeys(row.experiment for row in rows if row.experiment not in begun))
        for row in rows:
            if row.experiment in begun:
                if row.experiment != section:
                    section = row.experiment
                    made.add_row(f"[bold]{section}[/bold]", f"[dim]{escape(row.table.partition(':')[0])}[/dim]")
                passed = (
                    f"{row.passed} tasks" if row.measure.startswith("gain") else f"{row.passed}/{row.n}" if row.n else ""
                )
                cells = ("  " + row.method, row.measure, row.paper, row.ours, row.spread, passed, row.verdict)
                made.add_row(*cells, style="bold red" if row.contradicts else STYLES.get(row.kind))
        if made.row_count:
            put(console, made)
        if absent:
            console.print(f"[dim]Not run: {escape(', '.join(absent))}.[/dim]")
    if checked.verdicts:
        console.print(f"Cells: {in_words(checked.verdicts)}.")
        units = (
            "Epochs and steps count until the threshold; accuracies are in %.\n"
            "n: seeds that passed, of all; for accuracies, runs that count.\n"
            "spread: smallest to largest seed; of a final accuracy, over the last tenth of the epochs."
        )
        console.print(f"[dim]{units}[/dim]")
    for row in checked.contradictions:
        told = f"{row.cell.name} ({row.measure}): the record says {row.recorded}, the runs say {row.verdict}"
        console.print(f"[red]contradiction:[/red] {escape(told)}", soft_wrap=True)
    for remark in checked.remarks:
        console.print(f"{escape(remark)}.", soft_wrap=True)
    for warning in checked.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)


STYLES = {
    "inside": "green", "outside": "red", "undecided": "yellow", "known": "yellow", "not run": "dim", "too few seeds": "dim",
}  # fmt: skip


def say_toy(console: Console, report: ToyReport, quick: bool = False) -> None:
    made = table("claim", ">as printed", ">corrected")
    section = ""
    for row in report.summary:
        if row.where != section:
            section = row.where
            made.add_row(f"[bold]{escape(section)}[/bold]")
        counts = (f"{row.printed_holds} of {row.points}", f"{row.corrected_holds} of {row.points}")
        made.add_row(Padding(escape(row.claim), (0, 0, 0, 2)), *counts, style=None if row.verdict == "holds" else "yellow")
    put(console, made)
    printed = report.printed
    console.print(
        f"Of {printed.total()} claims {printed['hold']} hold as printed, {printed['in part']} in part, "
        f"{printed['fail']} fail; corrected, {report.corrected} hold."
    )
    console.print(
        "[dim]Counts: points of a grid at which the simulation agrees with the claim. docs/errata.md explains the "
        "corrections.[/dim]"
    )
    if quick:
        console.print("[dim]--quick has small samples, so a few counts differ from those of docs/errata.md.[/dim]")
    for path in report.files:
        if path.suffix in (".png", ".csv"):
            console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)
