"""What executors on clusters share, with a cluster of processes on this machine; tests/cluster has real ones."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from egalitarian.lab.config import SpecError
from egalitarian.lab.console.cli import main
from egalitarian.lab.executors import (
    APART,
    BUSY,
    LOST,
    STOPPED,
    Cluster,
    Executable,
    Ray,
    SharedRequest,
    Slurm,
    request_json,
)
from egalitarian.lab.executors.local import Handle, start_worker
from egalitarian.lab.executors.slurm import OVER, JobStates
from egalitarian.lab.runs import Request, StoreError, source, stored_progress
from egalitarian.lab.runs.files import acquire

CHANGES = {"task.modulus": 7, "model.width": 8, "training.batch": 8}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("egalitarian.lab.executors.cluster.PAUSES", (0.0, 0.1, 0.1))


def a_request(runs: Path, method: str = "sgd", epochs: int = 3) -> Request:
    return Request("addition-97", method, (0,), "cpu", 1, runs, values=CHANGES, epochs=epochs)


class Scripted:
    """A task that prints what it shall and ends as it shall."""

    def __init__(self, status: int, *lines: str) -> None:
        self.status = status
        self.stdout = self.lines(lines)

    def lines(self, lines: Sequence[str]) -> Iterator[str]:
        yield from lines

    def wait(self) -> int:
        return self.status

    def terminate(self) -> None:
        self.status = STOPPED


class Near(Cluster):
    """A cluster whose machines are this one. The first tasks end as `statuses` say, all others train."""

    where = "the test"

    def __init__(self, requests: Sequence[Executable], runs: Path, statuses: Sequence[int] = (), most: int = 1) -> None:
        self.out = io.StringIO()
        super().__init__(Console(file=self.out, width=200), requests, most, runs)
        self.statuses, self.begun = list(statuses), list[str]()

    def _start(self, request: Executable) -> Handle:
        self.begun.append(request.name)
        if self.statuses:
            return Scripted(self.statuses.pop(0))  # type: ignore[return-value]
        return start_worker(self._text(request), self._others)


def test_a_worker_proves_that_it_sees_the_runs_and_trains(tmp_path: Path) -> None:
    requests = [a_request(tmp_path / "runs", method) for method in ("sgd", "egd")]
    near = Near(requests, tmp_path / "runs", most=2)
    assert near.run() == {"addition-97 sgd": 0, "addition-97 egd": 0}
    assert [len(own) for own in stored_progress(requests)] == [1, 1]
    assert all(own.next_epoch == 3 for (own,) in stored_progress(requests))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["addition-97"], "the sign is removed"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (LOST, "it was lost"),
        (BUSY, "another process trains its runs"),
        (STOPPED, "it was stopped from outside"),
        (-signal.SIGKILL, "its worker was killed by signal 9"),
    ],
)
def test_a_lost_task_is_requested_again_and_said(tmp_path: Path, status: int, said: str) -> None:
    near = Near([a_request(tmp_path)], tmp_path, [status] * 3)
    assert near.run() == {"addition-97 sgd": 0}
    assert near.begun == ["addition-97 sgd"] * 4
    printed = near.out.getvalue()
    assert re.findall(r"requested again in \d+ seconds, (\d) of 3 times", printed) == ["1", "2", "3"]
    assert said in printed


@pytest.mark.parametrize(("status", "ended"), [(LOST, LOST), (BUSY, BUSY), (STOPPED, LOST), (-9, -9)])
def test_a_task_is_requested_again_a_few_times_only(tmp_path: Path, status: int, ended: int) -> None:
    near = Near([a_request(tmp_path)], tmp_path, [status] * 9)
    assert near.run() == {"addition-97 sgd": ended}
    assert len(near.begun) == 4


@pytest.mark.parametrize("status", [1, 2])
def test_a_mistake_is_not_requested_again(tmp_path: Path, status: int) -> None:
    near = Near([a_request(tmp_path)], tmp_path, [status])
    assert (near.run(), len(near.begun)) == ({"addition-97 sgd": status}, 1)


def test_one_worker_that_is_apart_stops_all(tmp_path: Path) -> None:
    """It would take task after task, and fail each."""
    near = Near([a_request(tmp_path, method) for method in ("sgd", "egd", "row-norm")], tmp_path, [APART])
    with pytest.raises(StoreError, match=r"^every machine must share .*, got one of the test that does not"):
        near.run()
    assert near.begun == ["addition-97 sgd"]
    assert not list(tmp_path.iterdir())


def test_a_task_that_is_stopped_with_the_command_is_not_requested_again(tmp_path: Path) -> None:
    class Stops(Near):
        def _start(self, request: Executable) -> Handle:
            os.kill(os.getpid(), signal.SIGINT)
            return super()._start(request)

    near = Stops([a_request(tmp_path), a_request(tmp_path, "egd")], tmp_path, [LOST])
    assert near.run() == {"addition-97 sgd": STOPPED, "addition-97 egd": STOPPED}


def test_runs_that_another_process_trains_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, more = a_request(tmp_path), a_request(tmp_path, epochs=6)
    assert Near([request], tmp_path).run() == {request.name: 0}
    (lock,) = tmp_path.rglob("lock")
    held = acquire(lock)

    class Frees(Near):
        def _end(self, name: str, status: int) -> None:
            super()._end(name, status)
            held.release()

    near = Frees([more], tmp_path)
    assert near.run() == {request.name: 0}
    assert near.begun == [request.name] * 2
    assert "another process trains its runs; requested again" in near.out.getvalue()
    assert [own.next_epoch for (own,) in stored_progress([more])] == [6]


def shared(folder: Path, **changed: Any) -> SharedRequest:
    values = json.loads(request_json(a_request(folder)))
    return dataclasses.replace(SharedRequest(values, folder, folder, source()), **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"here": Path("/nowhere")}, "/nowhere must be on every machine, since the command was started there, got none on"),
        ({"sign": Path("/nowhere/sign")}, "--runs must be one folder that all machines share, got another /nowhere on"),
        ({"source": "other"}, "egalitarian must be the same on every machine, got other source files on"),
    ],
)
def test_a_worker_that_sees_something_else_says_so(
    tmp_path: Path, changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.object(Request, "carry_out", side_effect=AssertionError("it trains")):
        assert shared(tmp_path, **changed).carry_out(None) == APART  # type: ignore[arg-type]
    assert capsys.readouterr().err.startswith(f"egalitarian: {said}")


def test_runs_that_cannot_be_written_are_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    near = Near([a_request(tmp_path / "runs")], tmp_path / "runs")
    with pytest.raises(StoreError, match=r"runs.* must be writable, got: "):
        near.run()
    assert near.begun == []


ERRORS = {
    "--on=": "--on must be ray, ray:HOST:PORT or slurm, got ''; leave it out for this machine",
    "--on=pbs": "--on must be ray, ray:HOST:PORT or slurm, got 'pbs'; leave it out for this machine",
    "--on=ray:": "--on must be ray, ray:HOST:PORT or slurm, got 'ray:'; leave it out for this machine",
    "--on=slurm:x": "--on must be ray, ray:HOST:PORT or slurm, got 'slurm:x'; leave it out for this machine",
    "--slurm=time=3": "--slurm must come with --on slurm, got 'time=3' without it; leave it out, or add --on slurm",
    "--on=ray --slurm=time=3": "--slurm must come with --on slurm, got 'time=3' without it",
    "--on=slurm --device=cuda:1": "--device must be auto, cpu or cuda with --on, got 'cuda:1'; each task sees its own GPU",
    "--on=slurm --tensorboard=x": "--tensorboard must come without --on, got slurm; leave one of them out",
}


@pytest.mark.parametrize("options", ERRORS)
def test_wrong_options_have_a_way_out(options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "addition-97", "--runs", str(tmp_path), *options.split(" ")]) == 2
    assert capsys.readouterr().err.startswith(f"egalitarian: {ERRORS[options]}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("on", "package"), [("ray", "ray"), ("ray:a:1", "ray"), ("slurm", "submitit")])
def test_a_missing_package_comes_with_the_line_that_installs_it(
    on: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.dict("sys.modules", {package: None}):
        assert main(["run", "addition-97", "--runs", str(tmp_path), "--on", on]) == 2
    extra = on.partition(":")[0]
    said = f"egalitarian: --on {extra} needs the {package} package; pip install 'egalitarian[{extra}]'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("address", ["a", "a:", ":1", "ray://a:b", "a:70000000", "127.0.0.1:1"])
def test_an_address_that_does_not_answer_is_an_error(address: str) -> None:
    with patch.dict("sys.modules", {"ray": object()}), pytest.raises(SpecError, match=r"^--on ray:ADDRESS must be .*; "):
        Ray.check(address)


@pytest.fixture
def submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that knows some parameters, and Slurm's commands."""

    class SlurmExecutor:
        @classmethod
        def _valid_parameters(cls) -> set[str]:
            return {"partition", "time", "gres", "nodes", "setup", "cpus_per_task", "gpus_per_node"}

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=SlurmExecutor))
    monkeypatch.setattr("shutil.which", lambda name: name)


@pytest.mark.usefixtures("submitit")
def test_a_jobs_parameters() -> None:
    always = {"job_name": "egalitarian", "stderr_to_stdout": True, "cpus_per_task": 2}
    assert Slurm.check([], gpu=False, cpus=2) == {**always, "time": None}
    given = ["partition=a=b", "time=60"]
    assert Slurm.check(given, gpu=True, cpus=2) == {**always, "partition": "a=b", "time": 60, "gpus_per_node": 1}
    assert Slurm.check(["gres=gpu:a:1", "cpus_per_task=4"], gpu=True, cpus=2) == {
        **always,
        "time": None,
        "gres": "gpu:a:1",
        "cpus_per_task": 4,
    }


@pytest.mark.usefixtures("submitit")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("partition", "--slurm must be KEY=VALUE, got 'partition'; for example --slurm partition=gpu"),
        ("=gpu", "--slurm must be KEY=VALUE, got '=gpu'; for example"),
        ("partition=", "--slurm must be KEY=VALUE, got 'partition='; for example"),
        ("nodes=2", "--slurm must leave nodes to the lab, got 'nodes=2'; leave it out"),
        ("partitoin=gpu", "--slurm must have a key that submitit knows, got 'partitoin'; did you mean 'partition'"),
        ("setup=x", "--slurm must have a key that submitit knows, got 'setup'; "),
    ],
)
def test_a_wrong_parameter_has_a_way_out(given: str, said: str) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(said)}"):
        Slurm.check([given], gpu=False, cpus=1)


def test_slurm_needs_its_commands(submitit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SpecError, match="got no sbatch, srun, squeue, scancel; log in to the cluster first"):
        Slurm.check([], gpu=False, cpus=1)


@pytest.mark.parametrize(
    ("status", "printed", "state"),
    [
        (0, "1 RUNNING\n2 PENDING", "RUNNING"),
        (0, "2 RUNNING\n1 CANCELLED", "CANCELLED"),
        (0, "", "GONE"),
        (1, "", "UNKNOWN"),
    ],
)
def test_the_state_of_a_job(status: int, printed: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that does not answer has lost no job."""
    answer = SimpleNamespace(returncode=status, stdout=printed)
    monkeypatch.setattr("subprocess.run", lambda *command, **options: answer)
    assert JobStates().of("1") == state
    assert (state in OVER) == (state in ("CANCELLED", "GONE"))


def test_a_machine_without_a_gpu_asks_others_for_one(tmp_path: Path) -> None:
    request = dataclasses.replace(a_request(tmp_path), device="cuda")
    assert not request.is_stored()
    assert [own.next_epoch for (own,) in stored_progress([request])] == [0]
