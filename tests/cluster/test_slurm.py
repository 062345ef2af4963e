"""Slurm: one node on this machine; jobs and commands are killed while they train."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from clusters import COMMAND, Command, ends_well, no_worker_is_left, output, stored, wait_for, with_own_folder

pytestmark = pytest.mark.usefixtures("slurm")


def jobs() -> list[str]:
    return output("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()


def test_slurm_stores_what_one_process_does(tmp_path: Path) -> None:
    asked = ["-m", "sgd,egd", "--epochs=5"]
    subprocess.run([*COMMAND, *asked, "--runs", str(tmp_path / "alone")], **ends_well)
    more = ["--jobs=2", "--on=slurm", "--slurm", "partition=debug", "--slurm=time=10"]
    there = subprocess.run([*COMMAND, *asked, "--runs", str(tmp_path / "slurm"), *more], **ends_well)
    assert stored(tmp_path / "slurm") == stored(tmp_path / "alone")
    assert len(stored(tmp_path / "slurm")) == 4
    assert "submitit" not in there.stdout
    assert [path.name for path in (tmp_path / "slurm").iterdir()] == ["addition-97"]


def test_a_job_that_is_cancelled_is_requested_again(tmp_path: Path) -> None:
    with Command(tmp_path, "-m", "sgd,egd", "--epochs=4000", "--jobs=2", "--on=slurm") as command:
        command.wait_until_training(2)
        first = jobs()[0]
        output("scancel", first)
        wait_for("the job's end", lambda: first not in output("squeue", "--noheader", "--format=%A").split())
        assert sum(epoch > 0 for epoch in command.checkpoints()) >= 2, "it stored what it had"
        assert command.process.wait(240) == 0, command.output()
    assert command.output().count("requested again in 2 seconds, 1 of 3 times") == 1
    each = stored(command.runs)
    assert len(each) == 4
    assert {text.count(b'"train_loss"') for text in each.values()} == {4000}, "every epoch once"


def test_a_job_that_is_killed_is_requested_again(tmp_path: Path) -> None:
    with Command(tmp_path, "-m", "sgd", "--epochs=3000", "--on=slurm") as command:
        command.wait_until_training(1)
        os.kill(command.trainers()[0], signal.SIGKILL)
        assert command.process.wait(120) == 0, command.output()
    assert "ended without a result" in command.output()
    assert "it was lost; requested again in 2 seconds, 1 of 3 times" in command.output()
    assert {text.count(b'"train_loss"') for text in stored(command.runs).values()} == {3000}


def test_ctrl_c_cancels_all_jobs(tmp_path: Path) -> None:
    with Command(tmp_path, "-m", "sgd,egd,row-norm", "--epochs=1000000", "--jobs=3", "--on=slurm") as command:
        command.wait_until_training(2)  # the third waits in Slurm's queue: the node has two cores
        os.killpg(command.process.pid, signal.SIGINT)
        assert command.process.wait(60) == 130, command.output()
    assert not output("squeue", "--noheader", "--states=RUNNING,PENDING")
    assert all(epoch > 0 for epoch in command.checkpoints())
    no_worker_is_left(command.runs)


def test_jobs_of_a_command_that_was_killed_are_waited_for(tmp_path: Path) -> None:
    """They train on, and the same command does not train their runs a second time."""
    asked = ["-m", "sgd", "--epochs=6000", "--on=slurm"]
    with Command(tmp_path, *asked) as command:
        command.wait_until_training(1)
        command.process.kill()
        command.process.wait()
    again = subprocess.run([*COMMAND, *asked, "--runs", str(command.runs)], **ends_well)
    assert "another process trains its runs; requested again" in again.stdout
    assert {text.count(b'"train_loss"') for text in stored(command.runs).values()} == {6000}


def test_two_commands_at_once_train_nothing_twice(tmp_path: Path) -> None:
    asked = ["-m", "sgd,egd", "--epochs=400", "--jobs=2"]
    with Command(tmp_path, *asked, "--on=slurm") as one, Command(tmp_path, *asked, "--on=ray", log="other.log") as two:
        assert (one.process.wait(240), two.process.wait(240)) == (0, 0), one.output() + two.output()
    each = stored(one.runs)
    assert len(each) == 4
    assert {text.count(b'"train_loss"') for text in each.values()} == {400}
    sessions = [path.read_text().count("\n") for path in one.runs.rglob("environment.jsonl")]
    assert sessions == [1, 1, 1, 1], "each was trained by one of them"


def test_what_slurm_refuses_is_an_error(tmp_path: Path) -> None:
    for option, said in (
        ("partition=nowhere", "Slurm must take the job of addition-97 sgd, got: "),
        ("partitoin=debug", "--slurm must have a key that submitit knows, got 'partitoin'; did you mean 'partition'?"),
    ):
        asked = [*COMMAND, "-m", "sgd", "--runs", str(tmp_path / "runs"), "--on=slurm", "--slurm", option]
        failed = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        assert failed.returncode == 2
        assert f"egalitarian: {said}" in failed.stderr


def test_a_folder_that_only_the_command_sees(tmp_path: Path) -> None:
    failed = with_own_folder("tmpfs", tmp_path / "runs", "-m", "sgd,egd", "--on=slurm")
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "its node must see" in failed.stdout
    assert "every machine must share the folders" in failed.stderr


def test_runs_that_cannot_be_written(tmp_path: Path) -> None:
    failed = with_own_folder("tmpfs -o ro", tmp_path / "runs", "-m", "sgd", "--on=slurm")
    assert failed.returncode == 2
    assert "must be writable, got: Read-only file system" in failed.stderr
