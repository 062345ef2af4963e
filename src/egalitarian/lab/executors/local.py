"""A pool of processes on this machine: small networks seldom fill a GPU, or more than one core.

Every process trains other runs, and they share nothing but the folders they write to. The pool prints their output line by
line, with the name of the request in front. It passes a stop (Ctrl-C, SIGTERM, a closed terminal) on to the processes and
waits for them: they store what they have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Protocol, Self

from rich.console import Console
from rich.markup import escape

import egalitarian
from egalitarian.lab.config import Record
from egalitarian.lab.runs import CONCURRENT, Progress, Stop, epoch_text

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
        where = f"complete in {runs[0].evidence}" if runs[0].evidence else "already stored"
        self._write(f"{runs[0].name}: {_seeds(runs)} {where}")
        self.ends(runs)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        self._stop, self._printed = stop, time.monotonic()
        resumed = f", resuming at epoch {runs[0].next_epoch}" if runs[0].next_epoch else ""
        self._write(f"{runs[0].name}: {_seeds(runs)}, up to {stop.epochs} epochs{resumed}")

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        latest = [own[0] for own in records]
        self.status(f"  epoch {latest[0]['epoch']:>5}  {epoch_text(latest)}")

    def ends(self, runs: Sequence[Progress]) -> None:
        assert self._stop is not None
        for run in runs:
            if run.last is not None:
                self._write(f"  seed {run.run.seed}: {run.ending_text(self._stop)}")

    def note(self, text: str) -> None:
        self._write(f"  {text}")


def _seeds(runs: Sequence[Progress]) -> str:
    return "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"


STOPPED = 130
"""Exit status of work that was stopped, or that was not begun because of a stop."""
TIME_OVER = 75
"""Exit status of work that ran out of its minutes, or that was not begun for that reason."""
WORKER = (sys.executable, "-P", "-m", "egalitarian.lab.executors.worker")  # -P: ignores files of the current folder
"""The command that starts a worker. It reads a request, as `request_json` writes it, from standard input."""
BUSY = 74
"""Exit status of work that another process does at the same moment: that one holds a lock."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL = 0.2
"""Seconds between checks for signals while no process prints anything."""


class Executable(Protocol):
    """A request: work as a frozen dataclass of plain values, sent to a worker as JSON.

    A kind of work with a time limit has a field `minutes: float | None`. A pool with a deadline sets it to the minutes that
    are left when the work begins.
    """

    kind: ClassVar[str]
    """The key of its class in `worker.KINDS`."""

    @property
    def name(self) -> str:
        """Unique in a pool; stands in front of each line that the work prints."""

    def to_json(self) -> dict[str, Any]:
        """Values for `json.dumps`: numbers stay numbers, paths become text."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The request that `to_json` described."""

    def carry_out(self, lines: Lines) -> int:
        """Does the work, as the only one of this process, and returns the exit status: 0, STOPPED or TIME_OVER.

        It sets the process's threads and data folder (`runs.configure_process`). It prints no table: the process that runs
        the executor reads the results from files. It raises `Interrupted` if stopped. Other errors carry a message for the
        user.
        """


class Executor(Protocol):
    """Carries out the requests that it was made with, each by a worker: here, or on a cluster.

    A worker gets the text of `request_json`. It prints lines for the user, and ends with a status: 0 is success.
    """

    def run(self) -> Mapping[str, int]:
        """Returns the exit status of each request, by its name, when all have ended."""


def request_json(request: Executable) -> str:
    """The text that a worker reads: the request's values, and the `kind` by which the worker finds its class."""
    return json.dumps({"kind": request.kind, **request.to_json()})


class Output(Protocol):
    """What a worker prints, line by line, as it comes."""

    def __iter__(self) -> Iterator[str]: ...

    def close(self) -> object: ...


class Handle(Protocol):
    """A request in a worker's hands. A process is one."""

    @property
    def stdout(self) -> Output | None:
        """Its lines, which end when it ends. They are read once, by one thread."""

    def wait(self) -> int:
        """Its exit status, once it has ended; a negative one is that of the signal which killed it."""

    def terminate(self) -> None:
        """Asks it to store what it has, and to end; asked again, at once."""


def start_worker(text: str, others: int) -> subprocess.Popen[str]:
    """A worker process on this machine that carries out the request of this text, next to so many others."""
    with tempfile.TemporaryFile("w+") as file:  # not a pipe, which blocks when it is full
        file.write(text)
        file.seek(0)
        return subprocess.Popen(
            WORKER,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=process_environment(others),
            start_new_session=True,  # a terminal's Ctrl-C reaches the pool alone, which passes it on once
        )


class Pool:
    """The executor on one machine: a process for each request, at most `most` concurrently; none begins after `minutes`.

    A subclass carries out requests elsewhere: it says how one is started.
    """

    def __init__(self, console: Console, requests: Sequence[Executable], most: int, minutes: float | None = None) -> None:
        self._console, self._most = console, most
        self._requests = {request.name: request for request in requests}
        assert len(self._requests) == len(requests), "requests of a pool have names of their own"
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._waiting = dict.fromkeys(self._requests, 0.0)
        """By name, the time of the monotonic clock before which it does not begin."""
        self._running: dict[str, Handle] = {}
        self._ended: dict[str, int] = {}
        self._said: queue.SimpleQueue[tuple[str, str | int | Exception]] = queue.SimpleQueue()
        """Lines of tasks; behind the last one an exit status, or an error of the pool."""
        self._stop_requested = False
        """Whether there was a stop that has not been passed on."""

    def run(self) -> dict[str, int]:
        """The exit status of each request, by its name: 0 is success."""
        with self._noting_stops(), self._console.status("") as status:
            try:
                while self._waiting or self._running:
                    self._begin()
                    names = ", ".join(escape(name) for name in self._running)
                    status.update(f"{len(self._ended)} of {len(self._requests)} done; running: {names}")
                    self._listen()
                    if self._stop_requested:
                        self._stop()
            finally:  # after an error of the pool itself, too: no process is left behind
                self._stop()
                for task in self._running.values():
                    task.wait()
        return {name: self._ended[name] for name in self._requests}

    def _begin(self) -> None:
        for name in [name for name, time_to_begin in self._waiting.items() if time_to_begin <= time.monotonic()]:
            if len(self._running) >= self._most:
                return
            del self._waiting[name]
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                self._ended[name] = TIME_OVER
                continue
            request: Any = self._requests[name]
            self._running[name] = task = self._start(
                request if left is None else dataclasses.replace(request, minutes=left / 60)
            )
            threading.Thread(target=self._read, args=(name, task), daemon=True).start()

    def _read(self, name: str, task: Handle) -> None:
        assert task.stdout is not None
        try:
            with contextlib.closing(task.stdout) as lines:
                for line in lines:
                    self._said.put((name, line))
            self._said.put((name, task.wait()))
        except Exception as error:  # of this thread: `run` raises it
            self._said.put((name, error))

    def _listen(self) -> None:
        """Prints a line, or takes note of a task's end."""
        try:
            name, said = self._said.get(timeout=POLL)
        except queue.Empty:
            return
        if isinstance(said, Exception):
            raise said
        if isinstance(said, int):
            del self._running[name]
            self._end(name, STOPPED if -said in STOPS else said)
        elif said.strip():
            self._print(name, said.rstrip().removeprefix(name).removeprefix(":").removeprefix(",").strip())

    def _print(self, name: str, text: str) -> None:
        self._console.print(f"[bold]{escape(name)}:[/bold] {escape(text)}", soft_wrap=True)

    def _end(self, name: str, status: int) -> None:
        self._ended[name] = status

    def _stop(self) -> None:
        """SIGTERM: SIGINT may be ignored in this process, and is then ignored in its children."""
        self._stop_requested = False
        self._ended |= dict.fromkeys(self._waiting, STOPPED)
        self._waiting = {}
        for task in self._running.values():
            task.terminate()

    def _start(self, request: Executable) -> Handle:
        return start_worker(request_json(request), self._others)

    @property
    def _others(self) -> int:
        """How many other tasks a task may run next to."""
        return min(self._most, len(self._requests)) - 1

    @contextlib.contextmanager
    def _noting_stops(self) -> Iterator[None]:
        """Signals set a flag, which `run` reads between two lines."""

        def note(number: int, frame: FrameType | None) -> None:
            self._stop_requested = True

        before = {number: signal.signal(number, note) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def process_environment(others: int) -> dict[str, str]:
    """The environment of a process that trains next to so many others."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "PYTHONPATH")}
    return {**inherited, **search_path(), "PYTHONUNBUFFERED": "1", "COLUMNS": "120", CONCURRENT: str(others)}


def search_path() -> dict[str, str]:
    """PYTHONPATH with the folder of this package, if it is not installed."""
    root = Path(egalitarian.__file__).parent.parent
    installed = {"site-packages", "dist-packages"} & set(root.parts)
    paths = [os.environ.get("PYTHONPATH", ""), "" if installed else str(root)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
