"""The pool: concurrent processes store the same runs as one after another; a stop is passed on, and a rerun resumes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import typer
from rich.console import Console
from small import small

from egalitarian.lab.console.cli import main
from egalitarian.lab.console.training import run_executor
from egalitarian.lab.executors import STOPPED, TIME_OVER, Pool
from egalitarian.lab.runs import Interrupted, Request
from egalitarian.lab.runs.files import acquire

SMALL = ["--set=task.modulus=7", "--set=model.width=8", "--set=training.batch=8", "--seeds=0-1", "--device=cpu"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def a_request(runs: Path, method: str) -> Request:
    changes = {"task.modulus": 7, "model.width": 8, "training.batch": 8}
    return Request("addition-97", method, (0,), "cpu", 1, runs, values=changes, epochs=2)


def wait_until_running(lines: Iterable[str], processes: int) -> None:
    """Reads until so many have begun: they hold their locks then."""
    for line in lines:
        processes -= "up to 100000 epochs" in line
        if not processes:
            return
    raise AssertionError("the command ended before")


def records(runs: Path) -> dict[str, bytes]:
    return {str(path.parent.relative_to(runs)): path.read_bytes() for path in runs.rglob("records.jsonl")}


def test_concurrent_processes_store_what_one_process_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--epochs", "5"]
    assert main([*asked, "--runs", str(tmp_path / "one")]) == 0
    alone = capsys.readouterr().out
    assert main([*asked, "--runs", str(tmp_path / "both"), "--jobs", "2"]) == 0
    together = capsys.readouterr().out
    assert len(records(tmp_path / "one")) == 4
    assert records(tmp_path / "both") == records(tmp_path / "one")
    assert "addition-97 egd: 2 seeds, up to 5 epochs" in together
    assert together.count("These runs are stored") == 1
    table = alone[alone.index(" experiment ") : alone.index("Stored in")]
    assert together.count(table) == 1
    others = {json.loads(path.read_text())["beside"] for path in (tmp_path / "both").rglob("environment.jsonl")}
    assert others == {1}


def test_what_is_stored_needs_no_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--runs", str(tmp_path), "--jobs", "2", "--epochs"]
    assert main([*asked[:3], "egd", *asked[4:], "4"]) == 0
    before = records(tmp_path)
    capsys.readouterr()
    assert main([*asked, "4"]) == 0  # only SGD's is left
    printed = capsys.readouterr().out
    assert "addition-97 sgd: 2 seeds, up to 4 epochs" in printed
    assert "addition-97 egd:" not in printed
    assert {folder: text for folder, text in records(tmp_path).items() if "egd" in folder} == before
    with patch.object(Pool, "_start", side_effect=AssertionError("a process for what is stored")):
        assert main([*asked, "4"]) == 0
    table = capsys.readouterr().out
    assert " sgd " in table
    assert " egd " in table
    assert main([*asked, "5", "--final"]) == 0
    assert {json.loads(text.splitlines()[-1])["epoch"] for text in records(tmp_path).values()} == {4}, "the longer budget"


def test_a_damaged_run_is_an_error_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", *SMALL, "--runs", str(tmp_path)]
    assert main([*asked, "-m", "egd", "--epochs", "2"]) == 0
    (cut,) = tmp_path.glob("*/egd/seed-0-*/records.jsonl")
    cut.write_bytes(b"")
    assert main([*asked, "-m", "sgd,egd", "--epochs", "4"]) == 2
    assert "it was cut or edited" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/sgd"))


def test_what_a_process_did_not_store_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--runs", str(tmp_path), "--epochs", "3", "--jobs", "2"]
    with patch.object(Pool, "run", return_value={"addition-97 sgd": 0, "addition-97 egd": 0}):
        assert main(asked) == 2
    assert "every run must be stored by now, got none for addition-97 sgd, addition-97 egd" in capsys.readouterr().err
    assert not records(tmp_path)


def test_a_final_run_takes_the_budget_that_is_named(tmp_path: Path) -> None:
    asked = ["run", "parity-2", "-m", "egd-after", "--set=measure.threshold=0.1", "--set=methods.egd-after.epochs=4"]
    asked += ["--set=task.bits=6", "--set=model.width=8", "--seeds=0", "--device=cpu", "--past=0", "--runs", str(tmp_path)]
    for more, epochs in ((["--final"], 4), (["--final", "--epochs=9"], 9)):
        assert main([*asked, *more]) == 0
        (text,) = records(tmp_path).values()
        assert json.loads(text.splitlines()[-1])["epoch"] == epochs - 1


def test_the_status_of_each_request_is_known(tmp_path: Path) -> None:
    out = io.StringIO()
    bad = dataclasses.replace(a_request(tmp_path, "egd"), experiment="nothing-of-the-kind", preloaded=small())
    assert Pool(Console(file=out), [a_request(tmp_path, "sgd"), bad], 1).run() == {
        "addition-97 sgd": 0,
        "addition-97 egd": 2,
    }
    assert "addition-97 egd: egalitarian: experiment must be" in out.getvalue()
    assert [path.parent.parent.name for path in tmp_path.rglob("records.jsonl")] == ["sgd"]


def test_a_failure_is_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--runs", str(runs), "--epochs"]
    assert main([*asked, "2"]) == 0
    (cut,) = runs.glob("*/egd/seed-0-*/records.jsonl")
    cut.write_bytes(b"")
    capsys.readouterr()
    assert main([*asked, "4", "--jobs", "2"]) == 1
    caught = capsys.readouterr()
    assert "it was cut or edited" in caught.out
    assert "1 of 2 jobs failed: addition-97 egd (exit code 2); see their errors above" in caught.err


def test_a_stop_is_passed_on_and_nothing_is_lost(tmp_path: Path) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd,row-norm", *SMALL[:3], "--seeds=0", "--device=cpu", "--runs", "runs"]
    command = [sys.executable, "-m", "egalitarian", *asked, "--epochs", "100000", "--jobs", "2"]
    for stop, start in ((signal.SIGINT, command), (signal.SIGTERM, ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command])):
        with subprocess.Popen(start, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            wait_until_running(process.stdout, 2)
            process.send_signal(stop)
            _, message = process.communicate(timeout=60)
        assert process.returncode == STOPPED
        assert "run the same command again to resume" in message
    there = {path.parent.parent.name: int(path.stem.split("-")[1]) for path in tmp_path.rglob("checkpoint-*")}
    assert set(there) == {"sgd", "egd"}
    assert all(epochs > 0 for epochs in there.values())


def test_concurrent_tuning_shares_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nine_steps = ["--set=task.modulus=13", "--set=model.width=8", "--set=training.batch=9"]
    asked = [
        "tune",
        "addition",
        "-m",
        "sgd,egd-sgd",
        *nine_steps,
        "--quick",
        "--device=cpu",
        "--runs",
        str(tmp_path / "runs"),
    ]
    asked += ["--out", str(tmp_path / "out"), "--jobs", "2"]
    assert main(asked) == 0
    (file,) = (tmp_path / "out").glob("*.json")
    found = json.loads(file.read_text())["methods"]
    states = {name: (entry["searched"], entry["complete"]) for name, entry in found.items()}
    assert states == {"sgd": (True, False), "egd-sgd": (True, False)}, "fresh seeds are timed, so they are trained alone"
    printed = capsys.readouterr().out
    assert printed.count("Written:") == 2
    assert "run this again without --jobs" in " ".join(printed.split())
    assert main([*asked, "--replace"]) == 2
    assert "--replace must come without --jobs, got 2" in capsys.readouterr().err


def test_tensorboard_writes_for_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "addition-97", "--jobs", "2", "--tensorboard", str(tmp_path / "board")]) == 2
    assert "--tensorboard must come without --jobs, got 2" in capsys.readouterr().err


def test_no_process_is_left_when_the_output_is_closed(tmp_path: Path) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL[:3], "--seeds=0", "--device=cpu", "--epochs", "100000"]
    command = [sys.executable, "-m", "egalitarian", *asked, "--jobs", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        wait_until_running(process.stdout, 2)
        locks = {path: int(path.read_text().removeprefix("process ")) for path in tmp_path.rglob("lock")}
        assert len(set(locks.values())) == 2
        process.stdout.close()
        process.wait(timeout=60)
    for path, worker in locks.items():
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
        acquire(path).release()


def test_files_of_users_and_modules_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, modulus in (("a", 5), ("b", 7)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"exp-{folder}.toml").write_text(f'extends = "addition-97"\n[task]\nmodulus = {modulus}\n')
    (tmp_path / "signal.py").write_text("raise SystemExit('not a module of ours')")
    monkeypatch.chdir(tmp_path)
    asked = [
        "run",
        "a/exp-a.toml",
        "b/exp-b.toml",
        "-m",
        "sgd",
        *SMALL[1:],
        "--epochs",
        "2",
        "--runs",
        "runs",
        "--jobs",
        "2",
    ]
    assert main(asked) == 0
    others = [json.loads(path.read_text())["beside"] for path in tmp_path.rglob("environment.jsonl")]
    assert others == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        ({"a": 0}, True),
        ({"a": TIME_OVER, "b": 0}, False),
        ({"a": 1, "b": 0}, typer.Exit),
        ({"a": STOPPED, "b": 1}, Interrupted),
    ],
)
def test_how_the_command_ends(ended: dict[str, int], outcome: bool | type[Exception]) -> None:
    pool = Mock(run=lambda: ended)
    if isinstance(outcome, bool):
        assert run_executor(pool) == outcome
    else:
        with pytest.raises(outcome):
            run_executor(pool)


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ({"a": -9}, "a (killed by signal 9, perhaps for lack of memory); the same command resumes"),
        ({"a": -11, "b": 0}, "a (killed by signal 11); the same command resumes"),
        (
            {"a": 2, "b": -9},
            "a (exit code 2), b (killed by signal 9, perhaps for lack of memory); see their errors above; "
            "the same command resumes",
        ),
    ],
)
def test_a_job_that_was_killed_is_told_of(ended: dict[str, int], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        run_executor(Mock(run=lambda: ended))
    failed = sum(status != 0 for status in ended.values())
    assert capsys.readouterr().err == f"egalitarian: {failed} of {len(ended)} jobs failed: {told}\n"


def test_after_the_time_nothing_begins(tmp_path: Path) -> None:
    requests = [a_request(tmp_path, method) for method in ("sgd", "egd")]
    ended = Pool(Console(), requests, 1, minutes=0).run()
    assert ended == {"addition-97 sgd": TIME_OVER, "addition-97 egd": TIME_OVER}


def test_a_request_with_a_time_limit_gets_the_minutes_that_are_left(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Limited:
        name: str
        minutes: float | None = None

    started: list[Limited] = []

    class Ends(Pool):
        def _start(self, request: Any) -> Any:
            started.append(request)
            return Mock(stdout=io.StringIO(""), wait=lambda: 0)

    requests: list[Any] = [Limited("a"), Limited("b")]
    assert Ends(Console(file=io.StringIO()), requests, 1, minutes=3).run() == {"a": 0, "b": 0}
    assert [request.name for request in started] == ["a", "b"]
    assert all(request.minutes is not None and 2.9 < request.minutes < 3 for request in started)


def test_what_cannot_be_tuned_is_an_error_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "addition", "-m", "sgd,egd-sgd", *SMALL[:3], "--jobs", "2", "--runs", str(tmp_path / "runs")]
    assert main([*asked, "--device=cpu", "--out", str(tmp_path / "out")]) == 2
    assert "training.readings must divide the 3 steps of a pass, got 9" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_before_the_training_has_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("egalitarian.lab.runs.request.try_step", side_effect=KeyboardInterrupt):
        assert main(["run", "addition-97", "-m", "egd", *SMALL, "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("Stopped at once.")
