"""Processes side by side: the same runs as one after another, stored beside each other; stopped and gone on with."""

from __future__ import annotations

import fcntl
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import typer
from rich.console import Console

from egalitarian.lab.console import options as choices
from egalitarian.lab.console.cli import main, side_by_side
from egalitarian.lab.executors.local import STOPPED, TIME_OVER, Jobs
from egalitarian.lab.runs.progress import Interrupted
from egalitarian.lab.runs.request import spelled

SMALL = ["--set=task.modulus=7", "--set=model.width=8", "--set=training.batch=8", "--seeds=0-1", "--device=cpu"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def records(runs: Path) -> dict[str, bytes]:
    return {str(path.parent.relative_to(runs)): path.read_bytes() for path in runs.rglob("records.jsonl")}


def test_side_by_side_is_one_after_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    said = {json.loads(path.read_text())["beside"] for path in (tmp_path / "both").rglob("environment.jsonl")}
    assert said == {1}


def test_what_is_stored_needs_no_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--runs", str(tmp_path), "--jobs", "2", "--epochs"]
    assert main([*asked[:3], "egd", *asked[4:], "4"]) == 0
    before = records(tmp_path)
    capsys.readouterr()
    assert main([*asked, "4"]) == 0  # only SGD's is left
    said = capsys.readouterr().out
    assert "addition-97 sgd: 2 seeds, up to 4 epochs" in said
    assert "addition-97 egd:" not in said
    assert {place: text for place, text in records(tmp_path).items() if "egd" in place} == before
    with patch.object(Jobs, "_started", side_effect=AssertionError("a process for what is stored")):
        assert main([*asked, "4"]) == 0
    table = capsys.readouterr().out
    assert " sgd " in table
    assert " egd " in table
    assert main([*asked, "5", "--final"]) == 0
    assert {json.loads(text.splitlines()[-1])["epoch"] for text in records(tmp_path).values()} == {4}, "the longer budget"


def test_a_damaged_run_is_told_of_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", *SMALL, "--runs", str(tmp_path)]
    assert main([*asked, "-m", "egd", "--epochs", "2"]) == 0
    (cut,) = tmp_path.glob("*/egd/seed-0-*/records.jsonl")
    cut.write_bytes(b"")
    assert main([*asked, "-m", "sgd,egd", "--epochs", "4"]) == 2
    assert "it was cut or edited" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/sgd"))


def test_what_a_process_did_not_store_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL, "--runs", str(tmp_path), "--epochs", "3", "--jobs", "2"]
    with patch.object(Jobs, "run", return_value={"addition-97 sgd": 0, "addition-97 egd": 0}):
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


def test_how_each_ended_is_known() -> None:
    out = io.StringIO()
    ended = Jobs(Console(file=out), {"good": ["--version"], "bad": ["show", "nothing-of-the-kind"]}, 1).run()
    assert ended == {"good": 0, "bad": 2}
    assert "bad: egalitarian: experiment must be" in out.getvalue()


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
            at_work = 0
            for line in process.stdout:
                at_work += "up to 100000 epochs" in line
                if at_work == 2:
                    break
            process.send_signal(stop)
            _, said = process.communicate(timeout=60)
        assert process.returncode == STOPPED
        assert "run the same command again to resume" in said
    there = {path.parent.parent.name: int(path.stem.split("-")[1]) for path in tmp_path.rglob("checkpoint-*")}
    assert set(there) == {"sgd", "egd"}
    assert all(epochs > 0 for epochs in there.values())


def test_a_tuning_side_by_side_shares_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "addition", "-m", "sgd,egd", *SMALL[:3], "--quick", "--device=cpu", "--runs", str(tmp_path / "runs")]
    asked += ["--out", str(tmp_path / "out"), "--jobs", "2"]
    assert main(asked) == 0
    (file,) = (tmp_path / "out").glob("*.json")
    found = json.loads(file.read_text())["methods"]
    assert {name: entry["complete"] for name, entry in found.items()} == {"sgd": True, "egd": True}
    assert capsys.readouterr().out.count("Written:") == 2
    assert main([*asked, "--replace"]) == 2
    assert "--replace must come without --jobs, got 2" in capsys.readouterr().err


def test_tensorboard_writes_for_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "addition-97", "--jobs", "2", "--tensorboard", str(tmp_path / "board")]) == 2
    assert "--tensorboard must come without --jobs, got 2" in capsys.readouterr().err


def test_nobody_is_left_when_nobody_listens(tmp_path: Path) -> None:
    asked = ["run", "addition-97", "-m", "sgd,egd", *SMALL[:3], "--seeds=0", "--device=cpu", "--epochs", "100000"]
    command = [sys.executable, "-m", "egalitarian", *asked, "--jobs", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=60)
    for held in tmp_path.rglob("lock"):
        with held.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # by no process any more


def test_files_of_our_own_and_of_the_folder_we_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, modulus in (("a", 5), ("b", 7)):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"exp-{place}.toml").write_text(f'extends = "addition-97"\n[task]\nmodulus = {modulus}\n')
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
    said = [json.loads(path.read_text())["beside"] for path in tmp_path.rglob("environment.jsonl")]
    assert said == [1, 1, 1, 1]


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
    jobs = Mock(run=lambda: ended)
    if isinstance(outcome, bool):
        assert side_by_side(jobs) == outcome
    else:
        with pytest.raises(outcome):
            side_by_side(jobs)


def test_after_the_time_nothing_begins() -> None:
    assert Jobs(Console(), {"a": ["--version"], "b": ["--version"]}, 1, minutes=0).run() == {"a": TIME_OVER, "b": TIME_OVER}


@pytest.mark.parametrize(("numbers", "text"), [([0, 1, 2, 5], "0-2,5"), ([3], "3"), ([4, 3, 7, 8], "4,3,7-8")])
def test_seeds_are_spelled_as_they_are_read(numbers: list[int], text: str) -> None:
    assert spelled(numbers) == text
    assert choices.seeds(text) == numbers


def test_what_cannot_be_tuned_is_told_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "addition", "-m", "sgd,egd-rsvd-128", *SMALL[:3], "--jobs", "2", "--runs", str(tmp_path / "runs")]
    assert main([*asked, "--device=cpu", "--out", str(tmp_path / "out")]) == 2
    assert "egd-rsvd-128" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_before_the_training_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("egalitarian.lab.runs.request.rehearse", side_effect=KeyboardInterrupt):
        assert main(["run", "addition-97", "-m", "egd", *SMALL, "--runs", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("Stopped at once.")
