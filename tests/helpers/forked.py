"""Trainers that may be killed: a process that has imported everything, and forks a trainer for each job it reads.

Run as a script it answers JSON lines: a job with its trainer's process id, `{"wait": id}` with how that one ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

INTERRUPTED = 130
WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND


class Trainers:
    """The tests' end."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        paths = [os.environ.get("PYTHONPATH", ""), str(here.parent.parent / "src"), str(here)]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def start(self, **job: Any) -> int:
        """The trainer's process id."""
        return int(self._ask(job))

    def wait(self, process: int) -> int:
        """How it ended: 0, an exit status, or minus the signal that killed it."""
        return int(self._ask({"wait": process}))

    def run(self, **job: Any) -> int:
        return self.wait(self.start(**job))

    def _ask(self, question: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


def serve() -> None:
    import torch

    torch.set_num_threads(1)
    import small

    from egalitarian.lab.runs import environment

    environment(small.CPU)  # once here instead of in every trainer: cached values, and what torch's optimizers import
    small.together(small.groks(), "egd", [0])
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(work(question))
        print(answer, flush=True)


def work(job: dict[str, Any]) -> int:
    from small import groks, run

    from egalitarian.lab.runs import Interrupted, Silent, Stop, sweeps

    try:
        sweeps.SAVE_EVERY = job.get("save_every", 0.0)
        if "die_at" in job:
            die_at(job["die_at"], job["runs"], job.get("log"))
        listener = Waiter(job["waits_at"], Path(job["runs"])) if "waits_at" in job else Silent()
        stop = Stop(threshold=0.9, epochs=job["epochs"], past=job.get("past", 1))
        run(Path(job["runs"]), groks(), "egd", job["seeds"], stop, listener=listener)
    except Interrupted:
        return INTERRUPTED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Waiter:
    """Makes a file `waiting` at an epoch's end, and continues when there is a file `go`."""

    def __init__(self, epoch: int, folder: Path) -> None:
        self._epoch, self._folder = epoch, folder

    def begins(self, runs: Any, stop: Any) -> None: ...
    def ends(self, runs: Any) -> None: ...
    def note(self, text: str) -> None: ...

    def epoch(self, runs: Any, records: Any) -> None:
        if records[0][0]["epoch"] == self._epoch:
            (self._folder / "waiting").touch()
            while not (self._folder / "go").exists():
                time.sleep(0.002)


def die_at(moment: int, folder: str, log: str | None) -> None:
    """SIGKILL just before the n-th change of the disk: a file opened for writing, synced, renamed or removed."""
    seen = 0

    def happens(what: str) -> None:
        nonlocal seen
        seen += 1
        if log:
            with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w") as file:
                file.write(what + "\n")
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[0]) if arguments else ""
        if not path.startswith(folder) or (event == "open" and not int(arguments[2] or 0) & WRITES):
            return
        if event in ("open", "os.rename", "os.remove", "os.truncate"):
            happens(f"{event} {path}")

    sync = os.fsync

    def fsync(handle: int) -> None:
        happens("fsync")
        sync(handle)

    os.fsync = fsync
    sys.addaudithook(audit)


if __name__ == "__main__":
    serve()
