"""Slurm, through submitit: `--on slurm` submits a job for each request.

A job's state comes from `squeue`, which every Slurm has; submitit asks `sacct`, which needs accounting.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from egalitarian.lab.config import SpecError, nearest
from egalitarian.lab.executors.cluster import APART, LOST, Cluster
from egalitarian.lab.executors.local import Executable, Handle
from egalitarian.lab.runs import CONCURRENT

COMMANDS = ("sbatch", "srun", "squeue", "scancel")
EVERY = 2.0
"""Seconds between looks at the jobs and at what they print."""
SETTLE = 10.0
"""Seconds that a shared file system may need to show the result of a job that has ended."""
OVER = {
    "GONE",
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
"""States of jobs that do not run again by themselves."""
OURS = {"job_name", "nodes", "ntasks_per_node", "array_parallelism", "stderr_to_stdout", "use_srun"}
"""Parameters of submitit that the lab sets."""
LISTS = {"setup", "teardown", "srun_args", "additional_parameters"}
"""Parameters of submitit that are no plain values."""
NOISE = re.compile(r"submitit (INFO|WARNING) ")


def carry_out_in_job(text: str, others: int) -> int:
    """Carries out a request as the only work of this job, and returns the exit status."""
    from egalitarian.lab.executors.worker import main  # the program of a worker, which is not to be imported

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGUSR2):  # scancel; the time limit comes near, or a preemption
        signal.signal(number, _stop)
    os.environ |= {CONCURRENT: str(others), "COLUMNS": "120"}
    return main(io.StringIO(text))


def _stop(number: int, frame: object) -> None:
    """Ctrl-C; while it trains, the epoch ends before."""
    os.kill(os.getpid(), signal.SIGINT)


class JobStates:
    """The states of this user's jobs, asked of Slurm for all of them at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = -EVERY
        self._known: dict[str, str] | None = None

    def of(self, job: str) -> str:
        """Its state in Slurm's words; GONE if Slurm has forgotten it, UNKNOWN while Slurm does not answer."""
        with self._lock:
            if time.monotonic() - self._asked > EVERY:
                self._known = self._ask()
                self._asked = time.monotonic()
            return "UNKNOWN" if self._known is None else self._known.get(job, "GONE")

    def _ask(self) -> dict[str, str] | None:
        command = ["squeue", "--noheader", "--states=all", "--format=%A %T", f"--user={os.getuid()}"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return dict(line.split() for line in answer.stdout.splitlines()) if answer.returncode == 0 else None


class SlurmTask:
    """A request that a job carries out."""

    def __init__(self, job: Any, states: JobStates) -> None:
        self._job, self._states = job, states
        self._status = LOST
        self._ended = threading.Event()
        self.stdout = self._lines()

    def _lines(self) -> Generator[str]:
        """The lines of its log, which is on the shared file system."""
        try:
            read, alive = 0, True
            while alive:
                alive = self._is_alive()
                if not self._job.paths.stdout.exists():
                    continue
                with self._job.paths.stdout.open("rb") as file:
                    file.seek(read)
                    text = file.read()
                text = text if not alive else text[: text.rfind(b"\n") + 1]
                read += len(text)
                yield from (line for line in text.decode(errors="replace").splitlines() if not NOISE.match(line))
            yield from self._read_result()
        finally:
            self._ended.set()

    def _is_alive(self) -> bool:
        """Whether it waits or runs, after a moment in which that may change."""
        for _ in range(int(EVERY / 0.1)):
            if self._job.paths.result_pickle.exists():
                return False
            time.sleep(0.1)
        return self._states.of(self._job.job_id) not in OVER

    def _read_result(self) -> Iterator[str]:
        deadline = time.monotonic() + SETTLE
        while not self._job.paths.result_pickle.exists():
            if time.monotonic() > deadline:
                yield self._why_no_result()
                return
            time.sleep(0.1)
        try:
            self._status = self._job.result()
        except Exception as error:  # submitit's, with the traceback of the job
            yield from str(error).splitlines()
            self._status = APART if "ModuleNotFoundError" in str(error) else 1

    def _why_no_result(self) -> str:
        job, log = self._job.job_id, self._job.paths.stdout
        state = self._states.of(job)
        if state == "FAILED" and not log.exists():
            self._status = APART
            return f"Slurm's job {job} failed and wrote no log: its node must see {log.parent}; use a shared file system"
        return f"Slurm's job {job} ended without a result, as {state}"

    def wait(self) -> int:
        self._ended.wait()
        return self._status

    def terminate(self) -> None:
        self._job.cancel(check=False)


class Slurm(Cluster):
    """The executor on a Slurm cluster, `most` jobs at a time."""

    where = "Slurm"

    def __init__(
        self,
        console: Console,
        requests: Sequence[Executable],
        most: int,
        runs: Path,
        options: Mapping[str, str | int],
    ) -> None:
        super().__init__(console, requests, most, runs)
        self._options, self._states = options, JobStates()

    @staticmethod
    def check(given: Sequence[str], gpu: bool, cpus: int) -> dict[str, Any]:
        """The parameters of a job, from KEY=VALUE. An ImportError without submitit, a SpecError without Slurm."""
        options = _options(given, gpu, cpus)
        if missing := [command for command in COMMANDS if shutil.which(command) is None]:
            raise SpecError(
                f"--on slurm must be used where Slurm's commands are, got no {', '.join(missing)}; log in to the cluster "
                f"first"
            )
        return options

    def _start(self, request: Executable) -> Handle:
        from submitit import SlurmExecutor

        executor = SlurmExecutor(self._folder)
        executor.update_parameters(**self._options)
        try:
            job = executor.submit(carry_out_in_job, self._text(request), self._others)
        except Exception as error:  # submitit's own classes differ by version
            reason = " ".join(str(error).split())
            raise SpecError(
                f"Slurm must take the job of {request.name}, got: {reason}; check the partition, the account and --slurm"
            ) from error
        return SlurmTask(job, self._states)


def _options(given: Sequence[str], gpu: bool, cpus: int) -> dict[str, Any]:
    """Parameters of submitit for a job: those that were given as KEY=VALUE, and what a task needs."""
    known, options = _parameters(), dict[str, Any]()
    for text in given:
        key, sign, value = text.partition("=")
        if not (key and sign and value):
            raise SpecError(f"--slurm must be KEY=VALUE, got {text!r}; for example --slurm partition=gpu")
        if key in OURS:
            raise SpecError(f"--slurm must leave {key} to the lab, got {text!r}; leave it out")
        if key not in known:
            hint = nearest(key, sorted(known)) or f"one of {', '.join(sorted(known))}"
            raise SpecError(f"--slurm must have a key that submitit knows, got {key!r}; {hint}")
        options[key] = int(value) if value.isdecimal() else value
    needed: dict[str, Any] = {"time": None, "cpus_per_task": cpus}  # None: the limit of the partition, not submitit's
    if gpu and not options.keys() & {"gpus_per_node", "gpus_per_task", "gres"}:
        needed["gpus_per_node"] = 1
    return {**needed, **options, "job_name": "egalitarian", "stderr_to_stdout": True}


def _parameters() -> set[str]:
    """The parameters that submitit takes for a job, as plain values."""
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise ImportError("--on slurm needs the submitit package; pip install 'egalitarian[slurm]'") from None
    return set(SlurmExecutor._valid_parameters()) - OURS - LISTS
