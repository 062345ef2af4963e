"""Progress as plain lines, for logs and for processes whose output another process reads."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from egalitarian.lab.config import Record
from egalitarian.lab.runs import Progress, Stop, percent

EVERY = 5.0
"""Seconds between lines about something that continues."""


class Lines:
    """A listener that prints what begins, an epoch every few seconds, and how each seed ended."""

    def __init__(self, write: Callable[[str], object] = lambda text: print(text, flush=True)) -> None:
        self._write = write
        self._printed = -math.inf
        self._stop: Stop | None = None

    def status(self, text: str) -> None:
        """Prints the text, unless the last status or epoch is only seconds old."""
        if time.monotonic() - self._printed > EVERY:
            self._write(text)
            self._printed = time.monotonic()

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        self._stop = stop
        self._write(f"{label(runs[0])}: {counted(len(runs))} already stored")
        self.ends(runs)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        self._stop, self._printed = stop, time.monotonic()
        resumed = f", resuming at epoch {runs[0].next_epoch}" if runs[0].next_epoch else ""
        self._write(f"{label(runs[0])}: {counted(len(runs))}, up to {stop.epochs} epochs{resumed}")

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        latest = [own[0] for own in records]
        self.status(f"  epoch {latest[0]['epoch']:>5}  {measures(latest)}")

    def ends(self, runs: Sequence[Progress]) -> None:
        assert self._stop is not None
        for run in runs:
            if run.last is not None:
                self._write(f"  seed {run.run.seed}: {ending(run, self._stop)}")

    def note(self, text: str) -> None:
        self._write(f"  {text}")


def label(progress: Progress) -> str:
    return f"{progress.run.experiment.name} {progress.run.method_name}"


def counted(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def measures(latest: Sequence[Record]) -> str:
    """Medians over the seeds' latest records: accuracies, and the gradient's condition number if it was measured."""
    accuracies = {part: median([record[f"{part}_accuracy"] for record in latest]) for part in ("train", "test")}
    text = "  ".join(f"{part} {accuracy:6.1%}" for part, accuracy in accuracies.items())
    known = median([condition(record) for record in latest])
    return text if math.isnan(known) else f"{text}  cond {known:7.1e}"


def ending(run: Progress, stop: Stop) -> str:
    """How a seed ended, as a phrase."""
    assert run.last is not None
    if run.diverged:
        return f"diverged at epoch {run.last['epoch']}: the loss is not finite"
    if run.crossed is not None:
        return f"passed {percent(stop.threshold)} at epoch {run.crossed}, with {run.curve[run.crossed]:.1%}"
    reached = f"{run.next_epoch} epochs, best {max(run.curve):.1%}"
    return f"did not pass {percent(stop.threshold)} in {reached}" if stop.threshold < 1 else reached


def median(values: Sequence[float | None]) -> float:
    """Of the values that are known; NaN if none is."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def condition(record: Record) -> float | None:
    """The condition number of the hidden gradient, above its rounding noise."""
    largest, smallest = record.get("sigma_max"), record.get("sigma_min")
    return largest / smallest if largest and smallest else None
