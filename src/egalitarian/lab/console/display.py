"""Who listens to a sweep: a live display in the terminal, plain lines in a log, TensorBoard files."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from egalitarian.lab.console.textplot import text_plot
from egalitarian.lab.runs.progress import Listener, Progress, Stop, percent
from egalitarian.lab.runs.store import Record

COLOURS = ("dark_orange", "dodger_blue1", "spring_green3", "default", "medium_purple1", "gold1", "deep_pink2", "cyan3")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""What curves are drawn with where there is no colour."""
LINE_EVERY = 5.0
"""Seconds between lines where there is no terminal to redraw."""
HEADING = "test accuracy by epochs trained; cond: condition number of the gradient"


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
        self._coloured = console.color_system is not None and not console.no_color
        width = console.width
        columns = (
            TextColumn("{task.description}"),
            *([BarColumn(bar_width=min(18, width - 82))] if width > 90 else []),
            TextColumn("epoch {task.fields[epoch]:>5}  {task.fields[state]}"),
            *([TimeElapsedColumn()] if width > 84 else []),
        )
        self._bars = Bars(*columns, console=console)
        self._histories: dict[str, list[tuple[int, float]]] = {}
        self._looks: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4)
        self._bar: TaskID | None = None
        self._told = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        self._open(runs, stop)
        if not self._console.is_terminal:
            self._console.print(f"{_label(runs[0])}: {_counted(len(runs))} already stored")
        self.ends(runs)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        self._open(runs, stop)
        self._told = time.monotonic()
        if not self._console.is_terminal:
            resumed = f", resuming at epoch {runs[0].next_epoch}" if runs[0].next_epoch else ""
            self._console.print(f"{_label(runs[0])}: {_counted(len(runs))}, up to {stop.epochs} epochs{resumed}")

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        assert self._bar is not None
        latest = [own[0] for own in records]
        test = median([record["test_accuracy"] for record in latest])
        state = f"train {median([record['train_accuracy'] for record in latest]):6.1%}  test {test:6.1%}"
        known = median([condition(record) for record in latest])
        if not math.isnan(known):  # the spectrum is not taken at every epoch
            state += f"  cond {known:7.1e}"
        number = latest[0]["epoch"]
        self._history.append((number, median([run.curve[-1] for run in self._runs])))
        self._bars.update(self._bar, completed=number + 1, epoch=number, state=state)
        if not self._console.is_terminal and time.monotonic() - self._told > LINE_EVERY:
            self._console.print(f"  epoch {number:>5}  {state}")
            self._told = time.monotonic()

    def ends(self, runs: Sequence[Progress]) -> None:
        assert self._bar is not None
        for run in runs:
            if run.last is not None:
                outcome = _outcome(run, self._stop)
                passed = sum(each.crossed is not None for each in self._runs)
                state = (
                    outcome
                    if len(self._runs) == 1
                    else f"{passed} of {len(self._runs)} passed {percent(self._stop.threshold)}"
                )
                self._bars.update(self._bar, total=run.next_epoch, completed=run.next_epoch, state=state)
                if not self._console.is_terminal:
                    self._console.print(f"  seed {run.run.seed}: {outcome}")

    def note(self, text: str) -> None:
        self._console.print(f"  [yellow]{escape(text)}[/yellow]")

    def _open(self, runs: Sequence[Progress], stop: Stop) -> None:
        """A bar and a curve for these seeds, with what is known of them; those that have left count at their last."""
        first = runs[0]
        title = first.run.method.title if self._curves else _label(first)
        taken = len(self._looks)
        look = self._looks.setdefault(
            title, COLOURS[taken % len(COLOURS)] if self._coloured else LETTERS[taken % len(LETTERS)]
        )
        seeds = f" x{len(runs)}" if len(runs) > 1 else ""
        name = escape(title) + seeds
        described = f"[{look}]{name}" if self._coloured else f"{look if self._curves else ''} {name}".strip()
        self._bar = self._bars.add_task(
            described,
            total=stop.epochs,
            completed=first.next_epoch,
            epoch=max(0, *(run.next_epoch - 1 for run in runs)),
            state="",
        )
        self._runs, self._stop = list(runs), stop
        longest = max(len(run.curve) for run in runs)
        curves = [[*run.curve, *run.curve[-1:] * (longest - len(run.curve))] for run in runs if run.curve]
        self._history = self._histories.setdefault(title, [])
        self._history += [(epoch, median(values)) for epoch, values in enumerate(zip(*curves, strict=True))]

    def _draw(self) -> Group:
        if not self._curves:
            return Group(self._bars)
        width = max(20, min(68, self._console.width - 8))
        plot = text_plot(self._histories, self._looks, width, letters=not self._coloured)
        return Group(Text(HEADING, style="dim"), plot, self._bars)


def _label(progress: Progress) -> str:
    return f"{progress.run.experiment.name} {progress.run.method_name}"


def _counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def _outcome(run: Progress, stop: Stop) -> str:
    assert run.last is not None
    if run.diverged:
        return f"diverged at epoch {run.last['epoch']}: the loss is not finite"
    if run.crossed is not None:
        return f"passed {percent(stop.threshold)} at epoch {run.crossed}, with {run.curve[run.crossed]:.1%}"
    reached = f"{run.next_epoch} epochs, best {max(run.curve):.1%}"
    return f"did not pass {percent(stop.threshold)} in {reached}" if stop.threshold < 1 else reached


@contextmanager
def telling(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """To be told what is being done: one line that changes, or where there is no terminal a line every few seconds."""
    told = -LINE_EVERY
    with console.status(escape(what)) as status:

        def tell(doing: str) -> None:
            nonlocal told
            status.update(escape(f"{what}: {doing}"))
            if not console.is_terminal and time.monotonic() - told > LINE_EVERY:
                console.print(escape(f"{what}: {doing}"), soft_wrap=True)
                told = time.monotonic()

        yield tell


class TensorBoard:
    """Event files, one folder per run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("--tensorboard needs the tensorboard package; pip install tensorboard") from None
        self._make, self._folder, self._writers = SummaryWriter, folder, dict[str, Any]()

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None: ...

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

    def note(self, text: str) -> None: ...


class Several:
    """Listeners side by side."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        for listener in self._listeners:
            listener.stored(runs, stop)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        for listener in self._listeners:
            listener.begins(runs, stop)

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        for listener in self._listeners:
            listener.epoch(runs, records)

    def ends(self, runs: Sequence[Progress]) -> None:
        for listener in self._listeners:
            listener.ends(runs)

    def note(self, text: str) -> None:
        for listener in self._listeners:
            listener.note(text)
