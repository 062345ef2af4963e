"""What executors on other machines share: the proof of a shared folder, and retries of tasks that were lost.

Every machine must see the folder in which the command was started, and the runs, at the same paths. A worker proves it
before it trains: the runs have a folder with a random name for as long as the command lasts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.console import Console
from rich.markup import escape

from egalitarian.lab.executors.local import BUSY, STOPPED, Executable, Lines, Pool, request_json
from egalitarian.lab.runs import StoreError, source, writable

LOST = 69
"""Exit status of a task whose machine or process is gone. It is requested again."""
APART = 78
"""Exit status of a worker that does not see what the command sees. Others would be no better, so all are stopped."""
PAUSES = (2.0, 15.0, 90.0)
"""Seconds before a lost task is requested again, each time. A dead machine may hold its locks for about a minute."""
AGAIN = {LOST: "it was lost", BUSY: "another process trains its runs", STOPPED: "it was stopped from outside"}


@dataclass(frozen=True)
class SharedRequest:
    """A request for another machine, which must see the same files."""

    kind: ClassVar[str] = "shared"

    request: Mapping[str, Any]
    """What `request_json` writes, as values."""
    here: Path
    """The folder in which the command was started: paths of the request are relative to it."""
    sign: Path
    """A folder in that of the runs, which no other has."""
    source: str
    """The hash of egalitarian's source."""

    @property
    def name(self) -> str:
        return self._read().name

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "here": str(self.here), "sign": str(self.sign)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(**{**values, "here": Path(values["here"]), "sign": Path(values["sign"])})

    def carry_out(self, lines: Lines) -> int:
        if problem := self._problem():
            print(f"egalitarian: {problem}", file=sys.stderr)
            return APART
        os.chdir(self.here)
        return self._read().carry_out(lines)

    def _read(self) -> Executable:
        from egalitarian.lab.executors.worker import read_request  # the program of a worker, which is not to be imported

        return read_request(self.request)

    def _problem(self) -> str | None:
        machine = socket.gethostname()
        if not self.here.is_dir():
            return (
                f"{self.here} must be on every machine, since the command was started there, got none on {machine}; "
                f"start it in a folder that all of them share"
            )
        if not self.sign.is_dir():
            return (
                f"--runs must be one folder that all machines share, got another {self.sign.parent} on {machine}; name a "
                f"folder of a shared file system"
            )
        if source() != self.source:
            return (
                f"egalitarian must be the same on every machine, got other source files on {machine}; install the same "
                f"version there"
            )
        return None


class Cluster(Pool):
    """Carries out requests on other machines. A lost task is requested again, a few times; nothing is trained twice."""

    where: ClassVar[str]
    """How the user calls it."""

    def __init__(self, console: Console, requests: Sequence[Executable], most: int, runs: Path) -> None:
        super().__init__(console, requests, most)
        self._here = Path.cwd()
        self._folder = self._here / runs.expanduser() / f".{secrets.token_hex(8)}"
        self._lost: Counter[str] = Counter()
        """By name, how often a task was lost."""
        self._stopping = self._apart = False

    def run(self) -> dict[str, int]:
        with self._shared_folder(), self._connected():
            ended = super().run()
        if self._apart:
            raise StoreError(
                f"every machine must share the folders and the version of egalitarian, got one of {self.where} that does "
                f"not, see above; mend that, and run the same command again"
            )
        return ended

    def _connected(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def _shared_folder(self) -> Iterator[None]:
        """The folder that workers look for; what else is in it stays if the command fails."""
        with writable(self._folder.parent):
            self._folder.mkdir(parents=True)
        try:
            yield
        finally:
            failed = [status for status in self._ended.values() if status not in (0, STOPPED)]
            with suppress(OSError):
                if failed and any(self._folder.iterdir()):
                    self._console.print(f"What the workers printed is in {escape(str(self._folder))}.", soft_wrap=True)
                else:
                    shutil.rmtree(self._folder)

    def _text(self, request: Executable) -> str:
        """What a worker reads."""
        values = {"kind": request.kind, **request.to_json()}
        return request_json(SharedRequest(values, self._here, self._folder, source()))

    def _end(self, name: str, status: int) -> None:
        again = status < 0 or status in AGAIN
        if again and self._stopping:
            super()._end(name, STOPPED)
        elif again and self._lost[name] < len(PAUSES):
            pause = PAUSES[self._lost[name]]
            self._lost[name] += 1
            self._waiting[name] = time.monotonic() + pause
            why = AGAIN.get(status, f"its worker was killed by signal {-status}")
            left = f"{self._lost[name]} of {len(PAUSES)} times"
            self._print(name, f"{why}; requested again in {pause:.0f} seconds, {left}")
        else:
            super()._end(name, LOST if status == STOPPED else status)
        if status == APART and not self._apart:
            self._apart = True
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        super()._stop()
