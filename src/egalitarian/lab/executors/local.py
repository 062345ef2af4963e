"""Our own commands as processes side by side: small networks seldom fill a GPU, nor more than one core.

Every process trains other runs, so they have nothing in common but the folder they store in. What they say is shown line by
line behind their name. A stop (Ctrl-C, a polite kill, a closed terminal) is passed on to those at work and waited for: they
store what they have.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

import egalitarian
from egalitarian.lab.runs.environment import BESIDE

STOPPED = 130
"""How a command ends that was stopped, or was not begun for that reason."""
TIME_OVER = 75
"""How one ends beside others that ran out of its minutes, or was not begun for that reason."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 0.2
"""Seconds between looks, while nothing is said."""


class Jobs:
    """Commands by name, at most `most` at once; none begins after so many minutes, and each is told what is left."""

    def __init__(
        self, console: Console, commands: Mapping[str, Sequence[str]], most: int, minutes: float | None = None
    ) -> None:
        self._console, self._commands, self._most = console, commands, most
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._waiting = list(commands)
        self._at_work: dict[str, subprocess.Popen[str]] = {}
        self._ended: dict[str, int] = {}
        self._lines: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._asked = False
        """Whether there was a stop that has not been passed on."""

    def run(self) -> dict[str, int]:
        """How each of them ended: 0 is well."""
        with self._listening(), self._console.status("") as status:
            try:
                while self._waiting or self._at_work:
                    self._begin()
                    names = ", ".join(escape(name) for name in self._at_work)
                    status.update(f"{len(self._ended)} of {len(self._commands)} done; running: {names}")
                    self._take_a_line()
                    if self._asked:
                        self._stop()
            finally:  # after a failure of ours, too: nobody is left behind
                self._stop()
                for process in self._at_work.values():
                    process.wait()  # each has been told
        return {name: self._ended[name] for name in self._commands}

    def _begin(self) -> None:
        while self._waiting and len(self._at_work) < self._most:
            name = self._waiting.pop(0)
            left = None if self._deadline is None else self._deadline - time.monotonic()
            if left is not None and left <= 0:
                self._ended[name] = TIME_OVER
                continue
            minutes = [] if left is None else [f"--minutes={left / 60:.4f}"]
            command, *rest = self._commands[name]
            self._at_work[name] = process = self._started([command, *minutes, *rest])
            threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put((name, line))
        self._lines.put((name, None))

    def _take_a_line(self) -> None:
        try:
            name, line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            return
        if line is None:
            how = self._at_work.pop(name).wait()
            self._ended[name] = STOPPED if -how in STOPS else how
        elif line.strip():
            said = line.rstrip().removeprefix(name).removeprefix(":").removeprefix(",").strip()
            self._console.print(f"[bold]{escape(name)}:[/bold] {escape(said)}", soft_wrap=True)

    def _stop(self) -> None:
        """SIGTERM, since SIGINT may have been ignored by whoever began us, and be so by our children."""
        self._asked = False
        self._ended |= dict.fromkeys(self._waiting, STOPPED)
        self._waiting = []
        for process in self._at_work.values():
            process.terminate()

    def _started(self, command: Sequence[str]) -> subprocess.Popen[str]:
        surroundings = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "PYTHONPATH")}
        others = min(self._most, len(self._commands)) - 1
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "egalitarian", *command],  # -P: files of the folder we are in are no modules
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**surroundings, **_found(), "PYTHONUNBUFFERED": "1", "COLUMNS": "120", BESIDE: str(others)},
            start_new_session=True,  # so that a stop comes from us alone, and once
        )

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Stops are noted, to be passed on between two lines."""

        def note(number: int, frame: FrameType | None) -> None:
            self._asked = True

        before = {number: signal.signal(number, note) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _found() -> dict[str, str]:
    """Where a process finds this very package, if it is not installed."""
    place = Path(egalitarian.__file__).parent.parent
    installed = {"site-packages", "dist-packages"} & set(place.parts)
    paths = [os.environ.get("PYTHONPATH", ""), "" if installed else str(place)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if any(paths) else {}
