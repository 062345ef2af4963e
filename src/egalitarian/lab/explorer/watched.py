"""Runs as the page sees them: a process for each, with its state and curves; and all runs, which pages share.

Nothing here knows NiceGUI. A thread for each process reads its messages, pages read the values.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from egalitarian.lab.analysis import Array, Plane, project
from egalitarian.lab.config import Method, Run, SpecError, decode, load
from egalitarian.lab.executors import process_environment
from egalitarian.lab.explorer.messages import Message, Trace, as_bytes, read_messages
from egalitarian.lab.runs import Request, choose_device

TRAINER = (sys.executable, "-P", "-m", "egalitarian.lab.explorer.trainer")
PATIENCE = 3.0
"""Seconds that trainers have to save their runs when the page is closed."""
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
        assert process.stdout is not None
        with process.stdout:
            for message in read_messages(process.stdout):
                self.take(message)
        status = process.wait()
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


class WatchedRuns:
    """All runs that were started since the server began, for every page that is open."""

    def __init__(self) -> None:
        self.runs: list[Watched] = []
        self.version = 0
        """How often runs were added or removed."""
        self._lock, self._closed = threading.Lock(), False
        self._plane: tuple[tuple[int, ...], Plane] | None = None

    def start(self, requests: Sequence[Request], *, together: bool) -> None:
        """Adds runs. They begin at once if `together`, else when no other run is training."""
        for request in requests:
            for run in self.runs:
                if not run.ended and _same(run.request, request):
                    raise SpecError(
                        f"run must not be training already, got {run.title} with the same settings and seed; stop it, or "
                        f"change the seed"
                    )
        with self._lock:
            added = [Watched(request, self._go_on) for request in requests]
            self.runs += added
            self.version += 1
        others = sum(run.trains for run in self.runs) + len(added) - 1
        for run in added if together else ():
            run.start(others)
        self._go_on()

    def again(self, run: Watched) -> None:
        """Resumes a run that was stopped or killed, with its own settings, as one that waits."""
        fresh = Watched(run.request, self._go_on)
        with self._lock:
            self.runs[self.runs.index(run)] = fresh
            self.version += 1
        self._go_on()

    def remove(self, run: Watched) -> None:
        """From the page; its files stay."""
        with self._lock:
            if run in self.runs and run.ended:
                self.runs.remove(run)
                self.version += 1

    def _go_on(self, ended: Watched | None = None) -> None:
        """Starts the next run that waits, if none is training."""
        with self._lock:
            if self._closed or any(run.trains for run in self.runs):
                return
            waiting = next((run for run in self.runs if run.state == "waiting"), None)
            if waiting is not None:
                waiting.start()

    def close(self) -> None:
        """Stops every trainer: it saves its run. One that takes longer than a few seconds is killed."""
        with self._lock:
            self._closed = True
        running = [run for run in self.runs if run.trains]
        for run in running:
            run.kill() if run.state == "starting" else run.stop()  # one that starts has nothing to save
        end = time.monotonic() + PATIENCE
        for run in running:
            if not run.wait(max(0.0, end - time.monotonic())):
                run.kill()
                run.wait(1.0)

    def plane(self) -> tuple[list[Watched], Plane] | None:
        """The paths of the newest run's experiment and seed, in the plane in which they move the most."""
        runs = [run for run in list(self.runs) if run.path]
        runs = [run for run in runs if _comparable(run.request, runs[-1].request)]
        if not runs:
            return None
        key = tuple(number for run in runs for number in (run.key, run.measured))
        if self._plane is None or self._plane[0] != key:
            columns = {}
            for run in runs:
                epochs, sketches = zip(*run.path, strict=True)
                columns[str(run.key)] = np.array(epochs, float), np.stack(sketches)
            self._plane = key, _steady(project(columns), self._plane and self._plane[1])
        return runs, self._plane[1]


def _same(one: Request, other: Request) -> bool:
    return _run(one).id == _run(other).id


def _run(request: Request) -> Run:
    return Run(request.loaded, request.method, request.seeds[0], choose_device(request.device).type)


def _comparable(one: Request, other: Request) -> bool:
    """Whether both start from the same weights, so that their paths belong into one plane."""
    first, second = ((each.loaded.task, each.loaded.model, each.seeds) for each in (one, other))
    return first == second


def _steady(plane: Plane, before: Plane | None) -> Plane:
    """With the signs of its axes so chosen that paths do not jump from one picture to the next."""
    name = next((name for name in plane.trajectories if before is not None and name in before.trajectories), None)
    if before is None or name is None:
        return plane
    now, known = plane.trajectories[name], before.trajectories[name]
    _, here, there = np.intersect1d(now.epochs, known.epochs, return_indices=True)
    signs = np.where((now.points[here] * known.points[there]).sum(0) < 0, -1.0, 1.0)
    moved = {name: each._replace(points=each.points * signs) for name, each in plane.trajectories.items()}
    return plane._replace(trajectories=moved)
