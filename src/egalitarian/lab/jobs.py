"""Our own commands as processes side by side: small networks seldom fill a GPU, nor more than one core.

Every process trains other runs, so they have nothing in common but the folder they store in. What they say is shown line by
line behind their name. Ctrl-C is passed on to those at work and waited for: they store what they have.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import egalitarian
from egalitarian.lab.environment import BESIDE

STOPPED = 130
"""How a command ends that was stopped, or that was not begun for that reason."""


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite kill is a Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Jobs:
    """Commands by name, at most `most` of them at once."""

    def __init__(self, console: Console, commands: Mapping[str, Sequence[str]], most: int) -> None:
        self._console, self._commands, self._most = console, commands, most
        self._guard = threading.Lock()
        self._at_work: dict[str, subprocess.Popen[str]] = {}
        self._stopped = False
        self._done = 0

    def run(self) -> dict[str, int]:
        """How each of them ended: 0 is well."""
        with _terminated_as_interrupted(), self._console.status("") as self._status, ThreadPoolExecutor(self._most) as pool:
            futures = {name: pool.submit(self._carry_out, name) for name in self._commands}
            while True:
                try:
                    return {name: future.result() for name, future in futures.items()}
                except KeyboardInterrupt:
                    self._stop()

    def _stop(self) -> None:
        with self._guard:
            self._stopped = True
            for process in self._at_work.values():
                process.send_signal(signal.SIGINT)

    def _carry_out(self, name: str) -> int:
        with self._guard:
            if self._stopped:
                return STOPPED
            self._at_work[name] = process = self._started(name)
        self._tell()
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip():
                    said = line.rstrip().removeprefix(name).removeprefix(":").removeprefix(",").strip()
                    self._console.print(f"[bold]{escape(name)}:[/bold] {escape(said)}", soft_wrap=True)
        with self._guard:
            del self._at_work[name]
            self._done += 1
        self._tell()
        return process.returncode

    def _started(self, name: str) -> subprocess.Popen[str]:
        paths = [str(Path(egalitarian.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        others = min(self._most, len(self._commands)) - 1
        surroundings = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", BESIDE: str(others)}
        return subprocess.Popen(
            [sys.executable, "-m", "egalitarian", *self._commands[name]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **surroundings},
            start_new_session=True,  # so that Ctrl-C comes from us alone, and once
        )

    def _tell(self) -> None:
        at_work = ", ".join(escape(name) for name in list(self._at_work))
        self._status.update(f"{self._done} of {len(self._commands)} done; at work: {at_work}")
