"""`egalitarian grok`: methods trained in turn, slow ones not to the end; a table and a picture of the results."""

from __future__ import annotations

import io
import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from egalitarian.lab.analysis import MethodSummary, summarize_method
from egalitarian.lab.config import Experiment, Look, LowRankPolarSettings, Method, PolarSettings, RowNormSettings
from egalitarian.lab.console.tables import table
from egalitarian.lab.report.figures import (
    FOOT,
    WIDTH,
    Flag,
    accuracy_axis,
    draw_levels,
    epoch_axis,
    flag_panels,
    literal,
    looks_of,
    lowest,
    mark,
    styled,
)
from egalitarian.lab.runs import (
    Interrupted,
    Listener,
    Progress,
    Record,
    Stop,
    Store,
    sweep,
    threshold_text,
    try_step,
    writable,
    write_atomically,
)

SHORT = 2000
"""Epochs of a budget that is never cut: within them SGD at lr 5 passes on every modular task."""
MULTIPLE = 5
"""A method that does not equalise and has a longer budget gets this many times the epochs that EGD needed."""


@dataclass(frozen=True)
class MethodRuns:
    """One method of the comparison, with its trained seeds."""

    name: str
    stop: Stop
    full_budget: int
    runs: tuple[Progress, ...]

    @property
    def median(self) -> float:
        """The epoch at which half of the seeds have passed; infinite if half of them have not."""
        return statistics.median(math.inf if run.crossed is None else run.crossed for run in self.runs)

    @property
    def cut_short(self) -> bool:
        """Whether a seed was stopped early because the method is one of the slow ones."""
        spent = (run.crossed is None and not run.diverged and run.next_epoch >= self.stop.epochs for run in self.runs)
        return self.stop.epochs < self.full_budget and any(spent)


def ranked(compared: Iterable[MethodRuns]) -> list[MethodRuns]:
    """Methods in the order in which they pass."""
    return sorted(compared, key=lambda each: each.median)


def order(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """The methods to train, those that equalise first: the budget of the others depends on them."""
    names = names or _usual(experiment)
    return sorted(names, key=lambda name: not equalises(experiment.method(name)))


def _usual(experiment: Experiment) -> list[str]:
    """The methods trained by default, without EGD by a randomized SVD if others are left: it is slow on a CPU."""
    few = [name for name in experiment.usual if not _has(experiment.method(name), LowRankPolarSettings)]
    return few if len(few) > 1 else experiment.usual


def equalises(method: Method) -> bool:
    return _has(method, PolarSettings | LowRankPolarSettings | RowNormSettings)


def _has(method: Method, kinds: UnionType | type) -> bool:
    return any(isinstance(link, kinds) for link in method.transform)


def compare(
    experiment: Experiment,
    names: Sequence[str],
    seeds: Sequence[int],
    store: Store,
    device: torch.device,
    listener: Listener,
    full: bool = False,
) -> Iterator[MethodRuns]:
    """Trains each method in turn. Unless `full`, a method that does not equalise gets a part of a long budget."""
    compared: list[MethodRuns] = []
    names = order(experiment, names)
    for name in names:
        try_step(experiment, name, seeds[0])
    for name in names:
        budget = Stop.of(experiment, name)
        stop = budget
        limit = epoch_limit([each for each in compared if equalises(experiment.method(each.name))])
        if not full and not equalises(experiment.method(name)) and budget.epochs > SHORT and limit is not None:
            stop = replace(budget, epochs=min(budget.epochs, limit))
        try:
            runs = sweep(experiment, name, seeds, store, device, stop=stop, listener=listener)
        except Interrupted as interrupted:
            yield MethodRuns(name, stop, budget.epochs, tuple(interrupted.runs))
            raise
        compared.append(MethodRuns(name, stop, budget.epochs, tuple(runs)))
        yield compared[-1]


def epoch_limit(compared: Sequence[MethodRuns]) -> int | None:
    """`MULTIPLE` times the epochs of the slowest seed that passed, of EGD or else of the first method that has one.

    If no seed passed, the epochs that the method was given; None if there is no method.
    """
    ordered = sorted(compared, key=lambda each: each.name != "egd")
    passed = [[MULTIPLE * (run.crossed + 1) for run in each.runs if run.crossed is not None] for each in ordered]
    given = [[each.stop.epochs] for each in ordered]
    return next((max(epochs) for epochs in (*passed, *given) if epochs), None)


class Compared(NamedTuple):
    """One row of the table: a method, its seeds and their summary."""

    title: str
    method: MethodRuns
    summary: MethodSummary

    @staticmethod
    def of(experiment: Experiment, method: MethodRuns, store: Store) -> Compared:
        timings = [store.find(progress.run).timings for progress in method.runs]
        budget = experiment.method(method.name).epochs
        summary = summarize_method([progress.outcome for progress in method.runs], timings, budget)
        return Compared(escape(experiment.method(method.name).title), method, summary)

    @property
    def passed(self) -> bool:
        """Whether more than half of the seeds did."""
        return self.summary.passed and not math.isinf(self.method.median)

    @property
    def clock(self) -> str:
        """Seconds to the threshold; `never` if half of the seeds have diverged."""
        seconds = self.summary.seconds
        return "never" if math.isinf(seconds.value) else f"{seconds.sign} {short(seconds.value)}".strip()


def describe_comparison(experiment: Experiment, methods: Sequence[MethodRuns], store: Store) -> Iterator[RenderableType]:
    """The table, the fastest method, and remarks on how to read it."""
    results = [Compared.of(experiment, each, store) for each in ranked(methods)]
    yield comparison_table(experiment, results)
    if experiment.measure.has_threshold and len(results) > 1:
        yield fastest(experiment, results)
    yield from remarks(experiment, methods)


def comparison_table(experiment: Experiment, results: Sequence[Compared]) -> Table:
    """Epochs, seconds and best accuracy of each method, next to the paper's epochs."""
    threshold = threshold_text(experiment.measure.threshold)
    several = any(len(each.method.runs) > 1 for each in results)
    claimed = any(each.method.name in experiment.claims for each in results)
    waits = [f">epochs\nto {threshold}", f">seconds\nto {threshold}"] if experiment.measure.has_threshold else []
    more = [*([">paper's\nepochs"] if claimed else []), ">best\ntest", ">ms per\nepoch"]
    made = table("method", *waits, *more, *([">seeds\npassed"] if several and waits else []))
    for each in results:
        claim = experiment.claims.get(each.method.name)
        passed = [run.crossed for run in each.method.runs if run.crossed is not None]
        cells = [
            each.title,
            *([f"[bold]{each.summary.epochs}[/bold]", f"[bold]{each.clock}[/bold]"] if waits else []),
            *([str(claim.epochs) if claim is not None and claim.epochs is not None else ""] if claimed else []),
            f"{statistics.median(max(run.curve) for run in each.method.runs if run.curve):.1%}",
            short(each.summary.ms_per_epoch),
        ]
        made.add_row(*cells, *([f"{len(passed)} of {len(each.method.runs)}"] if several and waits else []))
    return made


def fastest(experiment: Experiment, results: Sequence[Compared]) -> str:
    """The fastest method on the clock and the one with the fewest epochs, which may differ."""
    passed = [each for each in results if each.passed]
    if not passed:
        return f"No method passed {threshold_text(experiment.measure.threshold)}."
    clock, epochs = min(passed, key=lambda each: each.summary.seconds.value), passed[0]
    if clock is epochs:
        return (
            f"Fastest: [bold]{clock.title}[/bold], on the clock ({clock.clock} s) and in epochs ({clock.method.median:g})."
        )
    return "\n".join(
        f"{what}: [bold]{each.title}[/bold], {each.clock} s and {each.method.median:g} epochs."
        for what, each in (("Fastest on the clock", clock), ("Fewest epochs", epochs))
    )


def short(value: float) -> str:
    """A whole number, or two digits if it is below 10; empty for NaN."""
    return "" if math.isnan(value) else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def remarks(experiment: Experiment, methods: Sequence[MethodRuns]) -> Iterator[str]:
    """What the columns mean, and which methods were cut, interrupted or diverged."""
    if experiment.measure.has_threshold:
        yield (
            "[dim]epochs: the first, counted from 0, with test accuracy above the threshold.\n"
            "seconds: training one seed through that epoch, without measuring. Seeds trained together share the time "
            "equally.[/dim]"
        )
    for each in ranked(methods):
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
    yield "[dim]The settings are the experiment's own. docs/tuning-windows.md compares tuned methods.[/dim]"
    if any(len(each.runs) == 1 for each in methods) and experiment.measure.has_threshold:
        yield "[dim]Results differ between seeds: --seeds 0-7 shows the spread.[/dim]"


HEIGHT, INSIDE = 2.6, 5.3
"""Inches: the picture without names, and the width of its axis."""


@styled
def draw_grok(store: Store, experiment: Experiment, methods: Sequence[MethodRuns], path: Path) -> None:
    """Every seed is a line: solid for test, dotted for train accuracy; a mark where the threshold is passed.

    A method's name stands above its median epoch, or above the end of its line.
    """
    looks = looks_of([experiment], [each.name for each in methods])
    figure = Figure(figsize=(WIDTH, FOOT + HEIGHT), layout="constrained")
    axis = figure.add_subplot()
    accuracy_axis(axis, "accuracy", lowest(experiment))
    flags = []
    for each in methods:
        for progress in each.runs:
            records = [record for record in store.find(progress.run).records() if "snapshot" not in record]
            records = records[: progress.next_epoch]
            _draw_seed(axis, records, progress.crossed, looks[each.name], alone=len(each.runs) == 1)
        flags.append(_flag(experiment, each, looks[each.name]))
    draw_levels(axis, experiment)
    epoch_axis([axis])
    axis.set_title(textwrap.fill(literal(title(experiment, methods)), 88), loc="left")
    figure.set_figheight(figure.get_figheight() + flag_panels([axis], [flags], INSIDE, HEIGHT))
    kinds = [
        Line2D([], [], color="0.3", label="test, every seed"),
        Line2D([], [], color="0.3", ls=":", lw=1, label="train"),
    ]
    figure.legend(handles=kinds, loc="outside lower center", ncols=2)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."))
    with writable(path, "free some space, or name another file with --picture; the runs are stored"):
        write_atomically(path, picture.getvalue())


def title(experiment: Experiment, methods: Sequence[MethodRuns]) -> str:
    """What is to be seen."""
    if not experiment.measure.has_threshold:
        return f"{experiment.heading}: accuracy by epoch"
    threshold = f"{100 * experiment.measure.threshold:g} % test accuracy"
    first = ranked(methods)[0]
    if math.isinf(first.median):
        return f"{experiment.heading}: no method has passed {threshold}"
    name = experiment.method(first.name).title
    return f"{experiment.heading}: {name} passes {threshold}{' first,' if len(methods) > 1 else ''} {_passing(first)}"


def _draw_seed(axis: Axes, records: Sequence[Record], crossed: int | None, drawn: Look, alone: bool) -> None:
    width, strength = (1.6, 1.0) if alone else (0.9, 0.7)
    test, train = _curve(records, "test_accuracy"), _curve(records, "train_accuracy")
    axis.plot(*test, color=drawn.colour, ls=drawn.line, lw=width, alpha=strength, zorder=3)
    axis.plot(*train, color=drawn.colour, lw=0.9, alpha=0.8, ls=":")
    if crossed is not None:
        mark(axis, crossed, records[crossed]["test_accuracy"], drawn)


def _flag(experiment: Experiment, method: MethodRuns, drawn: Look) -> Flag:
    """At the median epoch and the threshold; at the end if half of the seeds have not passed, or none is waited for."""
    last = max((run.next_epoch - 1 for run in method.runs), default=0)
    name, waits = experiment.method(method.name).title, experiment.measure.has_threshold
    if waits and not math.isinf(method.median):
        return Flag(f"{name}: {method.median:g}", method.median, experiment.measure.threshold, drawn.colour)
    height = statistics.median(run.curve[-1] for run in method.runs if run.curve)
    return Flag(f"{name}: {_passing(method)}" if waits else name, last, height, drawn.colour)


def _passing(method: MethodRuns) -> str:
    if math.isinf(method.median):
        return f"not in {max(run.next_epoch for run in method.runs)} epochs"
    return f"at epoch {method.median:g}{' (median)' if len(method.runs) > 1 else ''}"


def _curve(records: Sequence[Record], measure: str) -> tuple[list[int], list[float]]:
    return [record["epoch"] for record in records], [record[measure] for record in records]
