"""Commands on real clusters, and programs in the background, for tests/cluster."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SMALL = ["--set=task.modulus=7", "--set=model.width=8", "--set=training.batch=8", "--seeds=0-1"]
"""An experiment whose epochs take milliseconds."""
COMMAND = [sys.executable, "-m", "egalitarian", "run", "addition-97", "--device=cpu", *SMALL]
IN_NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]
"""What runs a line of the shell that may mount something, for itself alone."""
ends_well: dict[str, Any] = {"check": True, "stdout": subprocess.PIPE, "text": True, "timeout": 240}


def wait_for(what: str, holds: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} within {seconds} seconds"
        time.sleep(0.1)


@contextmanager
def started(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the background, in a session of its own, and what it says in a file. At the end all of it is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        kill_session(process.pid)
        process.wait()


def kill_session(session: int, name: str = "") -> int:
    """Kills the programs of a session that have this text in their name, and returns how many there were."""
    rows = [line.split(maxsplit=1) for line in output("ps", "-ww", "-s", str(session), "-o", "pid=,args=").splitlines()]
    found = [int(number) for number, program in rows if name in program.split()[0]]
    for number in found:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return len(found)


def free_port() -> int:
    """One that Ray's workers do not use: theirs are from 10002 to 19999."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def stored(runs: Path) -> dict[str, bytes]:
    """The records of every run, by its folder."""
    return {str(path.parent.relative_to(runs)): path.read_bytes() for path in sorted(runs.rglob("records.jsonl"))}


def holders(runs: Path) -> list[int]:
    """The processes that hold locks of these runs."""
    held = {line.split()[5].split(":")[2]: int(line.split()[4]) for line in Path("/proc/locks").read_text().splitlines()}
    return [held[inode] for path in runs.rglob("lock") if (inode := str(path.stat().st_ino)) in held]


def no_worker_is_left(runs: Path, seconds: float = 30) -> None:
    wait_for("the end of all workers", lambda: not holders(runs), seconds)


def with_own_folder(kind: str, runs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A command that has its runs on a disk of its own, in a mount namespace."""
    runs.mkdir()
    inner = shlex.join([*COMMAND, *options, "--runs", str(runs)])
    mount = f"mount -t {kind} none {shlex.quote(str(runs))} && exec {inner}"
    return subprocess.run([*IN_NAMESPACE, mount], capture_output=True, text=True, timeout=120)


class Command:
    """`egalitarian run` in the background, in a session of its own. Killed at the end, if it has not ended."""

    def __init__(self, folder: Path, *options: str, log: str = "command.log") -> None:
        self.runs, self.log = folder / "runs", folder / log
        self.command = [*COMMAND, *options, "--runs", str(self.runs)]

    def __enter__(self) -> Self:
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_training(self, requests: int) -> None:
        """Until so many have trained for about a second."""
        wait_for(f"{requests} in training", lambda: self.output().count(" up to ") >= requests, 120)
        time.sleep(1.5)

    def trainers(self) -> list[int]:
        return holders(self.runs)

    def checkpoints(self) -> list[int]:
        """The epochs of the stored runs."""
        return [int(path.stem.split("-")[1]) for path in self.runs.rglob("checkpoint-*")]
