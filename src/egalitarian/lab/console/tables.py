"""Text tables: how they are laid out and printed, and those of `egalitarian list`, `run` and `pack`."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from egalitarian.lab.analysis import epochs_to_threshold
from egalitarian.lab.config import Experiment, Settings, read, setting
from egalitarian.lab.runs import Packing, Progress, Store

LEAST = 8
"""Characters of a column of words, which may be wrapped."""
UNITS = ((1, "s", 60), (60, "min", 60), (3600, "h", 48), (24 * 3600, "days", math.inf))
"""The seconds of a unit, its name, and the number from which the next unit is used."""


def put(console: Console, part: RenderableType) -> None:
    """Prints. A table whose numbers need more than the terminal's width gets it: a cropped number is a wrong number."""
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
    """An empty table. `>` before a column's name means numbers: aligned to the right and never wrapped."""
    made = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        right = column.startswith(">")
        justify: Literal["left", "right"] = "right" if right else "left"
        least = None if right else LEAST
        made.add_column(column.lstrip(">"), justify=justify, overflow="fold", no_wrap=right, min_width=least)
    return made


def trained_table(done: Sequence[Sequence[Progress]]) -> Table:
    """A row for each method of each experiment, with its seeds."""
    made = table("experiment", "method", ">passed", ">epochs to threshold", ">epochs trained")
    for runs in done:
        first = runs[0].run
        passed = sum(run.crossed is not None for run in runs)
        lost = sum(run.diverged for run in runs)
        counts = f"{passed} of {len(runs)}" + (f", {lost} diverged" if lost else "")
        epochs = epochs_to_threshold([run.outcome for run in runs], first.method.epochs)
        made.add_row(
            first.experiment.name, first.method_name, counts, str(epochs), str(max(run.next_epoch for run in runs))
        )
    return made


def describe_packing(packing: Packing) -> Iterator[RenderableType]:
    """A row for each file of evidence; then which runs are unfinished, and which were left out."""
    counts = ("runs", "new", "longer", "unfinished", "epochs", "size")
    made = table("experiment", *(f">{name}" for name in counts[:-1]), ">bytes")
    for row in packing.written:
        made.add_row(row.experiment, *(str(getattr(row, name)) for name in counts))
    sums = {name: sum(getattr(row, name) for row in packing.written) for name in counts}
    made.add_row("[bold]all[/bold]", *map(str, sums.values()))
    yield made
    if sums["unfinished"]:
        yield "Unfinished runs have epochs of their budget left. Once they are trained, pack again."
    if packing.others:
        named = ", ".join(f"{name} ({count})" for name, count in packing.others.items())
        yield f"Left out, as their settings are not the experiment's: {escape(named)}. --all packs them."


@dataclass(frozen=True, kw_only=True)
class Machine(Settings):
    """Where durations were measured."""

    hardware: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Duration(Settings):
    """Seconds for the methods trained by default and 8 seeds, training and measuring; None if not measured."""

    cpu: float | None = setting(None, above=0)
    gpu: float | None = setting(None, above=0)


@dataclass(frozen=True, kw_only=True)
class Durations(Settings):
    """How long each experiment takes: durations.toml, written by benchmarks/durations.py."""

    cpu: Machine
    gpu: Machine
    seconds: Mapping[str, Duration] = field(default_factory=dict)
    """By experiment."""

    def of(self, experiment: str) -> Duration:
        return self.seconds.get(experiment, Duration())


def load_durations() -> Durations:
    text = (resources.files("egalitarian.lab") / "console" / "durations.toml").read_text(encoding="utf-8")
    return read(Durations, tomllib.loads(text), "durations")


def about(seconds: float | None) -> str:
    """A duration to one digit, in a unit of which it has at least one: `8 min`; `-` for None."""
    if seconds is None:
        return "-"
    rounded = ((max(1.0, float(f"{seconds / unit:.1g}")), name, most) for unit, name, most in UNITS)
    return next(f"{number:g} {name}" for number, name, most in rounded if number < most)


def describe_experiments(
    paper: Sequence[Experiment], beyond: Sequence[Experiment], durations: Durations, store: Store
) -> Iterator[RenderableType]:
    """All experiments, by table of the paper, with durations and the number of stored runs; then a user's own."""
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
