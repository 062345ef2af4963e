"""What the commands print: tables and lines from values, nothing computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from egalitarian.lab.grok import MULTIPLE, Shown
from egalitarian.lab.listeners import condition, median
from egalitarian.lab.progress import Progress
from egalitarian.lab.report.statistics import median_and_range
from egalitarian.lab.settings import SpecError, everything
from egalitarian.lab.spec import Claim, Experiment, Optim, Run
from egalitarian.lab.store import Store

if TYPE_CHECKING:  # pandas and matplotlib are slow to import, and most commands do without
    from egalitarian.lab.bench.measured import Measured


LEAST = 8
"""Letters of a column of words, which are folded."""


def put(console: Console, part: RenderableType) -> None:
    """Prints; a table whose numbers need more than the terminal's width gets it: a cropped number is a wrong number."""
    width = console.width
    if isinstance(part, Table):
        console.width = max(width, sum(_needed(column) + 3 for column in part.columns))
    console.print(part)
    console.width = width


def _needed(column: Column) -> int:
    if not column.no_wrap:
        return column.min_width or 0
    return max(Text.from_markup(str(cell)).cell_len for cell in (column.header, *column.cells))


def table(*columns: str, title: str = "") -> Table:
    """`>` before a column's name: numbers, to the right and never broken."""
    made = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        right = column.startswith(">")
        justify: Literal["left", "right"] = "right" if right else "left"
        least = None if right else LEAST
        made.add_column(column.lstrip(">"), justify=justify, overflow="fold", no_wrap=right, min_width=least)
    return made


def experiments(loaded: Sequence[Experiment], store: Store) -> Iterator[RenderableType]:
    """What there is, and how many runs of each are stored; then what is stored of a user's own."""
    made = table("experiment", "what", "paper", ">methods", ">stored")
    made.columns[0].no_wrap = True
    names = [experiment.name for experiment in loaded]
    for experiment in loaded:
        tables = sorted({claim.table for claim in experiment.claims.values()})
        stored = sum(1 for _ in store.all(experiment.name))
        made.add_row(experiment.name, experiment.title, ", ".join(tables), str(len(experiment.methods)), str(stored or ""))
    others = Counter(stored.experiment for stored in store.all())
    for name in sorted(set(others) - set(names)):
        made.add_row(name, "[dim]your own[/dim]", "", "", str(others[name]))
    yield made
    yield "[dim]stored: runs, one for each method, seed and choice of settings, in " + escape(str(store.root)) + "[/dim]"


def settings(experiment: Experiment, methods: Sequence[str]) -> Iterator[RenderableType]:
    """Every setting with its source, these methods, the paper's claims on them."""
    yield f"[bold]{experiment.name}[/bold]: {escape(experiment.heading)}"
    if experiment.about:
        yield escape(experiment.about)
    made = table("setting", "value", "source")
    for part in ("task", "model", "training", "measure"):
        for key, value in leaves(part, everything(getattr(experiment, part))):
            made.add_row(key, said(value), escape(experiment.source(key)))
    yield made
    for name in methods:
        method = experiment.method(name)
        made = table("setting", "value", "source", title=f"[bold]{name}[/bold]: {escape(method.title)}")
        for key, value in leaves("", everything(method)):
            if key not in ("title", "by_default") and not _torch_default(key, value):
                made.add_row(key, said(value), escape(experiment.source(f"methods.{name}.{key}")))
        yield made
    claimed = {name: claim for name, claim in experiment.claims.items() if name in methods}
    if claimed:
        yield claims(claimed)


def claims(claimed: Mapping[str, Claim]) -> Table:
    """What the paper says of each method, in the columns that it has."""
    kinds = [key for key in CLAIMED if any(getattr(claim, key) is not None for claim in claimed.values())]
    numbers = [f">{key.replace('_', ' ')}" for key in kinds]
    made = table("method", *numbers, "where", title="[bold]The paper's numbers[/bold] (Tesla T4)")
    for name, claim in claimed.items():
        values = [getattr(claim, key) for key in kinds]
        made.add_row(name, *("" if value is None else str(value) for value in values), claim.table)
    return made


CLAIMED = ("epochs", "steps", "seconds", "ms_per_epoch", "ms_per_step", "final_accuracy", "mean_train_accuracy")


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every single setting by its dotted key, as `--set` takes it; what is absent is left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if _is_chain(value) else None
    if inner is None:
        if value is not None and value not in ([], ""):
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
    return (
        f"{value:g}" if isinstance(value, float) else escape(str(value).lower() if isinstance(value, bool) else str(value))
    )


def chosen_methods(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Those named, or the usual ones; `all` is all."""
    if "all" in names:
        return list(experiment.methods)
    for name in names:
        experiment.method(name)
    return list(names) or [name for name, method in experiment.methods.items() if method.by_default]


def kept_apart(experiment: Experiment, name: str, changes: Sequence[str]) -> Iterator[str]:
    """What a change of the optimizer's settings leaves as it is: the equalised matrices may have their own."""
    hidden, optim = experiment.method(name).hidden, experiment.method(name).optim
    for key in dict.fromkeys(change.split("=")[0].strip().removeprefix(f"methods.{name}.") for change in changes):
        setting = key.removeprefix("optim.")
        if key == setting or hidden is None or getattr(hidden, setting, None) == getattr(optim, setting, None):
            continue
        own = f"keep hidden.{setting} = {said(getattr(hidden, setting))}"
        yield f"{experiment.name} {name}: the matrices of the hidden layer {own}; --set hidden.{setting}=... changes it."


def check_picture(path: Path) -> None:
    """Before the training, not after it."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise SpecError(f"--picture must end in .png, .svg or .pdf, got {path}; for example grok.png")
    if path.is_dir():
        raise SpecError(f"--picture must be a file, got the folder {path}; name a file in it")
    if not path.parent.is_dir():
        raise SpecError(f"--picture must be in a folder that exists, got {path}; make {path.parent} first")


def said_of(experiment: Experiment, shown: Sequence[Shown], store: Store) -> Iterator[RenderableType]:
    """A comparison's table, and what to know to read it."""
    yield outcome(experiment, shown, store)
    yield from remarks(experiment, shown)


def outcome(experiment: Experiment, shown: Sequence[Shown], store: Store) -> Table:
    """What became of each method, with the paper's number beside it."""
    threshold = f"{experiment.measure.threshold:.0%}"
    several = any(len(each.runs) > 1 for each in shown)
    claimed = any(each.name in experiment.claims for each in shown)
    columns = [f">to {threshold}", *([">paper"] if claimed else []), ">best test", ">cond.", ">ms/epoch"]
    made = table("method", *columns, *([">passed"] if several else []))
    for each in shown:
        last = [run.last for run in each.runs if run.last is not None]
        claim = experiment.claims.get(each.name)
        passed = [run.crossed for run in each.runs if run.crossed is not None]
        cells = [
            escape(experiment.method(each.name).title),
            f"[bold]{epochs_needed(each.runs)}[/bold]",
            *([str(claim.epochs) if claim is not None and claim.epochs is not None else ""] if claimed else []),
            f"{median([max(run.curve) for run in each.runs if run.curve]):.1%}",
            known(median([condition(record) for record in last])),
            known(milliseconds(each.runs, store)),
        ]
        made.add_row(*cells, *([f"{len(passed)} of {len(each.runs)}"] if several else []))
    return made


def known(value: float) -> str:
    """A whole number, or two digits where it is small; nothing where there is none."""
    return "" if math.isnan(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def epochs_needed(runs: Sequence[Progress]) -> str:
    """Median (smallest-largest) over seeds, as everywhere in the lab."""
    return median_and_range([(run.crossed, failed_by(run)) for run in runs])


def failed_by(run: Progress) -> int:
    """The epochs within which a seed did not pass; one that diverged never will, so its whole budget counts."""
    return max(run.next_epoch, run.run.method.epochs) if run.diverged else run.next_epoch


def milliseconds(runs: Sequence[Progress], store: Store) -> float:
    """Median training time of one epoch of one seed, evaluation not counted."""
    timings = [line for progress in runs for line in store.find(progress.run).timings]
    return 1e3 * median([line["training"] / line["seeds"] for line in timings])


def remarks(experiment: Experiment, shown: Sequence[Shown]) -> Iterator[str]:
    threshold = f"{experiment.measure.threshold:.0%}"
    yield (
        f"[dim]to {threshold}: the first epoch, from 0, whose test accuracy is past it. cond.: the condition number of the "
        f"hidden gradient in the last epoch. ms/epoch: training one seed, evaluation not counted.[/dim]"
    )
    cut = [each for each in shown if each.cut_short]
    if cut:
        names = " and ".join(escape(experiment.method(each.name).title) for each in cut)
        yield (
            f"[dim]{names}: {MULTIPLE} times EGD's epochs and no more; --full gives up to "
            f"{max(each.full_budget for each in cut)} epochs.[/dim]"
        )
    for each in shown:
        lost = [str(run.run.seed) for run in each.runs if run.diverged]
        if lost:
            yield f"[dim]{escape(experiment.method(each.name).title)}: diverged, seed {', '.join(lost)}.[/dim]"
    if any(each.name in experiment.claims and len(each.runs) == 1 for each in shown):
        yield "[dim]One seed says little: --seeds 0-7 shows the spread.[/dim]"


def trained(done: Sequence[Sequence[Progress]]) -> Table:
    made = table("experiment", "method", ">passed", ">epochs to threshold", ">trained")
    for runs in done:
        first: Run = runs[0].run
        passed = sum(run.crossed is not None for run in runs)
        lost = sum(run.diverged for run in runs)
        counts = f"{passed} of {len(runs)}" + (f", {lost} diverged" if lost else "")
        cells = (counts, epochs_needed(runs), str(max(run.next_epoch for run in runs)))
        made.add_row(first.experiment.name, first.method_name, *cells)
    return made


def say_bench(console: Console, measured: Measured, files: Sequence[Path]) -> None:
    """The table with a line for each group, how to read it, and where it is written."""
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
    for line in (measured.heading, measured.theme.about):
        console.print(f"[dim]{escape(line)}[/dim]")
    for path in files:
        console.print(f"Written: [bold]{escape(str(path))}[/bold]", soft_wrap=True)
