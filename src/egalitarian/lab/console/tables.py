"""What the commands print: tables and lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from egalitarian.lab.analysis.counts import Count
from egalitarian.lab.analysis.statistics import median_and_range, quantile
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment, Run
from egalitarian.lab.console.display import median
from egalitarian.lab.console.durations import Durations, about
from egalitarian.lab.console.grok import Shown, ranked
from egalitarian.lab.runs.progress import Progress, percent
from egalitarian.lab.runs.store import Store

if TYPE_CHECKING:  # pandas and matplotlib are slow to import, and most commands do without
    from egalitarian.lab.bench.measured import Measured


LEAST = 8
"""Letters of a column of words, which are folded."""


def put(console: Console, part: RenderableType) -> None:
    """Prints; a table whose numbers need more than the terminal's width gets it: a cropped number is a wrong number."""
    width = console.width
    if isinstance(part, Table):
        console.width = max(width, sum(_needed(column) + 2 for column in part.columns))
    console.print(part)
    console.width = width


def _needed(column: Column) -> int:
    if not column.no_wrap:
        return column.min_width or 0
    lines = [line for cell in (column.header, *column.cells) for line in Text.from_markup(str(cell)).split("\n")]
    return max(line.cell_len for line in lines)


def table(*columns: str, title: str = "") -> Table:
    """`>` before a column's name: numbers, to the right and never broken."""
    made = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        right = column.startswith(">")
        justify: Literal["left", "right"] = "right" if right else "left"
        least = None if right else LEAST
        made.add_column(column.lstrip(">"), justify=justify, overflow="fold", no_wrap=right, min_width=least)
    return made


def experiments(
    paper: Sequence[Experiment], beyond: Sequence[Experiment], durations: Durations, store: Store
) -> Iterator[RenderableType]:
    """What there is, table by table of the paper, how long it takes and how many runs are stored; then a user's own."""
    counts = Counter(stored.experiment for stored in store.all())
    made = table("experiment", ">CPU", ">GPU", *([">stored"] if counts else []), "what it is")
    made.columns[0].no_wrap = True
    section = ""
    for experiment in (*paper, *beyond):
        tables = sorted({claim.table for claim in experiment.claims.values()})
        if (heading := ", ".join(tables) or "not in the paper") != section:
            section = heading
            made.add_row(f"[bold]{section}[/bold]")
        took = durations.of(experiment.name)
        stored = [str(counts.get(experiment.name, ""))] if counts else []
        made.add_row(f"  {experiment.name}", about(took.cpu), about(took.gpu), *stored, escape(experiment.title))
    own = sorted(set(counts) - {experiment.name for experiment in (*paper, *beyond)})
    if own:
        made.add_row("[bold]your own[/bold]")
    for name in own:
        made.add_row(f"  {name}", "", "", str(counts[name]))
    yield made
    yield (
        f"[dim]CPU, GPU: about how long `egalitarian run NAME` takes, with 8 seeds and the methods that `egalitarian show "
        f"NAME` lists. CPU: one thread, {durations.cpu.hardware}, {durations.cpu.date}. GPU: {durations.gpu.hardware}, "
        f"{durations.gpu.date}. -: not measured.[/dim]"
    )
    if counts:
        yield f"[dim]stored: runs in the folder {escape(str(store.root))}. A run is one method with one seed.[/dim]"


def chosen_methods(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Those named, or the usual ones; `all` is all."""
    if "all" in names:
        return list(experiment.methods)
    for name in names:
        experiment.method(name)
    return list(names) or experiment.usual


def check_picture(path: Path) -> None:
    """Before the training, not after it."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise SpecError(f"--picture must end in .png, .svg or .pdf, got {path}; for example grok.png")
    if path.is_dir():
        raise SpecError(f"--picture must be a file, got the folder {path}; name a file in it")
    if not path.parent.is_dir():
        raise SpecError(f"--picture must be in a folder that exists, got {path}; make {path.parent} first")


def said_of(experiment: Experiment, shown: Sequence[Shown], store: Store) -> Iterator[RenderableType]:
    """A comparison's table, which method is fastest, and what to know to read it."""
    results = [Result.of(experiment, each, store) for each in ranked(shown)]
    yield outcome(experiment, results)
    if experiment.measure.waits and len(results) > 1:
        yield fastest(experiment, results)
    yield from remarks(experiment, shown)


class Result(NamedTuple):
    """What became of one method, its seeds taken together."""

    title: str
    shown: Shown
    epochs: str
    seconds: Count
    """Training time to the threshold."""
    milliseconds: float

    @staticmethod
    def of(experiment: Experiment, shown: Shown, store: Store) -> Result:
        timings = [timings_of(progress, store) for progress in shown.runs]
        passed = sorted(sum(own) for own, run in zip(timings, shown.runs, strict=True) if run.crossed is not None)
        bounds = sorted(
            math.inf if run.diverged else sum(own)
            for own, run in zip(timings, shown.runs, strict=True)
            if run.crossed is None
        )
        return Result(
            title=escape(experiment.method(shown.name).title),
            shown=shown,
            epochs=epochs_needed(shown.runs),
            seconds=quantile(passed, bounds, 0.5),
            milliseconds=1e3 * median([seconds for own in timings for seconds in own]),
        )

    @property
    def passed(self) -> bool:
        """Whether half of the seeds did."""
        return not self.seconds.sign and not math.isinf(self.shown.median)

    @property
    def clock(self) -> str:
        """`never` where all seeds that did not pass have diverged."""
        never = math.isinf(self.seconds.value)
        return "never" if never else f"{self.seconds.sign} {known(self.seconds.value)}".strip()


def timings_of(progress: Progress, store: Store) -> list[float]:
    """Seconds of training, epoch by epoch, up to the one that passes: of a batch of seeds, one seed's share."""
    by_epoch = {line["epoch"]: line["training"] / line["seeds"] for line in store.find(progress.run).timings}
    last = progress.next_epoch - 1 if progress.crossed is None else progress.crossed
    return [seconds for epoch, seconds in sorted(by_epoch.items()) if epoch <= last]


def outcome(experiment: Experiment, results: Sequence[Result]) -> Table:
    """What became of each method, with the paper's number next to it."""
    threshold = percent(experiment.measure.threshold)
    runs = [each.shown.runs for each in results]
    several = any(len(own) > 1 for own in runs)
    claimed = any(each.shown.name in experiment.claims for each in results)
    waits = [f">epochs\nto {threshold}", f">seconds\nto {threshold}"] if experiment.measure.waits else []
    more = [*([">paper's\nepochs"] if claimed else []), ">best\ntest", ">ms per\nepoch"]
    made = table("method", *waits, *more, *([">seeds\npassed"] if several and waits else []))
    for each in results:
        claim = experiment.claims.get(each.shown.name)
        passed = [run.crossed for run in each.shown.runs if run.crossed is not None]
        cells = [
            each.title,
            *([f"[bold]{each.epochs}[/bold]", f"[bold]{each.clock}[/bold]"] if waits else []),
            *([str(claim.epochs) if claim is not None and claim.epochs is not None else ""] if claimed else []),
            f"{median([max(run.curve) for run in each.shown.runs if run.curve]):.1%}",
            known(each.milliseconds),
        ]
        made.add_row(*cells, *([f"{len(passed)} of {len(each.shown.runs)}"] if several and waits else []))
    return made


def fastest(experiment: Experiment, results: Sequence[Result]) -> str:
    """Which method is first on the clock, and which in epochs: these need not be the same."""
    passed = [each for each in results if each.passed]
    if not passed:
        return f"No method passed {percent(experiment.measure.threshold)}."
    clock, epochs = min(passed, key=lambda each: each.seconds.value), passed[0]
    if clock is epochs:
        return (
            f"Fastest: [bold]{clock.title}[/bold], on the clock ({clock.clock} s) and in epochs ({clock.shown.median:g})."
        )
    return "\n".join(
        f"{what}: [bold]{each.title}[/bold], {each.clock} s and {each.shown.median:g} epochs."
        for what, each in (("Fastest on the clock", clock), ("Fewest epochs", epochs))
    )


def known(value: float) -> str:
    """A whole number, or two digits where it is small; nothing where there is none."""
    return "" if math.isnan(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def epochs_needed(runs: Sequence[Progress]) -> str:
    """Median (smallest-largest) over seeds, as everywhere in the lab."""
    return median_and_range([(run.crossed, failed_by(run)) for run in runs])


def failed_by(run: Progress) -> int:
    """The epochs within which a seed did not pass; one that diverged never will, so its whole budget counts."""
    return max(run.next_epoch, run.run.method.epochs) if run.diverged else run.next_epoch


def remarks(experiment: Experiment, shown: Sequence[Shown]) -> Iterator[str]:
    if experiment.measure.waits:
        yield (
            "[dim]epochs: the first, counted from 0, with test accuracy above the threshold.\n"
            "seconds: training one seed through that epoch, without measuring. Seeds trained together share the time "
            "equally.[/dim]"
        )
    for each in ranked(shown):
        title = escape(experiment.method(each.name).title)
        if each.cut_short:
            yield (
                f"[dim]{title} was stopped after {each.stop.epochs} of its {each.full_budget} epochs; "
                f"--full trains it to the end.[/dim]"
            )
        if not all(run.done(each.stop) for run in each.runs):
            trained = max(run.next_epoch for run in each.runs)
            yield f"[dim]{title} was interrupted after {trained} epochs. The same command resumes it.[/dim]"
        lost = [str(run.run.seed) for run in each.runs if run.diverged]
        if lost:
            yield f"[dim]{title} diverged with seed {', '.join(lost)}: the loss is no longer a number.[/dim]"
    yield "[dim]The settings are the experiment's own. docs/tuning.md compares tuned methods.[/dim]"
    if any(len(each.runs) == 1 for each in shown) and experiment.measure.waits:
        yield "[dim]One seed says little: --seeds 0-7 shows the spread.[/dim]"


def trained(done: Sequence[Sequence[Progress]]) -> Table:
    made = table("experiment", "method", ">passed", ">epochs to threshold", ">epochs trained")
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
