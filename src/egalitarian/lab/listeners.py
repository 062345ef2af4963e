"""Who listens to a sweep: a live display in the terminal, plain lines in a log, TensorBoard files."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from egalitarian.lab.store import Record
from egalitarian.lab.sweep import Listener, Progress, Stop
from egalitarian.lab.textplot import text_plot

COLOURS = ("dark_orange", "dodger_blue1", "spring_green3", "grey62", "medium_purple1", "gold1", "deep_pink2", "cyan3")
LINE_EVERY = 5.0
"""Seconds between lines where there is no terminal to redraw."""


def median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def condition(record: Record) -> float | None:
    """Of the hidden gradient, above its rounding noise."""
    largest, smallest = record.get("sigma_max"), record.get("sigma_min")
    return largest / smallest if largest and smallest else None


class Display:
    """Progress bars with accuracies and condition number, and the curves of test accuracy so far; lines in a log."""

    def __init__(self, console: Console, curves: bool = True) -> None:
        self._console, self._curves = console, curves
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=18),
            TextColumn("epoch {task.fields[epoch]:>5}  {task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console)
        self._histories: dict[str, list[tuple[int, float]]] = {}
        self._colours: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4)
        self._bar: TaskID | None = None
        self._told = 0.0
        self._stop: Stop | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        first = runs[0].run
        label = f"{first.experiment.name} {first.method_name}"
        title = first.method.title if self._curves else label
        colour = self._colours.setdefault(title, COLOURS[len(self._colours) % len(COLOURS)])
        seeds = f" x{len(runs)}" if len(runs) > 1 else ""
        self._bar = self._bars.add_task(
            f"[{colour}]{title}{seeds}", total=stop.epochs, completed=runs[0].next_epoch, epoch=runs[0].next_epoch, state=""
        )
        self._history = self._histories.setdefault(title, [])
        self._stop, self._told = stop, time.monotonic()
        if not self._console.is_terminal:
            went_on = f", from epoch {runs[0].next_epoch}" if runs[0].next_epoch else ""
            self._console.print(f"{label}: {len(runs)} seed(s), up to {stop.epochs} epochs{went_on}")

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        assert self._bar is not None
        latest = [own[0] for own in records]
        test = median([record["test_accuracy"] for record in latest])
        state = (
            f"train {median([record['train_accuracy'] for record in latest]):6.1%}  test {test:6.1%}  "
            f"cond {median([condition(record) for record in latest]):7.1e}"
        )
        number = latest[0]["epoch"]
        self._history.append((number, test))
        self._bars.update(self._bar, completed=number + 1, epoch=number, state=state)
        if not self._console.is_terminal and time.monotonic() - self._told > LINE_EVERY:
            self._console.print(f"  epoch {number:>5}  {state}")
            self._told = time.monotonic()

    def ends(self, runs: Sequence[Progress]) -> None:
        assert self._bar is not None
        for run in runs:
            if self._stop is not None and run.last is not None:
                outcome = _outcome(run, self._stop)
                self._bars.update(self._bar, total=run.next_epoch, state=outcome)
                if not self._console.is_terminal:
                    self._console.print(f"  seed {run.run.seed}: {outcome}")

    def _draw(self) -> Group:
        plot = text_plot(self._histories, self._colours) if self._curves and self._histories else Text("")
        return Group(Text("test accuracy", style="dim") if self._curves else Text(""), plot, self._bars)


def _outcome(run: Progress, stop: Stop) -> str:
    assert run.last is not None
    if run.diverged:
        return f"diverged at epoch {run.last['epoch']}"
    if run.crossed is not None:
        return f"passed {stop.threshold:.0%} at epoch {run.crossed}, test {run.last['test_accuracy']:.1%}"
    return f"not past {stop.threshold:.0%} by epoch {run.last['epoch']}, test {run.last['test_accuracy']:.1%}"


class TensorBoard:
    """Event files, one folder per run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("--tensorboard needs the tensorboard package; pip install tensorboard") from None
        self._make, self._folder, self._writers = SummaryWriter, folder, dict[str, Any]()

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        for progress in runs:
            run = progress.run
            path = f"{run.experiment.name}/{run.method_name}/seed-{run.seed}-{run.id}"
            self._writers[run.id] = self._make(str(self._folder / path))

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        for progress, own in zip(runs, records, strict=True):
            for key, value in own[0].items():
                if key != "epoch" and value is not None:
                    self._writers[progress.run.id].add_scalar(key, float(value), own[0]["epoch"])

    def ends(self, runs: Sequence[Progress]) -> None:
        for progress in runs:
            self._writers[progress.run.id].close()


class Several:
    """Listeners side by side."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        for listener in self._listeners:
            listener.begins(runs, stop)

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        for listener in self._listeners:
            listener.epoch(runs, records)

    def ends(self, runs: Sequence[Progress]) -> None:
        for listener in self._listeners:
            listener.ends(runs)
