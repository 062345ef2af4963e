"""Live output of a sweep: progress bars and curves in a terminal, plain lines in a log, TensorBoard files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from egalitarian.lab.config import Record
from egalitarian.lab.executors import Lines
from egalitarian.lab.runs import Listener, Progress, Silent, Stop, epoch_text, threshold_text

COLOURS = ("dark_orange", "dodger_blue1", "spring_green3", "default", "medium_purple1", "gold1", "deep_pink2", "cyan3")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""What curves are drawn with if there is no colour."""
HEADING = "test accuracy by epochs trained; cond: condition number of the gradient"
EpochCurve = Sequence[tuple[int, float]]
"""(epoch, accuracy)."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each of a braille character's 4 x 2 dots, from the top left."""


@contextmanager
def follow(console: Console, curves: bool = True, tensorboard: Path | None = None) -> Iterator[Listener]:
    """A listener for a sweep: a live display in a terminal, else lines; and event files in the folder `tensorboard`."""
    others: list[Listener] = [TensorBoard(tensorboard)] if tensorboard else []
    if console.is_terminal:
        with Display(console, curves) as display:
            yield Listeners([display, *others])
    else:
        yield Listeners([Lines(lambda text: console.print(escape(text))), *others])


@contextmanager
def status_line(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """A function that updates one line of the terminal; in a log it prints at most one line every few seconds."""
    lines = Lines(lambda text: console.print(escape(text), soft_wrap=True))
    with console.status(escape(what)) as status:

        def update(text: str) -> None:
            status.update(escape(f"{what}: {text}"))
            if not console.is_terminal:
                lines.status(f"{what}: {text}")

        yield update


class Display:
    """Progress bars with accuracies and condition number, and the curves of test accuracy so far."""

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

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        self.begins(runs, stop)
        self.ends(runs)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        """Adds a bar and a curve for these seeds, with their epochs so far; a finished seed counts with its last epoch."""
        title = runs[0].run.method.title if self._curves else runs[0].name
        self._bar = self._bars.add_task(
            self._described(title, len(runs)),
            total=stop.epochs,
            completed=runs[0].next_epoch,
            epoch=max(0, *(run.next_epoch - 1 for run in runs)),
            state="",
        )
        self._runs, self._stop = list(runs), stop
        longest = max(len(run.curve) for run in runs)
        curves = [[*run.curve, *run.curve[-1:] * (longest - len(run.curve))] for run in runs if run.curve]
        self._history = self._histories.setdefault(title, [])
        self._history += [(epoch, statistics.median(values)) for epoch, values in enumerate(zip(*curves, strict=True))]

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        assert self._bar is not None
        latest = [own[0] for own in records]
        number = latest[0]["epoch"]
        self._history.append((number, statistics.median([run.curve[-1] for run in self._runs])))
        self._bars.update(self._bar, completed=number + 1, epoch=number, state=epoch_text(latest))

    def ends(self, runs: Sequence[Progress]) -> None:
        assert self._bar is not None
        for run in runs:
            if run.last is not None:
                passed = sum(each.crossed is not None for each in self._runs)
                together = f"{passed} of {len(self._runs)} passed {threshold_text(self._stop.threshold)}"
                state = run.ending_text(self._stop) if len(self._runs) == 1 else together
                self._bars.update(self._bar, total=run.next_epoch, completed=run.next_epoch, state=state)

    def note(self, text: str) -> None:
        self._console.print(f"  [yellow]{escape(text)}[/yellow]")

    def _described(self, title: str, seeds: int) -> str:
        """The text before a bar, in the colour of its curve, or after the letter that draws it."""
        taken = len(self._looks)
        looks = COLOURS if self._coloured else LETTERS
        look = self._looks.setdefault(title, looks[taken % len(looks)])
        name = escape(title) + (f" x{seeds}" if seeds > 1 else "")
        return f"[{look}]{name}" if self._coloured else f"{look if self._curves else ''} {name}".strip()

    def _draw(self) -> Group:
        if not self._curves:
            return Group(self._bars)
        width = max(20, min(68, self._console.width - 8))
        plot = text_plot(self._histories, self._looks, width, letters=not self._coloured)
        return Group(Text(HEADING, style="dim"), plot, self._bars)


class TensorBoard(Silent):
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


class Listeners:
    """Several listeners as one."""

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


def text_plot(
    curves: Mapping[str, EpochCurve], looks: Mapping[str, str], width: int = 68, height: int = 10, letters: bool = False
) -> Text:
    """Accuracies from 0 to 1 as braille dots, over epochs trained (from 1) on a logarithmic axis.

    The last curve is in front. `looks` has a colour for each curve, or with `letters` the letter to draw it with.
    """
    last = max((epoch for curve in curves.values() for epoch, _ in curve), default=0) + 1
    decades = max(1.0, math.log10(max(last, 1)))
    bits = [[0] * width for _ in range(height)]
    front = [[""] * width for _ in range(height)]
    for name, curve in curves.items():
        for column, level in _dots(curve, decades, width, height):
            row, dot = divmod(4 * height - 1 - level, 4)
            bits[row][column // 2] |= _DOTS[dot][column % 2]
            front[row][column // 2] = looks.get(name, "" if not letters else "*")
    text = Text()
    for row in range(height):
        mark = {0: "100%", height // 2: "50%", height - 1: "0%"}.get(row, "")
        text.append(f"{mark:>4} ┤", style="dim")
        for bit, look in zip(bits[row], front[row], strict=True):
            text.append(" " if not bit else look if letters else chr(0x2800 + bit), style=None if letters else look or None)
        text.append("\n")
    return text.append(_axis(decades, width))


def _dots(curve: EpochCurve, decades: float, width: int, height: int) -> list[tuple[int, int]]:
    """(column, level) of every dot, half a character wide and a quarter high, interpolated between points."""
    dots: list[tuple[int, int]] = []
    for epoch, value in curve:
        column = round(math.log10(epoch + 1) / decades * (2 * width - 1))
        level = round(min(max(value, 0.0), 1.0) * (4 * height - 1))
        if dots and column > dots[-1][0]:
            (before, start), steps = dots[-1], column - dots[-1][0]
            dots += [(before + step, round(start + (level - start) * step / steps)) for step in range(1, steps)]
        dots.append((column, level))
    return dots


def _axis(decades: float, width: int) -> Text:
    line, labels = ["─"] * width, [" "] * (width + 8)
    for power in range(math.floor(decades + 1e-9) + 1):
        column = min(round(power / decades * (width - 1)), width - 1)
        line[column] = "┬"
        for offset, letter in enumerate(str(10**power)):
            labels[column + offset] = letter
    return Text(f"     └{''.join(line)}\n      {''.join(labels).rstrip()}\n", style="dim")
