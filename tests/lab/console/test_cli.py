"""The command line as a user meets it: every command, and never a traceback for a mistake."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from compared import SMALL

from egalitarian.lab import config


def test_list_and_show(command) -> None:
    code, out, _ = command("list")
    assert code == 0
    assert all(name in out for name in config.names())
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
    "several lines": (["run", "addition-97", "--set", "optim.lr=1\nx=2"], "--set optim.lr must be one value"),
    "digits": (["run", "addition-97", "--set", f"task.modulus={'9' * 5000}"], "--set task.modulus must have numbers of"),
    "overflow": (["run", "addition-97", "--set", "optim.lr=1e308"], "optim.lr must be at most 1e+30, got 1e+308"),
    "range": (["run", "addition-97", "--set", "optim.lr=-1"], "must be > 0, got -1"),
    "no value": (["run", "addition-97", "--set", "optim.lr"], "must be key=value"),
    "prime": (["run", "addition-97", "--set", "task.operation='/'", "--set", "task.modulus=9"], "prime"),
    "batch": (["run", "addition-97", "--set", "training.batch=100000", "-m", "egd"], "training.batch must be"),
    "passes": (["run", "addition-97", "--set", "training.passes=1000000000"], "training.passes must be >= 1 and <= 10000"),
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


def test_a_long_value_is_shown_by_its_ends(command) -> None:
    code, _, err = command("show", "addition-97", "--set", f"optim.lr=b{'a' * 5000}")
    assert code == 2
    assert len(err) < 2100
    assert err.startswith("egalitarian: addition-97: methods.sgd.optim.lr must be a finite number, got 'baaa")
    assert re.search(r"a \[\.\.\. 3\d\d\d characters \.\.\.\] a", err)
    assert err.endswith("a'; correct the value\n")


@pytest.mark.parametrize("arguments", [["gork"], ["run"], ["run", "addition-97", "--epochs", "0"], ["grok", "--sed", "1"]])
def test_mistakes_that_the_parser_finds(arguments: list[str], command) -> None:
    code, out, err = command(*arguments)
    assert code == 2
    assert "Traceback" not in out + err


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
    assert "Read c[/d]/README.md." in out
    code, out, _ = command("check", "mine.toml", "--runs", "a[/b]")
    assert code == 0
    assert "four [/]" in command("show", "mine.toml")[1]


def test_list_counts_what_was_trained_and_names_a_users_own(command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "addition-97"\n')
    assert command("run", "mine.toml", *SMALL, "-m", "egd", "--seeds", "0,1", "--epochs", "1")[0] == 0
    barren = tmp_path / "runs/parity-2/egd/seed-0-0123456789ab"
    barren.mkdir(parents=True)
    (barren / "spec.json").write_text("{}")
    out = command("list")[1]
    assert re.search(r"your own *\n +mine +2 *\n", out)
    assert re.search(r"parity-2 .* min  +Sparse parity", out)  # nothing of it is stored


def test_brackets_and_dollars_in_names_are_letters(command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "addition-97"\ntitle = "a [/bold] $\\\\frac$ b"\n')
    assert "a [/bold] $\\frac$ b" in command("show", "mine.toml")[1]
    code, out, _ = command("grok", "mine.toml", *SMALL, "--set", "epochs=1", "-m", "egd", "--picture", "a[b].png")
    assert code == 0
    assert "Picture: a[b].png" in out


INTERRUPTED = """
import os, runpy, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
sys.argv = ["egalitarian", "list"]
sys.addaudithook(interrupt)
{start}
"""
STARTS = {
    "python -m": 'runpy.run_module("egalitarian", run_name="__main__", alter_sys=True)',
    "console script": "from egalitarian.__main__ import main; sys.exit(main())",
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("module", ["torch", "torch.nn", "numpy.linalg", "egalitarian.lab.console.cli"])
def test_ctrl_c_while_modules_are_imported_ends_in_one_line(start: str, module: str) -> None:
    """The signal is real. NumPy turns a KeyboardInterrupt at this place into a RecursionError."""
    code = INTERRUPTED.format(module=module, start=STARTS[start])
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "Stopped.\n")


def test_the_import_of_the_package_alone_leaves_torch_out() -> None:
    """So that no Ctrl-C comes before the command can handle it."""
    code = "import sys, egalitarian, egalitarian.__main__; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_a_command_leaves_the_handler_of_ctrl_c_as_it_was(capfd) -> None:
    from egalitarian.__main__ import main

    before = signal.getsignal(signal.SIGINT)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


LATE = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
from egalitarian.__main__ import main
sys.exit(main(["list"]))
"""


def test_ctrl_c_while_python_ends_changes_nothing() -> None:
    """The signal is real, and comes while functions that run at the end are called."""
    process = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stderr) == (0, "")
    assert "addition-97" in process.stdout
