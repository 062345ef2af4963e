"""The command `egalitarian tune`, and one method as a request for another process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from tuned_entries import CHANGES, TINY, tuned, without_time

from egalitarian.lab.console.cli import main
from egalitarian.lab.executors import TIME_OVER
from egalitarian.lab.runs import Interrupted, Silent
from egalitarian.lab.tuning.job import TuneRequest
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.results import read_results


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("EGALITARIAN_RUNS", raising=False)
    (tmp_path / "plan.toml").write_text(TINY)
    smaller = [part for change in CHANGES for part in ("--set", change)]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["tune", *arguments, "--plan", "plan.toml", *smaller, "--device", "cpu"])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_command_tunes_prints_and_writes(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = command("tiny")
    assert code == 0
    assert "EGD" in out
    assert "of 2" in out
    assert "tuned-tiny-changed.json" in out
    assert "were in the file already" not in out
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("tiny")
    assert code == 0
    assert "Nothing was left to train; name another --out to repeat the search." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    text = (tmp_path / "tuned" / "tuned-changed.md").read_text()
    assert text.startswith("# Tuned fairly\n")
    assert "\n| SGD | " in text
    code, out, _ = command("all", "--method", "egd", "--out", "elsewhere", "--minutes", "0")
    assert code == 1
    assert "The --minutes are over" in out
    assert command("tiny", "--quick", "--method", "egd")[0] == 0


def test_a_pool_that_is_stopped_leaves_the_page_of_its_results(command, tmp_path: Path) -> None:
    assert command("tiny", "--method", "egd")[0] == 0
    page = tmp_path / "tuned" / "tuned-changed.md"
    before = page.read_bytes()
    page.unlink()
    with patch("egalitarian.lab.console.training.run_executor", side_effect=Interrupted):
        code, out, _ = command("tiny", "--jobs", "2")
    assert (code, out) == (130, "")
    assert page.read_bytes() == before


def test_a_mistake_is_an_error_before_anything_is_trained(command, tmp_path: Path) -> None:
    for arguments, message in (
        (["tyni"], "FAMILY must be one of the plan's, got 'tyni'; did you mean 'tiny'?"),
        (["tiny", "--method", "edg"], "--method must be one that family 'tiny' tunes, got 'edg'"),
        (["tiny", "--set", "optim.rl=3"], "rl must be a known setting"),
    ):
        code, _, err = command(*arguments)
        assert code == 2
        assert message in err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "tuned").exists()


def test_quick_runs_are_no_runs_of_the_experiment(command, tmp_path: Path) -> None:
    assert command("tiny", "--quick", "--method", "sgd")[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tuning"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".methods.sgd]", ".methods.sdg]", "stock must name methods of the family, got 'sgd'; did you mean 'sdg'?"),
        (
            ".methods.egd]",
            ".methods.edg]",
            "families.tiny.methods.edg must be a method of parity-2 or have settings, got neither; did you mean 'egd'?",
        ),
        ('"optim.lr", first = 0.3', '"optim.rl", first = 0.3', "rl must be a known setting"),
        ('"parity-2"', '"parity-22"', "parity-22"),
    ],
)
def test_an_estimate_finds_what_is_wrong_with_a_plan(command, tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(TINY.replace(old, new))
    code, _, err = command("all", "--estimate")
    assert code == 2
    assert said in err


def test_the_command_estimates_the_cost(command, tmp_path: Path) -> None:
    code, out, _ = command("all", "--estimate")
    assert code == 0
    assert "tiny" in out
    assert not (tmp_path / "runs").exists()


REQUEST = TuneRequest(
    "tiny",
    "egd",
    Path("runs"),
    Path("tuned"),
    "cpu",
    changes=CHANGES,
    plan=Path("plan.toml"),
    quick=True,
    data=Path("data"),
    minutes=0.1 + 0.2,
)


@pytest.mark.parametrize("request_", [REQUEST, TuneRequest("mnist", "sgd", Path("r"), Path("o"), "cuda:1", threads=2)])
def test_a_request_is_the_same_after_json(request_: TuneRequest) -> None:
    assert TuneRequest.from_json(json.loads(json.dumps(request_.to_json()))) == request_


class Log(Silent):
    """The messages of a worker."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def status(self, text: str) -> None:
        self.texts.append(text)


def test_a_request_tunes_one_method(tmp_path: Path, family: Family) -> None:
    lines = Log()
    request = TuneRequest(
        "tiny", "egd", tmp_path / "runs", tmp_path / "out", "cpu", changes=CHANGES, plan=tmp_path / "plan.toml"
    )
    assert replace(request, minutes=0).carry_out(lines) == TIME_OVER
    assert not (tmp_path / "runs").exists()
    assert request.carry_out(lines) == 0
    assert any(text.startswith("point 1, coarse grid: lr 0.3, decay 0.001") for text in lines.texts)
    found = read_results(tmp_path / "out" / "tuned-tiny-changed.json")
    whole = without_time(tuned(tmp_path / "alone", family, ["egd"]))["methods"]["egd"]
    environment = found["methods"]["egd"]["environment"]
    searched = {**whole, "complete": False, "fresh": {}, "environment": environment}
    assert without_time(found)["methods"] == {"egd": searched}, "fresh seeds are timed, so they are trained alone"
    assert request.name == "tiny: egd"
    assert not list((tmp_path / "out").glob("*.md")), "the process that runs the pool writes the page"
