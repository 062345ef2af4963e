"""Commands that train: what they print and leave behind, what resumes, and what is refused before anything is stored."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compared import SMALL

from egalitarian.lab import config

TASK = """
from dataclasses import dataclass
import torch
from egalitarian.lab.problems import Data, Split, Task, stream

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


def test_run_with_evidence_names_commands_that_read_what_it_stored(command, tmp_path: Path) -> None:
    """The commands that it prints, as printed, give a report of the seeds of both."""
    small = ["run", "addition-97", *SMALL, "-m", "egd", "--epochs", "1", "--runs", "mine"]
    assert command(*small, "--seeds", "0")[0] == 0
    assert command("pack", "--all", "--runs", "mine", "--out", "packed")[0] == 0
    code, out, _ = command(*small, "--seeds", "0,1", "--have", "packed")
    assert code == 0
    assert "Stored in mine. `egalitarian pack --all --runs mine --out packed` adds them to the evidence, then" in out
    for words in re.findall("`egalitarian (.*?)`", out):
        assert command(*words.split())[0] == 0
    rows = (tmp_path / "report" / "summary.csv").read_text().splitlines()[1:]
    assert len(rows) == 2


def test_run_takes_a_table_by_its_number(command) -> None:
    code, out, _ = command("run", "--table", "3", *SMALL, "-m", "egd", "--seeds", "0", "--epochs", "1")
    assert code == 0
    assert {f"multiplication-{modulus}" for modulus in (79, 97, 127)} == set(re.findall(r"multiplication-\d+", out))
    code, _, err = command("run", "--table", "9")
    assert code == 2
    assert "--table must be one of 1, 2, 3, 4, 5, 6, 7, 8, got '9'" in err


def test_grok_draws_what_is_stored_without_training(command, tmp_path: Path) -> None:
    arguments = ["grok", *SMALL, "--set", "epochs=3", "--methods", "egd", "--picture", "one.png"]
    assert command(*arguments)[0] == 0
    before = (tmp_path / "one.png").read_bytes()
    (tmp_path / "one.png").unlink()
    code, out, _ = command(*arguments)
    assert code == 0
    assert "addition-97 egd: 1 seed already stored" in out
    assert (tmp_path / "one.png").read_bytes() == before


def test_all_methods_means_all_for_changes_too(command) -> None:
    changed = config.load("addition-97", ["optim.lr=0.123"], ["all"])
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
