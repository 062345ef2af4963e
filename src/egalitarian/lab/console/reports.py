"""Commands that read stored runs, simulate or measure, and print what they found: report, check, pack, toy, bench."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from egalitarian.lab.config import SpecError
from egalitarian.lab.console.display import status_line
from egalitarian.lab.console.options import (
    EVIDENCE,
    STORE,
    DeviceOption,
    ExperimentsArgument,
    RunsOption,
    SourceOption,
    ThreadsOption,
    existing_source,
    own_folder,
    parse_counts,
    parse_day,
    parse_numbers,
    print_source,
    split_each,
    write_own_file,
)
from egalitarian.lab.console.tables import LEAST, describe_packing, put, table
from egalitarian.lab.runs import OTHER_FOLDER, Store, choose_device, configure_process, writable
from egalitarian.lab.runs import pack as pack_source

if TYPE_CHECKING:  # pandas and matplotlib are slow to import, and most commands do without
    from egalitarian.lab.analysis import Checked, Verdict
    from egalitarian.lab.bench import Measured
    from egalitarian.lab.report import Report, ToyReport

STYLES = {
    "inside": "green", "outside": "red", "undecided": "yellow", "known": "yellow", "not run": "dim", "too few seeds": "dim",
}  # fmt: skip
"""Styles of verdicts in the terminal."""


def report(
    experiments: ExperimentsArgument = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to write to.")] = Path("report"),
    html: Annotated[
        bool, typer.Option("--html", help="Write index.html, too: everything in one file, with interactive figures.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite a report of more runs, or a README.md that is not a report's.")
    ] = False,
    runs: SourceOption = None,
) -> None:
    """Write tables, figures and, with --html, a page from stored runs. Never trains.

    Evidence is read like stored runs: see `egalitarian pack`. Tables are in Markdown, CSV and LaTeX, figures in PNG and
    SVG. Files of an earlier report that this one lacks are removed; your own files stay.

    The web page opens from disk and makes no request. It includes the figures of `egalitarian toy` in FOLDER/toy, and the
    tables of `egalitarian tune` from the files tuned-*.json in FOLDER.

    Exits with 1 when a run or a file of evidence cannot be read, or a figure cannot be drawn. The rest is written.
    """
    from egalitarian.lab.console.tuning import tuned_tables
    from egalitarian.lab.report import write_report

    console, source = Console(highlight=False), existing_source(runs, experiments)
    out = own_folder("--out", out)
    tuned, messages = tuned_tables(out) if html else ([], [])
    written = write_report(source, out, tuple(experiments or ()), replace=replace, html=html, tuned=tuned)
    print_source(console, source)
    for text in messages:
        console.print(f"[yellow]{escape(text)}[/yellow]", soft_wrap=True)
    print_report(console, written)
    if not written.complete or messages:
        raise typer.Exit(1)


def check(
    experiments: ExperimentsArgument = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 also for cells that are not run, undecided or not on record.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write the verdicts of these runs to a TOML file.")
    ] = None,
    runs: SourceOption = None,
) -> None:
    """Compare the paper's numbers with the stored runs, cell by cell.

    A line for each cell of the paper's tables: its number, our median and spread over seeds 0 to 7, and a verdict. "Inside"
    means that the paper's number is within our spread. docs/lab.md explains the other verdicts.

    Exits with 1 when the runs contradict a verdict on record (lab/paper/_verdicts.toml), or when one cannot be read.
    """
    from egalitarian.lab.analysis import check as judge
    from egalitarian.lab.analysis import load_record, record_to_toml

    console, source = Console(highlight=False), existing_source(runs, experiments)
    checked = judge(source, tuple(experiments or ()))
    print_source(console, source)
    print_verdicts(console, checked)
    if record is not None:
        write_own_file(record, "[[verdicts]]", record_to_toml(checked.verdicts, load_record()))
        console.print(f"Written: [bold]{escape(str(record))}[/bold]", soft_wrap=True)
        console.print("Add a reason there for every cell that is not inside.")
    if not checked.is_consistent(strict=strict):
        raise typer.Exit(1)


def pack(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the evidence.")] = EVIDENCE,
    replace: Annotated[bool, typer.Option("--replace", help="Take runs that were trained twice as stored.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Pack runs of other settings, too.")] = False,
    runs: RunsOption = STORE,
) -> None:
    """Pack stored runs into evidence: few small files, for a repository.

    Evidence has every run's settings, environment, accuracies and losses of each epoch, and the snapshots that figures
    show. `egalitarian report` and `check` read it like stored runs.

    Runs that are packed in the folder stay. One with more epochs replaces one with fewer.

    Runs of the lab's experiments with other settings are left out: those of `egalitarian tune`, and those changed with
    --set. --all packs them.

    Exits with 1 when a run cannot be packed. The rest is packed nevertheless.
    """
    if any(Store(out).each()):
        raise SpecError(f"--out must be a folder of evidence, got {out} with stored runs; name another")
    console, source = Console(highlight=False), existing_source(runs)
    packing = pack_source(source, out, replace=replace, everything=everything)
    print_source(console, source)
    for part in describe_packing(packing):
        put(console, part)
    for error in packing.errors:
        console.print(f"[red]not packed:[/red] {escape(error)}", soft_wrap=True)
    console.print(f"Evidence: [bold]{escape(str(out))}[/bold]", soft_wrap=True)
    if packing.errors:
        raise typer.Exit(1)


def toy(
    eps: Annotated[
        str,
        typer.Option(
            "--eps",
            metavar="X,...",
            help="Sizes of the weak feature in the curves.",
            show_default="0.01,0.001",
        ),
    ] = "",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the figures.")] = Path("toy"),
    quick: Annotated[bool, typer.Option("--quick", help="Small samples: seconds instead of a minute.")] = False,
) -> None:
    """Simulate the toy problem of the paper's Section 3; test its theory.

    Every claim is checked as printed and as corrected; docs/errata.md explains the corrections.
    """
    from egalitarian.lab.report import toy_report

    console = Console(highlight=False)
    with console.status("Simulating"):
        done = toy_report(parse_numbers("--eps", eps), out, quick)
    print_toy(console, done, quick)


def bench(
    themes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="THEME", help="kernels, step, train, experiment, clock.", show_default="all but train and clock"
        ),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds",
            metavar="N,...",
            help="Numbers of seeds to train together. Default: 1,8; for clock 8; for step on a GPU 1,8,64.",
        ),
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="WORKLOAD",
            help="For train: mod97, mlp; on a GPU resnet18, gpt-4x1024, ...; may be repeated.",
            show_default="all",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that it works: seconds.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for tables and pictures.")] = Path("bench"),
    date: Annotated[
        str, typer.Option("--date", metavar="DAY", help="Day in the names of files.", show_default="today")
    ] = "",
) -> None:
    """Measure what EGD costs: kernels, a training step, an experiment.

    kernels: every method for the polar factor, with its error.

    step: a training step with and without EGD, for the paper's networks and a GPT's matrices; Muon and other packages are
    measured where they are installed.

    train: whole training steps of an MLP up to a GPT, beside Muon, in several processes. Killed, the same command goes on
    where it stopped.

    experiment: addition-97 trained to 95%.

    clock: six of the paper's tasks, trained with its SGD and with EGD, which takes hours on a CPU.

    Without a name, kernels, step and experiment take minutes on a GPU and a quarter of an hour on a CPU. Ctrl-C keeps what
    has been measured.
    """
    from egalitarian.lab.bench import Setup, chosen, chosen_workloads, measure_theme

    console = Console(highlight=False)
    configure_process(threads, None)
    listed, counts, where = chosen(themes or ()), parse_counts("--seeds", seeds), choose_device(device)
    if out.exists() and not out.is_dir():
        raise SpecError(f"--out must be a folder, got the file {out}; name another")
    setup = Setup(where, quick, counts, only=tuple(split_each(only)), out=out, date=parse_day("--date", date))
    if setup.only and "train" not in [theme.name for theme in listed]:
        raise SpecError(f"--only must go with the theme train, got {', '.join(setup.only)}; `egalitarian bench train`")
    chosen_workloads(setup)
    with writable(out, OTHER_FOLDER):
        out.mkdir(parents=True, exist_ok=True)
    for theme in listed:
        with status_line(console, theme.name) as update:
            remark = partial(console.print, soft_wrap=True, markup=False)
            measured = measure_theme(theme, dataclasses.replace(setup, report=update, note=remark))
        files: Sequence[Path] = ()
        try:
            files = measured.write(out)
        finally:  # with a full disk, too, the table is shown: it took minutes to measure
            print_bench(console, measured, files)
        if not measured.complete:
            console.print("Stopped. What was measured is written.")
            raise typer.Exit(130)


def print_report(console: Console, written: Report) -> None:
    """Prints warnings, errors, the time that the runs took, and where the report is."""
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
    page = (written.out / "index.html") in written.paths
    opens = f"Open {out}/index.html in a browser, or read {out}/README.md."
    console.print(opens if page else f"Read {out}/README.md. --html writes everything into one web page.", soft_wrap=True)


def print_verdicts(console: Console, checked: Checked) -> None:
    """Prints a row for each cell of the paper, those of other settings in a table of their own; then how to read it."""
    from egalitarian.lab.analysis import in_words

    elsewhere = "Other settings than those of the paper's numbers: its text read literally, or your own"
    for other, title in ((False, ""), (True, elsewhere)):
        _print_cells(console, [row for row in checked.verdicts if row.other_settings == other and row.compared], title)
    if checked.verdicts:
        console.print(f"Cells: {in_words(checked.verdicts)}.")
        units = (
            "Epochs and steps count until the threshold; accuracies are in %.\n"
            "n: seeds that passed, of all; for accuracies, runs that count.\n"
            "spread: smallest to largest seed; of a final accuracy, over the last tenth of the epochs.\n"
            "verdict: after the distance, the paper's value minus our median in interquartile ranges of our seeds."
        )
        console.print(f"[dim]{units}[/dim]")
    for row in checked.contradictions:
        text = f"{row.cell.name} ({row.measure}): recorded as {row.recorded}, now {row.verdict}"
        console.print(f"[red]contradiction:[/red] {escape(text)}", soft_wrap=True)
    for remark in checked.remarks:
        console.print(f"{escape(remark)}.", soft_wrap=True)
    for warning in checked.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)


def _print_cells(console: Console, rows: Sequence[Verdict], title: str) -> None:
    made = table("method", "what", ">paper", ">ours", "spread", ">n", "verdict", title=title)
    made.columns[0].no_wrap = True
    made.columns[1].max_width = LEAST
    begun = {row.experiment for row in rows if row.kind != "not run"}
    section = ""
    for row in rows:
        if row.experiment in begun:
            if row.experiment != section:
                section = row.experiment
                made.add_row(f"[bold]{section}[/bold]", f"[dim]{escape(row.table.partition(':')[0])}[/dim]")
            passed = f"{row.passed} tasks" if row.measure.startswith("gain") else f"{row.passed}/{row.n}" if row.n else ""
            verdict = f"{row.distance} {row.verdict}".strip()
            cells = ("  " + row.method, row.measure, row.paper, row.ours, row.spread, passed, verdict)
            made.add_row(*cells, style="bold red" if row.contradicts else STYLES.get(row.kind))
    if made.row_count:
        put(console, made)
    absent = list(dict.fromkeys(row.experiment for row in rows if row.experiment not in begun))
    if absent:
        console.print(f"[dim]Not run: {escape(', '.join(absent))}.[/dim]")


def print_toy(console: Console, report: ToyReport, quick: bool = False) -> None:
    """Prints a row for each claim, how many hold, and the files."""
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


def print_bench(console: Console, measured: Measured, files: Sequence[Path]) -> None:
    """Prints the table with a line for each group, how to read it, and the files."""
    head, *body = measured.cells()
    made = table(
        head[1], *(f">{heading}" for heading in head[2:-1]), head[-1], title=f"[bold]{measured.theme.title}[/bold]"
    )
    made.columns[0].no_wrap = True
    section = ""
    for group, method, *numbers, note in body:
        if group != section:
            section = group
            made.add_row(f"[bold]{escape(group)}[/bold]")
        made.add_row("  " + escape(method), *numbers, f"[dim]{escape(note)}[/dim]")
    put(console, made)
    for line in (measured.heading, measured.about):
        console.print(f"[dim]{escape(line)}[/dim]")
    for path in files:
        console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)
