"""Messages between the page and a trainer, as lines of JSON, and how a trainer sends them without ever waiting.

From a trainer, by `kind`:

    begins      a batch begins or resumes: title, budget, threshold, modulus, and the curve so far
    epochs      points of the curve: (epoch, train accuracy, test accuracy)
    measures    singular values of the gradient, Fourier power of the weights, and a sketch of how far they have moved
    state       running or paused
    recording   settings changed: from this epoch on, the run is a recording
    note, ends, error    a text for the user

To a trainer, by `do`: pause, continue, stop, and change with `values` by dotted key.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

Message = dict[str, Any]
Point = tuple[int, float, float]
"""Epoch, train accuracy, test accuracy."""
PER_SECOND = 20
"""How often points of curves are sent."""
MOST_PENDING = 1000
"""Points that wait for the page. When there are more, every other one is dropped."""
WHOLE, PER_DECADE = 100, 100
"""Points that a curve keeps: all of the first epochs, then so many per factor of ten, and the newest."""


def as_bytes(message: Message) -> bytes:
    """One line. What is not finite becomes null: JSON has no NaN."""
    return json.dumps(_finite(message), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_messages(file: Iterable[bytes]) -> Iterator[Message]:
    """The messages of a stream until its end. A last line that was cut off, by a kill, is left out."""
    for line in file:
        if line.endswith(b"\n"):
            message = json.loads(line)
            assert isinstance(message, dict)
            yield message


class Outlet:
    """Sends messages from a thread of its own. Points and measures may be dropped, other messages never are.

    A page that reads too slowly gets fewer points, and the newest measures alone.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._messages: list[Message] = []
        self._points: list[Point] = []
        self._measures: Message | None = None
        self._waiting, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def send(self, kind: str, **values: Any) -> None:
        """A message that arrives, after all points so far."""
        with self._waiting:
            self._move_points()
            self._messages.append({"kind": kind, **values})
            self._waiting.notify()

    def add_point(self, point: Point) -> None:
        with self._waiting:
            self._points.append(point)
            if len(self._points) > MOST_PENDING:
                self._points[:-1] = self._points[:-1:2]

    def offer(self, **measures: Any) -> None:
        """Measures; they replace those that were not sent yet."""
        self._measures = {"kind": "measures", **measures}

    def close(self) -> None:
        """Sends what is left, for at most a second."""
        with self._waiting:
            self._closed = True
            self._waiting.notify()
        self._thread.join(1.0)

    def _move_points(self) -> None:
        if self._points:
            self._messages.append({"kind": "epochs", "points": self._points})
            self._points = []

    def _take(self) -> list[Message]:
        with self._waiting:
            if not self._messages and not self._closed:
                self._waiting.wait(1 / PER_SECOND)
            self._move_points()
            measures, self._measures = self._measures, None
            taken, self._messages = self._messages, []
        return taken if measures is None else [*taken, measures]

    def _send_all(self) -> None:
        while True:
            closing, messages = self._closed, self._take()
            try:
                for message in messages:
                    self._file.write(as_bytes(message))
                if messages:
                    self._file.flush()
            except OSError:  # the page is gone, which the trainer learns from its input
                return
            if closing and not messages:
                return


class Trace:
    """Points of a run, as many as a chart can show, the newest always among them."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, point: Point) -> None:
        """An epoch that was trained again replaces the earlier points from there on."""
        points = self.points
        while points and points[-1][0] >= point[0]:
            points.pop()
        if len(points) > 1 and _column(points[-1][0]) == _column(points[-2][0]):
            points.pop()
        points.append(point)


def _column(epoch: int) -> int:
    """Where an epoch is on a logarithmic axis: epochs of one column are shown by one point."""
    return epoch if epoch < WHOLE else WHOLE + math.floor(PER_DECADE * math.log10(epoch / WHOLE))
