"""From training to a report without the runs: what a machine that is gone leaves behind, through the command line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import files

from egalitarian.lab.analysis import check, in_words
from egalitarian.lab.report import to_csv, write_report
from egalitarian.lab.runs import Evidence, Source, Store, pack

TINY = """
extends = "parity-2"
title = "A tiny parity"
only = ["sgd", "egd", "egd-after"]
[task]
bits = 4
train_size = 32
test_size = 30
[model]
width = 16
[training]
batch = 8
[measure]
threshold = 0.9
spectra = "snapshots"
[optim]
lr = 0.05
"""


def egalitarian(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment.pop("EGALITARIAN_RUNS", None)
    command = [sys.executable, "-m", "egalitarian", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def ok(*arguments: str, folder: Path) -> str:
    done = egalitarian(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def found(source: Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Every file of a report, and what `check` finds."""
    monkeypatch.chdir(folder)
    shutil.rmtree("report", ignore_errors=True)
    report = write_report(source, Path("report"), ["tiny.toml"])
    assert report.complete
    checked = check(source, ["tiny.toml"])
    verdicts = to_csv([verdict.csv_row() for verdict in checked.verdicts])
    return {**files(Path("report")), "check": f"{verdicts}{in_words(checked.verdicts)}{checked.remarks}".encode()}


def test_a_trained_experiment_has_the_same_report_from_evidence(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With spectra and snapshots, and a run of full length."""
    ok("run", "tiny.toml", "--seeds", "0-2", "--epochs", "150", "--final", "--device", "cpu", folder=tiny)
    assert pack(Store(tiny / "runs"), tiny / "evidence").errors == []
    from_runs = found(Store(tiny / "runs"), tiny, monkeypatch)
    from_evidence = found(Evidence(tiny / "evidence"), tiny, monkeypatch)
    assert {"figures/tiny-spectra.svg", "figures/tiny-trajectories.png", "summary.csv"} <= set(from_runs)
    assert [name for name in from_runs | from_evidence if from_runs.get(name) != from_evidence.get(name)] == []


def budgets(folder: Path, egd: int, sgd: int) -> None:
    """Without a threshold to wait for. A budget is no part of a run's id."""
    text = TINY.replace("threshold = 0.9", "threshold = 1.0")
    (folder / "tiny.toml").write_text(f"{text}[methods.egd]\nepochs = {egd}\n[methods.sgd]\nepochs = {sgd}\n")


def epochs_in(source: Source) -> dict[str, set[int]]:
    """By method, the epochs that its seeds have."""
    found: dict[str, set[int]] = {}
    for run in source.each():
        found.setdefault(run.folder.parent.name, set()).add(len(run.epochs()))
    return found


def test_a_machine_that_is_gone_leaves_evidence_and_the_next_one_goes_on(tiny: Path) -> None:
    """Trained, stopped, packed, gone; then what was cut short is trained and packed again; then nothing is left."""
    run = ("run", "tiny.toml", "-m", "egd,sgd", "--seeds", "0-1", "--device", "cpu")
    budgets(tiny, egd=20, sgd=1_000_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "egalitarian", *run], cwd=tiny, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(tiny.glob("runs/tiny/sgd/*/records.jsonl")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    ok("pack", folder=tiny)
    shutil.rmtree(tiny / "runs")
    evidence = Evidence(tiny / "results" / "evidence")
    (before,) = epochs_in(evidence)["sgd"]
    assert epochs_in(evidence)["egd"] == {20}

    budgets(tiny, egd=20, sgd=before + 20)
    have = (*run, "--have", "results/evidence")
    printed = ok(*have, folder=tiny)
    assert re.search(r"tiny egd 0 of 2", printed)
    assert "tiny egd: 2 seeds complete in results/evidence" in printed
    assert "Stored in runs. `egalitarian pack` adds them to the evidence, then `egalitarian report --runs" in printed
    assert epochs_in(Store(tiny / "runs")) == {"sgd": {before + 20}}, "EGD is complete in the evidence"
    assert re.search(rf"tiny 4 0 2 [02] {2 * (before + 40)} ", ok("pack", folder=tiny))
    assert epochs_in(evidence) == {"egd": {20}, "sgd": {before + 20}}
    shutil.rmtree(tiny / "runs")

    ok(*have, "--jobs", "2", folder=tiny)
    printed = ok(*have, folder=tiny)
    assert "tiny sgd: 2 seeds complete in results/evidence" in printed
    assert "Nothing was trained: every seed is complete in results/evidence. `egalitarian report --runs" in printed
    assert "tored in" not in printed
    assert not (tiny / "runs").exists()
    printed = ok("check", "tiny.toml", folder=tiny)
    assert printed.startswith("Read: the evidence in results/evidence.")


def test_commands_say_what_they_read(tiny: Path) -> None:
    """Stored runs where there are some, or else the evidence; what is named is read, or it is an error."""
    run = ("run", "tiny.toml", "-m", "egd", "--seeds", "0", "--epochs", "2", "--device", "cpu")
    assert "--have must be a folder of evidence, got runs" in egalitarian(*run, "--have", "runs", folder=tiny).stderr
    ok(*run, folder=tiny)
    assert "--have must be a folder of evidence, got runs" in egalitarian(*run, "--have", "runs", folder=tiny).stderr
    ok("pack", folder=tiny)
    assert "Read: the stored runs in runs." in ok("check", "tiny.toml", folder=tiny)
    assert "Read: the evidence in results/evidence." in ok("report", "tiny.toml", "--runs", "results/evidence", folder=tiny)
    assert "--out must be a folder of evidence, got runs" in egalitarian("pack", "--out", "runs", folder=tiny).stderr
    shutil.rmtree(tiny / "runs")
    assert "Read: the evidence in results/evidence." in ok("report", "tiny.toml", folder=tiny)
    missing = egalitarian("check", "tiny.toml", "--runs", "runs", folder=tiny)
    assert missing.returncode == 2
    assert "--runs must be a folder of stored runs or of evidence, got runs" in missing.stderr
