"""Ray: one on this machine, and a cluster of two nodes on it, whose nodes and workers are killed while they train."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from clusters import (
    COMMAND,
    IN_NAMESPACE,
    Command,
    ends_well,
    free_port,
    kill_session,
    no_worker_is_left,
    started,
    stored,
    wait_for,
    with_own_folder,
)

import egalitarian

RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster has a token by default, which its machines share. It is none of the user's."""
    (tmp_path / "token").write_text("a" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")  # not a minute


@contextmanager
def two_nodes(folder: Path, *second: str) -> Iterator[tuple[str, subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """The address, the head and the other node; each trains one request at a time."""
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as nodes:
        port = address.partition(":")[2]
        options = ["--block", "--num-cpus=1", "--disable-usage-stats"]
        head = [RAY, "start", "--head", f"--port={port}", "--include-dashboard=false", *options]
        first = nodes.enter_context(started(folder / "head.log", *head))
        wait_for("a head", lambda: "started" in (folder / "head.log").read_text())
        other = nodes.enter_context(
            started(folder / "node.log", *(second or [RAY]), "start", f"--address={address}", *options)
        )
        wait_for("a node", lambda: "started" in (folder / "node.log").read_text())
        yield address, first, other


def test_a_ray_on_this_machine_stores_what_one_process_does(tmp_path: Path) -> None:
    asked = ["-m", "sgd,egd", "--epochs=5"]
    alone = subprocess.run([*COMMAND, *asked, "--runs", str(tmp_path / "alone")], capture_output=True, text=True)
    there = subprocess.run([*COMMAND, *asked, "--runs", str(tmp_path / "ray"), "--jobs=2", "--on=ray"], **ends_well)
    assert stored(tmp_path / "ray") == stored(tmp_path / "alone")
    assert len(stored(tmp_path / "ray")) == 4
    table = alone.stdout[alone.stdout.index(" experiment ") : alone.stdout.index("Stored in")]
    assert table in there.stdout
    assert [path.name for path in (tmp_path / "ray").iterdir()] == ["addition-97"]
    again = subprocess.run([*COMMAND, *asked, "--runs", str(tmp_path / "ray"), "--on=ray"], **ends_well)
    assert "up to 5 epochs" not in again.stdout
    assert table in again.stdout


def test_a_node_that_is_lost_loses_no_run(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (address, _, node):
        with Command(tmp_path, "-m", "sgd,egd", "--epochs=4000", "--jobs=2", f"--on=ray:{address}") as command:
            command.wait_until_training(2)
            assert kill_session(node.pid, "raylet/raylet") == 1
            assert command.process.wait(240) == 0, command.output()
        assert command.output().count("it was lost; requested again in 2 seconds, 1 of 3 times") == 1
        each = stored(command.runs)
        assert len(each) == 4
        assert {text.count(b'"train_loss"') for text in each.values()} == {4000}, "every epoch once"
        no_worker_is_left(command.runs)


def test_a_worker_that_is_killed_is_requested_again(tmp_path: Path) -> None:
    with Command(tmp_path, "-m", "sgd", "--epochs=3000", "--on=ray") as command:
        command.wait_until_training(1)
        os.kill(command.trainers()[0], signal.SIGKILL)
        assert command.process.wait(120) == 0, command.output()
    assert "its worker was killed by signal 9; requested again in 2 seconds, 1 of 3 times" in command.output()
    assert {text.count(b'"train_loss"') for text in stored(command.runs).values()} == {3000}


def test_ctrl_c_stores_what_was_trained(tmp_path: Path) -> None:
    with Command(tmp_path, "-m", "sgd,egd,row-norm", "--epochs=1000000", "--jobs=2", "--on=ray") as command:
        command.wait_until_training(2)
        os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does
        assert command.process.wait(60) == 130, command.output()
    assert "Everything is stored; run the same command again to resume" in command.output()
    assert all(epoch > 0 for epoch in command.checkpoints())
    assert len(command.checkpoints()) == 4
    no_worker_is_left(command.runs)


def test_a_command_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (address, _, _node):
        asked = ["-m", "sgd,egd", "--jobs=2", f"--on=ray:{address}"]
        with Command(tmp_path, *asked, "--epochs=1000000") as command:
            command.wait_until_training(2)
            command.process.kill()
            command.process.wait()
        no_worker_is_left(command.runs)
        subprocess.run([*COMMAND, *asked, "--runs", str(command.runs), "--epochs=5"], **ends_well)


def test_a_head_that_is_killed_leaves_what_was_stored(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (address, head, _):
        with Command(tmp_path, "-m", "sgd,egd", "--epochs=1000000", "--jobs=2", f"--on=ray:{address}") as command:
            command.wait_until_training(2)
            assert kill_session(head.pid) > 2, "the head with all that it started"
            assert command.process.wait(120) != 0, command.output()
        no_worker_is_left(command.runs, 120)
    subprocess.run([*COMMAND, "-m", "sgd,egd", "--runs", str(command.runs), "--epochs=5"], **ends_well)


def test_a_node_whose_python_lacks_egalitarian(tmp_path: Path) -> None:
    """Its folder is empty there, in a mount namespace."""
    mount = f'mount -t tmpfs none {shlex.quote(str(Path(egalitarian.__file__).parent))} && exec {shlex.quote(RAY)} "$@"'
    with two_nodes(tmp_path, *IN_NAMESPACE, mount, "ray") as (address, _, _node):
        asked = [*COMMAND, "-m", "sgd,egd,row-norm,egd-after", "--epochs=100000", "--jobs=2", f"--on=ray:{address}"]
        failed = subprocess.run([*asked, "--runs", str(tmp_path / "runs")], capture_output=True, text=True, timeout=120)
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "its lab must be installed on every machine, got ModuleNotFoundError: No module named" in failed.stdout
    assert "every machine must share the folders and the version of egalitarian, got one of Ray" in failed.stderr


def test_a_folder_that_only_the_command_sees(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (address, _, _node):
        failed = with_own_folder("tmpfs", tmp_path / "runs", "-m", "sgd,egd", f"--on=ray:{address}")
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "--runs must be one folder that all machines share, got another" in failed.stdout
    assert "every machine must share the folders" in failed.stderr


def test_an_address_without_a_cluster(tmp_path: Path) -> None:
    asked = [*COMMAND, "-m", "sgd", "--runs", str(tmp_path / "runs"), f"--on=ray:127.0.0.1:{free_port()}"]
    failed = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 2
    assert "--on ray:ADDRESS must be the address of a running cluster" in failed.stderr
    assert not (tmp_path / "runs").exists()
