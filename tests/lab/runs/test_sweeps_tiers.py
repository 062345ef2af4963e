"""Runs of another tier, or of version 1: never continued, and said to be there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_records import write_run
from small import CPU, files, run, small

from egalitarian.lab.config import Experiment, Run
from egalitarian.lab.console.cli import main
from egalitarian.lab.runs import Request, Silent, Stop, Store, stored_progress
from egalitarian.lab.runs.sweeps import sweep

STOP = Stop(0.95, 2, 1)
SEEDS = (0, 1)


class Notes(Silent):
    """Keeps what is said, and which epochs batches begin at."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.epochs: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begins(self, runs: Sequence[Any], stop: Stop) -> None:
        self.epochs.append(runs[0].next_epoch)


def trained(root: Path, experiment: Experiment, method: str = "egd", stop: Stop = STOP) -> Notes:
    notes = Notes()
    run(root, experiment, method, SEEDS, stop, listener=notes)
    return notes


def test_the_folder_and_the_spec_have_the_tier(tmp_path: Path) -> None:
    trained(tmp_path, small())
    for seed in SEEDS:
        stored = Store(tmp_path).find(Run(small(), "egd", seed, "cpu"))
        assert stored.folder.is_dir()
        assert stored.spec["settings"]["transform"] == [{"name": "polar", "precision": "exact"}]
        assert stored.environments[0]["polar"] == "exact"
    assert not Store(tmp_path).folder(Run(small(), "egd", 0, "cuda")).exists()


def test_auto_continues_the_run_of_its_tier(tmp_path: Path) -> None:
    trained(tmp_path, small("addition-97", "transform.0.precision=exact", methods=("egd",)))
    assert trained(tmp_path, small(), stop=Stop(0.95, 4, 1)).epochs == [2]


@pytest.mark.parametrize("method", ["egd", "egd-after", "egd-grokfast", "muon"])
def test_a_record_of_version_1_is_not_continued_and_stays_as_it_is(method: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        write_run(Store(tmp_path), small(), method, seed, epochs=1, old=True, device="cpu")
    before = files(tmp_path, leave_out=())
    first = trained(tmp_path, small(), method)
    assert first.notes == [
        f"addition-97 {method}: 2 older records exist, of version 1. Such records stay as they are and are not continued."
    ]
    assert first.epochs == [0]
    assert trained(tmp_path, small(), method, Stop(0.95, 3, 1)).notes == [], "they were said before"
    after = files(tmp_path, leave_out=())
    assert {name: after[name] for name in before} == before
    assert len({Path(name).parent for name in after}) == 4


def test_one_older_record_is_one(tmp_path: Path) -> None:
    write_run(Store(tmp_path), small(), "egd", 1, epochs=1, old=True)
    write_run(Store(tmp_path), small(), "egd", 0, epochs=0, old=True)  # not begun
    (note,) = trained(tmp_path, small()).notes
    assert note.startswith("addition-97 egd: 1 older record exists, of version 1.")


def test_a_method_without_a_polar_factor_continues_what_version_1_stored(tmp_path: Path) -> None:
    trained(tmp_path, small(), "sgd")
    specs = [json.loads(path.read_text()) for path in tmp_path.rglob("spec.json")]
    assert {spec["version"] for spec in specs} == {1}
    resumed = trained(tmp_path, small(), "sgd", Stop(0.95, 4, 1))
    assert (resumed.epochs, resumed.notes) == ([2], [])


def test_runs_of_another_tier_are_said_and_not_continued(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(Store(tmp_path), small(), "egd", seed, epochs=1, polar="fast")
    before = files(tmp_path, leave_out=())
    notes = trained(tmp_path, small())
    assert notes.notes == [
        "addition-97 egd: 2 seeds are stored with the fast polar factor. On this device it is the exact one, which makes "
        "other runs."
    ]
    assert notes.epochs == [0]
    after = files(tmp_path, leave_out=())
    assert {name: after[name] for name in before} == before


def test_progress_is_that_of_the_requests_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    write_run(Store(tmp_path), small(), "egd", 0, epochs=3, polar="fast")
    for device, epochs in (("cuda:1", 3), ("cpu", 0)):
        request = Request("", "egd", (0,), device, 1, tmp_path, preloaded=small())
        ((progress,),) = stored_progress([request])
        assert progress.next_epoch == epochs


def test_the_command_says_that_older_records_are_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["task.modulus=7", "model.width=16", "training.batch=8"]
    write_run(Store(tmp_path), "addition-97", "egd", 0, epochs=1, old=True, changes=changes)
    options = [word for change in changes for word in ("--set", change)]
    command = ["run", "addition-97", "-m", "egd", "--seeds", "0", "--device", "cpu", "--epochs", "2", *options]
    assert main([*command, "--runs", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 older record exists, of version 1. Such records stay as they are and are not continued." in said


def test_a_sweep_of_a_changed_tier_is_another_run(tmp_path: Path) -> None:
    changed = small("addition-97", "transform.0.precision=coarse", methods=("egd",))
    own = [sweep(each, "egd", [0], Store(tmp_path), CPU, stop=STOP)[0].run.id for each in (small(), changed)]
    assert len(set(own)) == 2
