"""A run as the page sees it: its process, its state and its curves.

A thread reads the messages of the process; pages read the values. Nothing here knows NiceGUI.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from egalitarian.lab.analysis import Array
from egalitarian.lab.config import Method, SpecError, decode, load
from egalitarian.lab.executors import process_environment
from egalitarian.lab.explorer.messages import Message, Trace, as_bytes, read_messages
from egalitarian.lab.runs import Request

TRAINER = (sys.executable, "-P", "-m", "egalitarian.lab.explorer.trainer")
MOST_STEPS = 60
"""Points of a path through the plane."""
KEYS = itertools.count()
ENDED = ("finished", "stopped", "failed", "killed")
State = Literal["waiting", "starting", "running", "paused", "stopping", "finished", "stopped", "failed", "killed"]


@dataclass(frozen=True)
class Defaults:
    """What the command line says about every run."""

    runs: Path
    device: str
    threads: int
    data: Path | None


class Watched:
    """One run: its request, the process that trains it, and what it has sent."""

    def __init__(self, request: Request, changed: Callable[[Watched], None] = lambda run: None) -> None:
        self.request, self._changed = request, changed
        self.key = next(KEYS)
        """Of this run among all that the page has shown."""
        self.state: State = "waiting"
        self.text = ""
        """How the run ended, or what the trainer noted."""
        self.curve = Trace()
        self.budget, self.threshold = 0, 1.0
        self.singular_values: list[tuple[int, float]] = []
        self.fourier: list[float | None] = []
        self.path: list[tuple[int, Array]] = []
        """Epochs, and sketches of how far the weights are from their start."""
        self.changes: list[tuple[int, dict[str, Any]]] = []
        """Settings that changed on the way, and the first epoch with them."""
        self.recording = ""
        """Its file, once settings have changed."""
        self.version, self.measured = 0, 0
        """How often anything, and how often the measures, have changed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: deque[str] = deque(maxlen=8)
        self._ending: tuple[State, str] | None = None
        """What the trainer has said about its end: it counts when the process is gone, and the run can start again."""

    @property
    def title(self) -> str:
        return self.request.loaded.method(self.request.method).title

    @property
    def method(self) -> Method:
        """With the settings of now."""
        values = self.values
        request = self.request
        loaded = load(request.experiment, methods=[request.method], values=values) if self.changes else request.loaded
        return loaded.method(request.method)

    @property
    def values(self) -> dict[str, Any]:
        """Changed settings of now, by dotted key."""
        changes = [changed for _, changed in self.changes]
        return {key: value for each in (self.request.values, *changes) for key, value in each.items()}

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def trains(self) -> bool:
        """Whether it has a process."""
        return self.state != "waiting" and not self.ended

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    # what the page asks for

    def start(self, others: int = 0) -> None:
        """Starts the process, next to so many others. A second start resumes the run where it was stored."""
        self._set("starting", "")
        try:
            self._process = subprocess.Popen(
                TRAINER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=process_environment(others),
                start_new_session=True,  # Ctrl-C reaches the page's server alone, which stops the trainers
            )
        except OSError as error:
            self._set(
                "failed", f"The machine must start another process, got: {error.strerror}; end others, then start again"
            )
            return
        self._send(self.request.to_json())
        errors = threading.Thread(target=self._keep_errors, args=(self._process.stderr,), daemon=True)
        errors.start()
        threading.Thread(target=self._follow, args=(self._process, errors), daemon=True).start()

    def pause(self) -> None:
        self._send({"do": "pause"})

    def go_on(self) -> None:
        self._send({"do": "continue"})

    def stop(self) -> None:
        """After the epoch; a second time at once, back to the last checkpoint."""
        if self.state == "waiting":
            self._set("stopped", "It was not begun.")
        elif self.state == "stopping":
            self.kill()
        elif not self.ended:
            self._set("stopping")
            self._send({"do": "stop"})

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self.state = "stopping" if self.state == "starting" else self.state

    def change(self, values: Mapping[str, Any]) -> None:
        """Changes settings of the method, after this epoch. SpecError if they are not allowed; then nothing changes."""
        if self.state not in ("starting", "running", "paused"):
            raise SpecError(f"run must be training to change its settings, got one that is {self.state}; start another")
        now = {**self.values, **values}
        loaded = load(self.request.experiment, methods=[self.request.method], values=now)
        if loaded.method(self.request.method) == self.method:
            raise SpecError("settings must differ from those of now, got the same; change one of them")
        self._send({"do": "change", "values": dict(values)})

    def wait(self, seconds: float) -> bool:
        """Whether the process has ended, after at most so many seconds."""
        try:
            return self._process is None or self._process.wait(seconds) is not None
        except subprocess.TimeoutExpired:
            return False

    # what the trainer says

    def _send(self, message: Message) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(as_bytes(message))
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended, which `_follow` says
            pass

    def _keep_errors(self, file: IO[bytes]) -> None:
        with file:
            for line in file:
                self._errors.append(line.decode(errors="replace").rstrip())

    def _follow(self, process: subprocess.Popen[bytes], errors: threading.Thread) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            for message in read_messages(process.stdout):
                self.take(message)
        status = process.wait()
        with contextlib.suppress(OSError):  # a command that it did not read any more
            process.stdin.close()
        errors.join(1.0)
        self._set(*(self._ending or self._without_a_word(status)))
        self._changed(self)

    def take(self, message: Message) -> None:
        """Takes over what a message says."""
        kind = message["kind"]
        if kind == "begins":
            self.budget, self.threshold = message["budget"], message["threshold"]
            for point in message["points"]:
                self._add(point)
            self._set("running")
        elif kind == "epochs":
            for point in message["points"]:
                self._add(point)
        elif kind == "measures":
            self._measure(message)
        elif kind == "recording":
            self.recording = message["path"]
            self.changes.append((message["epoch"], message["values"]))
            self._set("running")
        elif kind == "state" and message["state"] == "stopped":
            self._ending = "stopped", "" if self.recording else "Start again to resume where it stopped."
        elif kind == "state" and self.state != "stopping":
            self._set(message["state"])
        elif kind in ("ends", "error"):
            self._ending = "finished" if kind == "ends" else "failed", message["text"]
        elif kind == "note":
            self._set(self.state, message["text"])
        self.version += 1

    def _set(self, state: State, text: str | None = None) -> None:
        self.state = state
        if text is not None:
            self.text = text
        self.version += 1

    def _add(self, point: Sequence[Any]) -> None:
        epoch, train, test = point
        self.curve.add((epoch, train, test))

    def _measure(self, message: Message) -> None:
        self.singular_values = message["singular_values"] or []
        self.fourier = message["fourier"] or []
        sketch = np.array(decode(message["sketch"]), dtype=np.float64)
        epoch = message["epoch"]
        if np.isfinite(sketch).all():
            self.path = [each for each in self.path if each[0] < epoch] + [(epoch, sketch)]
            if len(self.path) > MOST_STEPS:
                self.path = [*self.path[:-1:2], self.path[-1]]
        self.measured += 1

    def _without_a_word(self, status: int) -> tuple[State, str]:
        """How a process has ended that did not say so: it was killed, or it failed."""
        if self.state == "stopping":
            return "stopped", "It was stopped at once. Start again to resume at its last checkpoint."
        if status < 0:
            name = signal.Signals(-status).name
            memory = "; often the machine's memory is full: a smaller network or batch needs less" if status == -9 else ""
            return (
                "killed",
                f"The training process was killed ({name}){memory}. Everything up to its last checkpoint is stored: start "
                f"again to resume there.",
            )
        reason = self._errors[-1] if self._errors else "it said nothing"
        return "failed", f"The training process ended with status {status}: {reason}. Start again to resume."
