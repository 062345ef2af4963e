"""What the commands print: tables and lines from values, nothing computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from egalitarian.lab.grok import MULTIPLE, Shown
from egalitarian.lab.listeners import condition, median
from egalitarian.lab.settings import SpecError, everything
from egalitarian.lab.spec import Experiment, Optim, Run
from egalitarian.lab.store import Store
from egalitarian.lab.sweep import Progress

if TYPE_CHECKING:  # pandas and matplotlib are slow to import, and most commands do without
    from egalitarian.lab.report.check import Checked
    from egalitarian.lab.report.toy import ToyReport
    from egalitarian.lab.report.write import Report


def table(*columns: str, title: str = "") -> Table:
    """`>` before a column's name: numbers, to the right and never broken."""
    made = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return made


def experiments(loaded: Sequence[Experiment], store: Store) -> Table:
    made = table("experiment", "what", "paper", ">methods", ">stored runs")
    for experiment in loaded:
        tables = sorted({claim.table for claim in experiment.claims.values()})
        stored = sum(1 for _ in store.all(experiment.name))
        made.add_row(experiment.name, experiment.title, ", ".join(tables), str(len(experiment.methods)), str(stored or ""))
    return made


def settings(experiment: Experiment) -> Iterator[RenderableType]:
    """Every setting with its source, the methods, the paper's claims."""
    yield f"[bold]{experiment.name}[/bold]: {experiment.title}"
    if experiment.about:
        yield experiment.about
    made = table("setting", "value", "source")
    for part in ("task", "model", "training", "measure"):
        for key, value in leaves(part, everything(getattr(experiment, part))):
            made.add_row(key, said(value), experiment.source(key))
    yield made
    for name, method in experiment.methods.items():
        made = table("setting", "value", "source", title=f"[bold]{name}[/bold]: {method.title}")
        for key, value in leaves("", everything(method)):
            if key not in ("title", "by_default") and not _torch_default(key, value):
                made.add_row(key, said(value), experiment.source(f"methods.{name}.{key}"))
        yield made
    if experiment.claims:
        yield claims(experiment)


def claims(experiment: Experiment) -> Table:
    made = table(
        "method", ">epochs", ">seconds", ">ms per epoch", "where", title="[bold]The paper's numbers[/bold] (Tesla T4)"
    )
    for name, claim in experiment.claims.items():
        numbers = (claim.epochs, claim.seconds, claim.ms_per_epoch)
        made.add_row(name, *("" if number is None else str(number) for number in numbers), claim.table)
    return made


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every single setting by its dotted key, as `--set` takes it; what is absent is left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if _is_chain(value) else None
    if inner is None:
        if value is not None and value != []:
            yield key, value
        return
    for below, item in inner:
        yield from leaves(f"{key}.{below}" if key else str(below), item)


def _torch_default(key: str, value: Any) -> bool:
    """Options of an optimizer that nobody set."""
    _, _, option = key.rpartition(".")
    return key.startswith(("optim.", "hidden.")) and option not in ("optimizer", "lr") and value == _OPTIM[option]


_OPTIM = everything(Optim())


def _is_chain(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def said(value: Any) -> str:
    """A setting as TOML would have it."""
    if isinstance(value, list):
        return escape("[" + ", ".join(said(item) for item in value) + "]")
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def chosen_methods(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Those named, or the usual ones; `all` is all."""
    if list(names) == ["all"]:
        return list(experiment.methods)
    for name in names:
        experiment.method(name)
    return list(names) or [name for name, method in experiment.methods.items() if method.by_default]


def check_picture(path: Path) -> None:
    """Before the training, not after it."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise SpecError(f"--picture must end in .png, .svg or .pdf, got {path}; for example grok.png")
    if not path.parent.is_dir():
        raise SpecError(f"--picture must be in a folder that exists, got {path}; make {path.parent} first")


def outcome(experiment: Experiment, shown: Sequence[Shown], store: Store) -> Table:
    """What became of each method, with the paper's number beside it."""
    threshold = f"{experiment.measure.threshold:.0%}"
    several = any(len(each.runs) > 1 for each in shown)
    made = table(
        "method", f">to {threshold}", ">paper", ">trained", ">test", ">cond.", ">ms/epoch",
        *([">passed"] if several else []),
    )  # fmt: skip
    for each in shown:
        last = [run.last for run in each.runs if run.last is not None]
        claim = experiment.claims.get(each.name)
        passed = [run.crossed for run in each.runs if run.crossed is not None]
        cells = [
            experiment.method(each.name).title,
            f"[bold]{epochs_needed(each.runs)}[/bold]",
            "" if claim is None or claim.epochs is None else str(claim.epochs),
            str(max(run.next_epoch for run in each.runs)),
            f"{median([record['test_accuracy'] for record in last]):.1%}",
            f"{median([condition(record) for record in last]):.0f}",
            f"{milliseconds(each.runs, store):.0f}",
        ]
        made.add_row(*cells, *([f"{len(passed)} of {len(each.runs)}"] if several else []))
    return made


def epochs_needed(runs: Sequence[Progress]) -> str:
    """Median (smallest-largest) over seeds; a bound where half of them or more did not pass."""
    passed = sorted(run.crossed for run in runs if run.crossed is not None)
    if 2 * len(passed) <= len(runs):
        return f"> {min(run.next_epoch for run in runs if run.crossed is None)}"
    spread = f" ({passed[0]}-{passed[-1]})" if len(passed) > 1 else ""
    return f"{median([*passed, *[math.inf] * (len(runs) - len(passed))]):g}{spread}"


def milliseconds(runs: Sequence[Progress], store: Store) -> float:
    """Median training time of one epoch of one seed, evaluation not counted."""
    timings = [line for progress in runs for line in store.find(progress.run).timings]
    return 1e3 * median([line["training"] / line["seeds"] for line in timings])


def remarks(experiment: Experiment, shown: Sequence[Shown]) -> Iterator[str]:
    cut = [experiment.method(each.name).title for each in shown if each.cut_short]
    if cut:
        yield (
            f"[dim]{' and '.join(cut)} got {MULTIPLE} times EGD's epochs and went no further; --full lets them grok. "
            f"Epochs count from 0.[/dim]"
        )
    if any(each.name in experiment.claims and len(each.runs) == 1 for each in shown):
        yield "[dim]One seed says little: --seeds 0-7 shows the spread.[/dim]"


def trained(done: Sequence[Sequence[Progress]]) -> Table:
    made = table("experiment", "method", ">passed", ">epochs to threshold", ">trained")
    for runs in done:
        first: Run = runs[0].run
        passed = sum(run.crossed is not None for run in runs)
        cells = (f"{passed} of {len(runs)}", epochs_needed(runs), str(max(run.next_epoch for run in runs)))
        made.add_row(first.experiment.name, first.method_name, *cells)
    return made


def say_report(console: Console, written: Report) -> None:
    for warning in written.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    for error in written.errors:
        console.print(f"[red]not made:[/red] {escape(error)}", soft_wrap=True)
    for remark in written.remarks:
        console.print(f"[dim]{escape(remark)}.[/dim]", soft_wrap=True)
    variants = f", {written.variants} of other settings listed apart" if written.variants else ""
    removed = f" {len(written.removed)} of an earlier report removed." if written.removed else ""
    console.print(f"{len(written.paths)} files from {written.runs} runs{variants}.{removed}")
    console.print(f"Open {written.out / 'index.html'}, or read {written.out / 'README.md'}", soft_wrap=True)


def say_verdicts(console: Console, checked: Checked) -> None:
    from egalitarian.lab.report.check import in_words

    elsewhere = "On other settings than the paper's numbers are of: its text read literally, or one's own"
    for aside, title in ((False, ""), (True, elsewhere)):
        made = table("", ">paper", ">ours", "spread", ">n", "verdict", title=title)
        section = ""
        for row in checked.verdicts:
            if row.aside == aside and row.kind != "other hardware":
                if row.experiment != section:
                    section = row.experiment
                    made.add_row(f"[bold]{section}[/bold]", f"[dim]{row.table.partition(':')[0]}[/dim]")
                passed = (
                    f"{row.passed} tasks" if row.measure.startswith("gain") else f"{row.passed}/{row.n}" if row.n else ""
                )
                cells = ("  " + row.method, row.paper, row.ours, row.spread, passed, row.verdict)
                made.add_row(*cells, style=STYLES.get(row.kind))
        if made.row_count:
            console.print(made)
    if checked.verdicts:
        console.print(in_words(checked.verdicts))
        units = "paper, ours, spread: epochs to the threshold, average gains in epochs; n: seeds that passed, of all."
        console.print(f"[dim]{units}[/dim]")
    for remark in checked.remarks:
        console.print(f"{escape(remark)}.", soft_wrap=True)
    for warning in checked.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)


STYLES = {
    "inside": "green", "outside": "red", "undecided": "yellow", "known": "yellow", "not run": "dim", "too few seeds": "dim",
}  # fmt: skip


def say_toy(console: Console, report: ToyReport) -> None:
    made = table("claim", ">as printed", ">corrected")
    section = ""
    for row in report.summary:
        if row.where != section:
            section = row.where
            made.add_row(f"[bold]{escape(section)}[/bold]")
        printed, corrected = f"{row.printed_holds} of {row.points}", f"{row.corrected_holds} of {row.points}"
        made.add_row("  " + escape(row.claim), printed, corrected, style=None if row.verdict == "holds" else "yellow")
    console.print(made)
    held, points = sum(row.printed_holds for row in report.summary), sum(row.points for row in report.summary)
    console.print(
        f"Of {points} values {held} hold as printed, {sum(row.corrected_holds for row in report.summary)} as corrected."
    )
    console.print("[dim]Points of a grid at which simulation agrees with the formula; docs/errata.md explains each.[/dim]")
    for path in report.files:
        if path.suffix in (".png", ".csv"):
            console.print(f"Written: [bold]{path}[/bold]", soft_wrap=True)
