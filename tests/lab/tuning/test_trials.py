"""Tuning small runs: the choice reads the validation split, nothing is trained twice, a stop loses nothing."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small import CPU, files, groks, records, small
from tuned_entries import CHANGES, HERE, METHODS, POINTS, tuned, without_time

from egalitarian.lab.config import Record, Run, SpecError, catalog
from egalitarian.lab.console.tuning import markdown
from egalitarian.lab.runs import Interrupted, Progress, Silent, Store
from egalitarian.lab.tuning.plan import Family, load_plan
from egalitarian.lab.tuning.points import Grid
from egalitarian.lab.tuning.results import Results, read_results
from egalitarian.lab.tuning.table import rows
from egalitarian.lab.tuning.trials import OutOfTime, PointMessages, Session, prepare, seconds_of_an_epoch, tune


@pytest.mark.parametrize("change", ["optim.lr=5", "methods.egd-sgd.optim.lr=5", "training.validation=0.2", "epochs=3"])
def test_a_change_of_a_tuned_setting_is_refused(change: str) -> None:
    with pytest.raises(SpecError, match=f"--set must not change what is tuned, got '{change}' for egd-sgd of addition"):
        prepare([Grid(load_plan()["addition"], "egd-sgd", [change])])


def test_every_method_is_tuned_and_measured(tmp_path: Path, family: Family) -> None:
    found = tuned(tmp_path, family)
    assert found["complete"]
    assert list(found["methods"]) == list(METHODS)
    for name, entry in found["methods"].items():
        assert entry["complete"]
        assert entry["searched"]
        assert len(entry["points"]) == POINTS + entry["beyond"]
        assert entry["beyond"] in (0, 3)
        (fresh,) = entry["fresh"].values()
        assert [one["seed"] for one in fresh] == [0, 1]
        assert all(one > 0 for one in entry["seconds"].get("parity-2", {}).get("seeds", ()))
        for point in entry["points"]:
            assert [one["seed"] for one in point["seeds"]] == [6, 7]
            assert all(one["epochs"] <= point["budget"] <= 9 for one in point["seeds"])
        best = entry["best"]
        chosen = next(point for point in entry["points"] if point["position"] == best["position"])
        surest = min(failures(point) for point in entry["points"])
        medians = [point["median"] for point in entry["points"] if failures(point) == surest]
        assert failures(chosen) == surest
        assert chosen["median"] == min(medians, key=lambda median: math.inf if median is None else median)
        loaded = catalog.load("parity-2", [*CHANGES, *best["changes"], f"methods.{name}.epochs=9"])
        for one in fresh:  # stored like any other run
            run = Run(loaded, name, one["seed"], "cpu")
            assert run.id == one["id"]
            stored = Store(tmp_path / "runs").find(run).records()
            assert all("validation_accuracy" not in record for record in stored)
            past = [r["epoch"] for r in stored if "snapshot" not in r and r["test_accuracy"] > 0.9]
            assert one["crossed"] == next(iter(past), None)


def failures(point: dict[str, Any]) -> int:
    return sum(seed["crossed"] is None for seed in point["seeds"])


def test_the_seconds_of_an_epoch_are_those_of_all_seeds_once_all_is_captured() -> None:
    slow = [{"epoch": epoch, "training": 9.0, "seeds": 4} for epoch in range(5)]
    steady = [{"epoch": epoch, "training": 0.4 + epoch % 2, "seeds": 4} for epoch in range(5, 14)]
    fewer = [{"epoch": epoch, "training": 7.0, "seeds": 1} for epoch in range(14, 99)]
    assert seconds_of_an_epoch([*slow, *steady, *fewer]) == 1.4 / 4
    assert seconds_of_an_epoch(slow) is None
    assert seconds_of_an_epoch([]) is None


def test_the_third_knob_changes_what_it_says(tmp_path: Path, family: Family) -> None:
    points = tuned(tmp_path, family, ["egd"])["methods"]["egd"]["points"]
    knobs = [point for point in points if point["position"][2]]
    assert [point["third"] for point in knobs] == ["momentum"]
    (knob,) = knobs
    best = min((p for p in points if p["position"][:2] == knob["position"][:2] and not p["position"][2]), key=failures)
    assert knob["lr"] == best["lr"] / 2
    changes = [*CHANGES, f"optim.lr={knob['lr']}", f"optim.weight_decay={knob['decay']}", "optim.momentum=0.5"]
    run = Run(catalog.load("parity-2", [*changes, "training.validation=0.5"], ["egd"]), "egd", 6, "cpu")
    assert run.id == knob["seeds"][0]["id"]


def test_fresh_seeds_wait_until_ours_is_named(tmp_path: Path, family: Family, trained: list[str]) -> None:
    two = family.replace(forms=("egd",))
    found = tuned(tmp_path, two)
    assert not found["complete"]
    assert {name: (entry["searched"], entry["fresh"]) for name, entry in found["methods"].items()} == {
        "egd": (True, {}),
        "sgd": (True, {}),
    }
    trained.clear()
    assert without_time(tuned(tmp_path, two)) == without_time(found)
    assert trained == [], "nothing is left to do"
    named = tuned(tmp_path, two.replace(ours="egd"))
    assert named["complete"]
    assert set(trained) == {one["id"] for each in named["methods"].values() for one in each["fresh"]["parity-2"]}
    assert without_time(named) == {**without_time(tuned(tmp_path / "at once", family)), "forms": ["egd"], "ours": "egd"}


def test_other_experiments_take_the_points_of_the_first(tmp_path: Path, family: Family) -> None:
    found = tuned(tmp_path, family.replace(also=("parity-3",)), changes=CHANGES)
    for name, entry in found["methods"].items():
        assert list(entry["fresh"]) == list(found["titles"]) == ["parity-2", "parity-3"]
        loaded = catalog.load("parity-3", [*CHANGES, *entry["best"]["changes"], f"methods.{name}.epochs=9"])
        assert [one["id"] for one in entry["fresh"]["parity-3"]] == [Run(loaded, name, seed, "cpu").id for seed in (0, 1)]


def test_seconds_outlive_the_machine_that_measured_them(tmp_path: Path, family: Family) -> None:
    """One experiment's fresh seeds on one machine, the other's on the next, which has the file but no runs."""
    two = family.replace(also=("parity-3",))
    tuned(tmp_path, two, ["sgd"])
    (path,) = (tmp_path / "results").glob("*.json")
    found = json.loads(path.read_text())
    entry = found["methods"]["sgd"]
    seconds = {"parity-2": {"hardware": "there", "seeds": [1.5, 2.5]}}
    entry |= {"complete": False, "fresh": {"parity-2": entry["fresh"]["parity-2"]}, "seconds": seconds}
    path.write_text(json.dumps(found))
    shutil.rmtree(tmp_path / "runs")
    resumed = tuned(tmp_path, two, ["sgd"])["methods"]["sgd"]
    assert resumed["complete"]
    assert resumed["seconds"]["parity-2"] == seconds["parity-2"]


def test_readings_are_those_of_the_search_and_of_the_fresh_seeds(tmp_path: Path, family: Family) -> None:
    """A budget is in passes over the data; with two readings in each, there are twice as many epochs."""
    never = (*CHANGES, "measure.threshold=1")
    found = tuned(tmp_path, family.replace(budget=2, readings=2, fresh_readings=4), ["sgd"], changes=never)
    (entry,) = found["methods"].values()
    assert max(seed["epochs"] for point in entry["points"] for seed in point["seeds"]) == 4
    assert max(seed["epochs"] for seed in entry["fresh"]["parity-2"]) == 8
    (row,) = rows(found, "parity-2")
    assert row.fresh == "> 2"


def test_the_choice_reads_the_validation_split_of_runs_that_train_until_it_passes(tmp_path: Path, family: Family) -> None:
    seeds = (6, 7, 8, 9)
    changes = (*CHANGES, "measure.past=0")  # so that a sweep ends a seed as soon as its test accuracy is past
    found = tuned(tmp_path, family.replace(lrs=4, patience=50.0, tuning_seeds=seeds), ["egd"], changes=changes)
    differs = 0
    for folder in (tmp_path / "runs" / "tuning").glob("*/*/seed-*"):
        spec = json.loads((folder / "spec.json").read_text())
        own = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        own = [record for record in own if "snapshot" not in record]
        (outcome,) = [
            one for point in found["methods"]["egd"]["points"] for one in point["seeds"] if one["id"] == spec["id"]
        ]
        passed = {
            kind: next((record["epoch"] for record in own if record[f"{kind}_accuracy"] > 0.9), None)
            for kind in ("validation", "test")
        }
        assert outcome["crossed"] == passed["validation"]
        assert passed["validation"] is not None or len(own) == 9
        differs += passed["validation"] != passed["test"]
    assert differs > 3


def test_a_second_time_nothing_is_trained(tmp_path: Path, family: Family, trained: list[str]) -> None:
    found = tuned(tmp_path, family)
    assert trained
    trained.clear()
    before = files(tmp_path / "runs")
    assert without_time(tuned(tmp_path, family)) == without_time(found)
    assert trained == []
    assert files(tmp_path / "runs") == before
    shutil.move(tmp_path / "results", tmp_path / "away")  # the runs alone
    assert without_time(tuned(tmp_path, family)) == without_time(found)
    assert trained == []
    shutil.rmtree(tmp_path / "runs")  # the file alone
    assert without_time(tuned(tmp_path, family)) == without_time(found)
    assert trained == []
    assert not (tmp_path / "runs").exists()


def test_a_method_that_never_passes_is_reported_so(tmp_path: Path, family: Family) -> None:
    found = tuned(tmp_path, family.replace(budget=2), changes=(*CHANGES, "measure.threshold=1"))
    assert found["complete"]
    for row in rows(found, "parity-2"):
        assert (row.inside, row.fresh, row.passed) == ("no point passes", "> 2", "0 of 2")
    assert "no point passes" in markdown([found])


class Signals(Silent):
    """Ctrl-C at an epoch's end, after so many epochs in all."""

    def __init__(self, epochs: int) -> None:
        self._left = epochs

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_leaves_a_file_that_is_marked_as_partial(tmp_path: Path, family: Family) -> None:
    with pytest.raises(Interrupted):
        tuned(tmp_path, family, listener=Signals(30))
    (path,) = (tmp_path / "results").glob("*.json")
    partial = read_results(path)
    assert not partial["complete"]
    entry = partial["methods"]["egd"]
    assert not entry["complete"]
    assert 0 < len(entry["points"]) < POINTS
    (row,) = rows(partial, "parity-2")
    assert (row.inside, row.fresh) == ("not yet known", "partial")
    assert "(partial)" in markdown([partial])
    spent = entry["spent"]
    assert list(spent) == ["a machine, 2026-11-15"]
    whole = tuned(tmp_path, family, environment={"hardware": "another", "when": "2026-11-16T01:00"})
    (own, _), *_ = [list(each["spent"].items()) for each in whole["methods"].values() if len(each["spent"]) == 2]
    assert own == ("a machine, 2026-11-15", spent["a machine, 2026-11-15"]), "the seconds of the other machine stay"
    assert "a machine, 2026-11-15: " in markdown([whole])
    assert "another, 2026-11-16: " in markdown([whole])
    known = tuned(tmp_path, family, environment={"hardware": "a third", "when": "2026-11-17"})
    assert {name: each["spent"] for name, each in known["methods"].items()} == {
        name: each["spent"] for name, each in whole["methods"].items()
    }, "nothing was trained on the third"
    unbroken = tuned(tmp_path / "unbroken", family, environment={"hardware": "another", "when": "2026-11-16T01:00"})
    assert without_time(whole) == without_time(unbroken)


def test_nothing_begins_after_the_deadline(tmp_path: Path, family: Family) -> None:
    with pytest.raises(OutOfTime):
        tuned(tmp_path, family, deadline=time.monotonic() - 1)
    assert not (tmp_path / "runs").exists()
    whole = tuned(tmp_path, family)
    assert whole["complete"]
    assert without_time(tuned(tmp_path, family, deadline=time.monotonic() - 1)) == without_time(whole)  # all of it is known


def test_a_message_for_each_point_and_each_epoch(tmp_path: Path, family: Family) -> None:
    shown: list[str] = []
    messages = PointMessages(shown.append)
    results = Results(tmp_path, family, catalog.load(family.experiment, CHANGES))
    session = Session(Store(tmp_path / "runs"), CPU, messages, report=messages.begin)
    tune(Grid(family, "egd", CHANGES), session, results, HERE)
    assert shown[0] == "point 1, coarse grid: lr 0.3, decay 0.001, up to 9 epochs"
    assert re.fullmatch(r"point 1, coarse grid: lr 0.3, decay 0.001, up to 9 epochs; epoch 0, accuracy \d+.\d%", shown[1])
    points = [text for text in shown if text.startswith("point ") and "; epoch" not in text]
    entry = results.methods["egd"]
    assert len(points) >= len(entry["points"])
    assert {"coarse grid", "basin 1", "third knob", "around the best"} <= {
        text.split(", ")[1].split(":")[0] for text in points
    }
    assert any(re.match(r"best lr \S+, decay \S+; now parity-2, 2 seeds; epoch 0", text) for text in shown)


def test_the_switch_off_reads_the_validation_split() -> None:
    experiment = catalog.load("addition-97-validation")
    assert experiment.training == catalog.load("addition-97").training.replace(validation=0.5)
    assert experiment.methods == catalog.load("addition-97").methods
    differs = 0
    for own in records(groks("training.validation=0.5"), "egd", [6, 7, 0, 1, 2, 3], 20):
        passed = {
            kind: next((record["epoch"] for record in own if record[f"{kind}_accuracy"] > 0.9), 20)
            for kind in ("validation", "test")
        }
        assert [record["active"] for record in own] == [record["epoch"] <= passed["validation"] for record in own]
        differs += passed["validation"] != passed["test"]
    assert differs >= 2


def test_the_experiment_with_a_validation_split_trains() -> None:
    (own,) = records(small("addition-97-validation"), "egd", [0], 2)
    assert all("validation_accuracy" in record for record in own)
