"""The command line as a user meets it: what it says, what it leaves behind, and never a traceback for a mistake."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egalitarian.lab.config import catalog
from egalitarian.lab.console.cli import main
from egalitarian.lab.console.textplot import text_plot

SMALL = ["--set", "task.modulus=7", "--set", "model.width=16", "--set", "training.batch=8"]
Outcome = tuple[int, str, str]
TASK = """
from dataclasses import dataclass
import torch
from egalitarian.lab.problems.tasks import Data, Split, Task, stream

@dataclass(frozen=True, kw_only=True)
class Mine(Task, kind="mine"):
    size: int = 64
    features, outputs = 5, 1

    def build(self, seed):
        x = torch.randn(self.size, 5, generator=stream(seed, "x"))
        return Data(*[Split(x, x[:, 0].sign())] * 2)
"""
OWN = """
extends = "_parity"
model.width = 8
[task]
name = "mine"
file = "task.py"
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command in an empty folder and returns its exit code and what it printed, on one long line each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("EGALITARIAN_RUNS", raising=False)

    def run(*arguments: str) -> Outcome:
        code = main(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_grok_shows_trains_and_draws(command, tmp_path: Path) -> None:
    code, out, _ = command("grok", "addition-97", *SMALL, "--set", "epochs=4", "--set", "measure.past=0", "--seeds", "0,1")
    assert code == 0
    assert "Addition modulo 97, with task.modulus=7, " in out  # it is not the paper's any more
    assert "training until test accuracy passes 95%" in out
    assert "paper" not in out
    for method in ("EGD", "row norm", "SGD"):
        assert method in out
    assert (tmp_path / "grok-addition-97-changed.png").stat().st_size > 10_000
    assert len(list((tmp_path / "runs").glob("addition-97/*/seed-*"))) == 10


def test_a_second_run_trains_nothing(command, tmp_path: Path) -> None:
    arguments = ["run", "addition-97", *SMALL, "-m", "egd,sgd", "--seeds", "0-2", "--epochs", "2"]
    assert command(*arguments)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, _ = command(*arguments)
    assert code == 0
    assert re.search(r"addition-97 +egd +0 of 3", out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_longer_budget_extends(command, tmp_path: Path) -> None:
    for epochs in ("2", "4"):
        assert command("run", "addition-97", *SMALL, "-m", "egd", "--seeds", "0", "--epochs", epochs)[0] == 0
    (records,) = tmp_path.rglob("records.jsonl")
    epochs = [line for line in records.read_text().splitlines() if "snapshot" not in line]
    assert len(epochs) == 4


def test_list_and_show(command) -> None:
    code, out, _ = command("list")
    assert code == 0
    assert all(name in out for name in catalog.names())
    code, out, _ = command("show", "parity-3", "--sources")
    assert code == 0
    assert re.search(r"optim\.lr +0\.0416239 +authors' code; Table 1 rounds it", out)
    assert re.search(r"training\.loss +squared-error +authors' code; the text says hinge", out)
    out = command("show", "parity-3")[1]
    rows = {line[1:].split("  ")[0]: line.split() for line in out.splitlines() if line.startswith(" ")}
    assert rows["setting"][1:3] == ["sgd", "egd"]
    assert rows["paper: epochs"][2:4] == ["1784", "115"]
    assert rows["paper: seconds"][2] == "89.4"
    assert "Table 4" in out


def test_report_and_check_of_an_empty_store(command, tmp_path: Path) -> None:
    for arguments in (["check"], ["report"]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "--runs must be a folder of stored runs, got runs" in err
    (tmp_path / "runs").mkdir()
    code, out, _ = command("check", "addition-97")
    assert code == 0
    assert "not run" in out
    assert command("report", "--out", "somewhere")[0] == 0
    assert (tmp_path / "somewhere" / "index.html").exists()


def test_toy_says_what_holds(command, tmp_path: Path) -> None:
    code, out, _ = command("toy", "--quick", "--eps", "0.1", "--out", "figures")
    assert code == 0
    found = re.search(r"Of (\d+) claims (\d+) hold as printed, (\d+) in part, (\d+) fail", out)
    assert found
    claims, *parts = (int(number) for number in found.groups())
    assert sum(parts) == claims > 40
    assert len((tmp_path / "figures" / "toy-claims.csv").read_text().splitlines()) > 100
    assert len(list((tmp_path / "figures").glob("*.png"))) == 4


MISTAKES = {
    "experiment": (["run", "adition-97"], "did you mean 'addition-97'?"),
    "file": (["run", "nowhere.toml"], "existing file"),
    "base": (["run", "_modular"], "one of the lab's"),
    "method": (["run", "addition-97", "-m", "egdd"], "did you mean 'egd'?"),
    "seeds": (["run", "addition-97", "--seeds", "7-0"], "--seeds must"),
    "seeds of words": (["run", "addition-97", "--seeds", "many"], "for example 0-7"),
    "device": (["run", "addition-97", "--device", "gpu"], "--device must be"),
    "far device": (["run", "addition-97", "--device", "cuda:99"], "--device must be"),
    "setting": (["run", "addition-97", "--set", "optim.rl=1"], "optim.rl must be a known setting"),
    "part": (["run", "addition-97", "--set", "optimm.lr=1"], "did you mean 'optim'?"),
    "value": (["run", "addition-97", "--set", "optim.lr=fast"], "must be a finite number, got 'fast'"),
    "range": (["run", "addition-97", "--set", "optim.lr=-1"], "must be > 0, got -1"),
    "no value": (["run", "addition-97", "--set", "optim.lr"], "must be key=value"),
    "prime": (["run", "addition-97", "--set", "task.operation='/'", "--set", "task.modulus=9"], "prime"),
    "batch": (["run", "addition-97", "--set", "training.batch=100000", "-m", "egd"], "training.batch must be"),
    "rank": (["run", "addition-97", "--set", "transform.0.rank=999", "-m", "egd-rsvd-64"], "rank must be in [1, 194]"),
    "picture": (["grok", "--picture", "nowhere/x.png"], "make nowhere first"),
    "kind of picture": (["grok", "--picture", "x.gif"], "must end in .png"),
    "eps": (["toy", "--eps", "2"], "eps must"),
    "eps of words": (["toy", "--eps", "small"], "--eps must be numbers"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_message(mistake: str, command, tmp_path: Path) -> None:
    arguments, expected = MISTAKES[mistake]
    code, out, err = command(*arguments)
    assert code == 2
    assert err.startswith("egalitarian: ")
    assert expected in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("arguments", [["gork"], ["run"], ["run", "addition-97", "--epochs", "0"], ["grok", "--sed", "1"]])
def test_mistakes_that_the_parser_finds(arguments: list[str], command) -> None:
    code, out, err = command(*arguments)
    assert code == 2
    assert "Traceback" not in out + err


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    arguments = ["run", "addition-97", *SMALL, "-m", "sgd", "--seeds", "0", "--epochs", "100000", "--runs", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "egalitarian", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(tmp_path.rglob("records.jsonl")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Everything is stored; run the same command again to resume." in err
    assert "Traceback" not in err
    assert list(tmp_path.rglob("checkpoint-*.safetensors"))


def test_the_text_plot_puts_dots_where_the_curve_is() -> None:
    plot = text_plot({"one": [(0, 0.0), (9, 0.0), (99, 1.0)]}, {}, width=40, height=5).plain.splitlines()
    assert plot[0].rstrip().endswith("⠉")  # the top row of dots
    assert "100% ┤" in plot[0]
    assert plot[4].startswith("  0% ┤")
    assert plot[6].split()[:3] == ["1", "10", "100"]


def test_what_cannot_be_trained_is_told_before_anything_is_made(command, tmp_path: Path) -> None:
    too_large = ["--set", "task.modulus=7", "--set", "training.batch=512"]
    for arguments in (["run", "addition-97", *too_large], ["grok", *too_large]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "training.batch must be at most the 24 training points, got 512" in err
        assert not (tmp_path / "runs").exists()
    # the second method of two: the first is not trained either
    code, _, err = command("run", "addition-97", *SMALL, "--method", "egd,egd-rsvd-128", "--epochs", "2")
    assert code == 2
    assert "rank" in err
    assert not (tmp_path / "runs").exists()


def test_show_says_what_was_changed_here(command) -> None:
    changed = ["show", "addition-97", "--set", "methods.egd.optim.lr=2.0"]
    out = command(*changed, "--sources")[1]
    assert re.search(r"optim\.lr +2 +changed with --set", out)
    assert re.search(r"optim\.lr +0\.7 +paper, Table 1", out)
    out = command(*changed, "-m", "sgd,egd")[1]
    assert re.search(r"optim\.lr +0\.7 +2\* ", out)
    assert "*: changed with --set." in out
    assert re.search(r"paper: epochs +5392 +- ", out)  # what it says of EGD is of another learning rate


def test_show_of_some_methods_shows_no_other(command) -> None:
    for more in ([], ["--sources"]):
        out = command("show", "addition-97", "-m", "egd", *more)[1]
        assert re.search(r"optim\.lr +0\.7", out)
        assert "row-norm" not in out.partition("Not shown")[0]
        assert "5392" not in out
    code, _, err = command("show", "addition-97", "-m", "edg")
    assert code == 2
    assert "did you mean 'egd'" in err


def test_run_says_what_a_change_of_the_optimizer_leaves_alone(command) -> None:
    small = (*SMALL, "-m", "egd,egd-after", "--seeds", "0", "--epochs", "1")
    out = command("run", "addition-97", *small, "--set", "optim.weight_decay=0.5")[1]
    assert "egd-after: the matrices of the hidden layer keep hidden.weight_decay = 0.03" in " ".join(out.split())
    assert out.count("keep hidden") == 1, "EGD's have no decay of their own"
    assert "keep hidden" not in command("run", "addition-97", *small, "--set", "hidden.weight_decay=0.5")[1]
    assert "keep hidden" not in command("run", "addition-97", *small, "--set", "optim.lr=0.5")[1]


def test_run_says_what_a_change_leaves_alone_in_a_module_of_its_own(command) -> None:
    small = ("grokking", *SMALL, "-m", "egd-both", "--seeds", "0", "--epochs", "1", "--set", "optim.lr=0.2")
    out = " ".join(command("run", *small)[1].split())
    assert "egd-both: the module output keeps groups.output.lr = 1; --set groups.output.lr=... changes it." in out
    assert "keep" not in command("run", *small, "--set", "groups.output.lr=2")[1]


MARKUP = """
extends = "addition-97"
only = ["egd"]
title = "[/] one"
about = "[/two]"
methods.egd.title = "[/three] [bold]"
claims.egd = { table = "four [/]", epochs = 9 }
"""


def test_brackets_are_letters_like_others(command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MARKUP)
    small = ("mine.toml", *SMALL, "--set", "epochs=2")
    for more in ((), ("--sources",)):
        code, out, _ = command("show", "mine.toml", *more)
        assert code == 0
        assert "[/] one" in out
    code, out, _ = command("grok", *small, "--runs", "a[/b]")
    assert code == 0
    assert "[/three] [bold]" in out
    code, out, _ = command("run", *small, "--runs", "a[/b]")
    assert code == 0
    assert "Stored in a[/b]." in out
    code, out, _ = command("report", "mine.toml", "--runs", "a[/b]", "--out", "c[/d]")
    assert code == 0
    assert "Open c[/d]/index.html" in out
    code, out, _ = command("check", "mine.toml", "--runs", "a[/b]")
    assert code == 0
    assert "four [/]" in command("show", "mine.toml")[1]


def test_run_takes_a_table_by_its_number(command) -> None:
    code, out, _ = command("run", "--table", "3", *SMALL, "-m", "egd", "--seeds", "0", "--epochs", "1")
    assert code == 0
    assert {f"multiplication-{modulus}" for modulus in (79, 97, 127)} == set(re.findall(r"multiplication-\d+", out))
    code, _, err = command("run", "--table", "9")
    assert code == 2
    assert "--table must be one of 1, 2, 3, 4, 5, 6, 7, 8, got '9'" in err


def test_list_counts_what_was_trained_and_names_a_users_own(command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "addition-97"\n')
    assert command("run", "mine.toml", *SMALL, "-m", "egd", "--seeds", "0,1", "--epochs", "1")[0] == 0
    barren = tmp_path / "runs/parity-2/egd/seed-0-0123456789ab"
    barren.mkdir(parents=True)
    (barren / "spec.json").write_text("{}")
    out = command("list")[1]
    assert re.search(r"your own *\n +mine +2 *\n", out)
    assert re.search(r"parity-2 .* min  +Sparse parity", out)  # nothing of it is stored


def test_grok_draws_what_is_stored_without_training(command, tmp_path: Path) -> None:
    arguments = ["grok", *SMALL, "--set", "epochs=3", "--methods", "egd", "--picture", "one.png"]
    assert command(*arguments)[0] == 0
    before = (tmp_path / "one.png").read_bytes()
    (tmp_path / "one.png").unlink()
    code, out, _ = command(*arguments)
    assert code == 0
    assert "addition-97 egd: 1 seed already stored" in out
    assert (tmp_path / "one.png").read_bytes() == before


def test_the_text_plot_has_letters_where_there_are_no_colours() -> None:
    curves = {"one": [(0, 0.0), (9, 0.0)], "two": [(0, 1.0), (9, 1.0)]}
    plot = text_plot(curves, {"one": "a", "two": "b"}, width=30, height=4, letters=True).plain.splitlines()
    assert set(plot[0][6:]) <= {"b", " "}
    assert set(plot[3][6:]) <= {"a", " "}
    assert all(len(line) <= 38 for line in plot)


def test_all_methods_means_all_for_changes_too(command) -> None:
    changed = catalog.load("addition-97", ["optim.lr=0.123"], ["all"])
    assert {method.optim.lr for method in changed.methods.values()} == {0.123}


def test_a_diverged_seed_is_named_each_time(command) -> None:
    arguments = ["grok", *SMALL, "--set", "optim.lr=1e30", "--set", "epochs=9", "--methods", "sgd"]
    for _ in range(2):
        out = command(*arguments)[1]
        assert "SGD diverged with seed 0: the loss is no longer a number." in out
        assert re.search(r"SGD +> 9 ", out)  # its whole budget: it never will
    assert "1 diverged" in command("run", "addition-97", *arguments[1:-2], "-m", "sgd", "--seeds", "0")[1]


def test_no_number_is_cropped_in_a_narrow_terminal(command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["grok", *SMALL, "--set", "epochs=2", "--methods", "egd", "--seeds", "0-2"]
    wide = command(*arguments)[1]
    row = next(line for line in wide.splitlines() if line.strip().startswith("EGD"))
    monkeypatch.setenv("COLUMNS", "40")
    narrow = command(*arguments)[1]
    assert all(cell in narrow.split() for cell in row.split()[1:])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = = 1", "task.file must run, got SyntaxError"),
        ("import sys; sys.exit(3)", "task.file must run, got SystemExit"),
        ("raise SpecError('no')", "task.file must run, got NameError"),
        (TASK.replace("return Data", "raise KeyError('lost') #"), "must train for one step, got KeyError: 'lost'"),
        (TASK.replace("self.size, 5", "self.size, 4"), "must train for one step, got RuntimeError"),
        (TASK.replace('"mine"', '"modular"'), "kind must be a name of its own, got 'modular'"),
    ],
)
def test_a_task_that_does_not_work_is_a_message(command, tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "task.py").write_text(code)
    (tmp_path / "own.toml").write_text(OWN)
    ended, _, err = command("run", "own.toml", "-m", "sgd", "--epochs", "1")
    assert ended == 2
    assert told in err
    assert not (tmp_path / "runs").exists()


def test_another_task_in_the_same_file_is_another_run(command, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    for code in (TASK, TASK + "# changed\n"):
        (tmp_path / "task.py").write_text(code)
        assert command("run", "own.toml", "-m", "sgd", "--seeds", "0", "--epochs", "1")[0] == 0
    assert len(list((tmp_path / "runs/own/sgd").iterdir())) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('extends = "addition-97"\nname = "../../escaped"', "name must be absent"),
        ('extends = "addition-97"\n[methods."a/b"]\ntitle = "x"\nepochs = 1', "methods must be letters, digits"),
        ('extends = "addition-97"\n[sources]\ntask = 3', "sources.task must be a text"),
        ('extends = "addition-97"\n[optim]\nlr = ' + "9" * 400, "optim.lr must be a finite number"),
        ('extends = "addition-97"\n[task]\noperation = "/"\nmodulus = 1000000000000000003', "modulus must be at most"),
        ('extends = "addition-97"\n[training]\nloss = "hinge"', "must train for one step"),
        ("\ufeffextends = 'addition-97'\n[task]\nmodulus = 1", "task.modulus must be >= 2"),
        ('extends = "x/../mine.toml"', "extends must not lead back to the same file"),
    ],
)
def test_a_strange_file_is_a_message(command, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    code, _, err = command("run", "mine.toml", "-m", "sgd", "--epochs", "1")
    assert code == 2
    assert told in err
    assert not (tmp_path / "runs").exists()


def test_brackets_and_dollars_in_names_are_letters(command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "addition-97"\ntitle = "a [/bold] $\\\\frac$ b"\n')
    assert "a [/bold] $\\frac$ b" in command("show", "mine.toml")[1]
    code, out, _ = command("grok", "mine.toml", *SMALL, "--set", "epochs=1", "-m", "egd", "--picture", "a[b].png")
    assert code == 0
    assert "Picture: a[b].png" in out
