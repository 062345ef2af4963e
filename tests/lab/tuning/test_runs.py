"""Tuning as it is done: small runs, their files, what resuming trains, what a stop leaves, the command."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small import CPU, GROKS, PARITY, files, groks, records, small
from tuned_entries import HERE, begun

from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Run
from egalitarian.lab.console.cli import main
from egalitarian.lab.runs.progress import Interrupted, Listener, Progress, Silent
from egalitarian.lab.runs.store import Record, Store
from egalitarian.lab.tuning import trials as trial_module
from egalitarian.lab.tuning.files import all_results, apart, read_results
from egalitarian.lab.tuning.plan import Family, load_plan
from egalitarian.lab.tuning.results import Results
from egalitarian.lab.tuning.table import markdown, rows
from egalitarian.lab.tuning.trials import OutOfTime, Workshop
from egalitarian.lab.tuning.work import tune

CHANGES = (*PARITY, *GROKS[:-1], "measure.threshold=0.9", "measure.past=3", "epochs=9")
METHODS = ("egd", "sgd")


PLAN = """
[all]
size = 3
moves = 1
lr_factor = 3.0
decay_factor = 3.0
cut = 2.0
validation = 0.5
tuning_seeds = [6, 7]
fresh_seeds = [0, 1]

[families.tiny]
experiment = "parity-2"
plain = "sgd"
budget = 9

[families.tiny.methods.egd]
title = "EGD"
lr = { key = "optim.lr", centre = 0.1 }
decay = { key = "optim.weight_decay", centre = 1e-3 }
expected = 5
ms_per_epoch = 1.0

[families.tiny.methods.sgd]
title = "SGD"
lr = { key = "optim.lr", centre = 0.3 }
decay = { key = "optim.weight_decay", centre = 1e-3 }
expected = 9
ms_per_epoch = 1.0
"""


@pytest.fixture
def family(tmp_path: Path) -> Family:
    (tmp_path / "plan.toml").write_text(PLAN)
    return load_plan(tmp_path / "plan.toml")["tiny"]


def done(
    folder: Path,
    family: Family,
    methods: Sequence[str] = METHODS,
    listener: Listener | None = None,
    deadline: float | None = None,
    replace: bool = False,
    changes: Sequence[str] = CHANGES,
    environment: dict[str, Any] = HERE,
) -> dict[str, Any]:
    """The family tuned in a folder, as its file has it."""
    experiment = catalog.load(family.experiment, changes)
    results = Results(folder / "results", family, experiment, replace=replace, methods=tuple(methods))
    workshop = Workshop(Store(folder / "runs"), CPU, listener or Silent(), deadline)
    try:
        tune(family, methods, changes, workshop, results, environment)
    finally:
        found = read_results(results.path) if results.path.exists() else {}
    return found


def lasting(found: dict[str, Any]) -> dict[str, Any]:
    """Without the time it took."""
    return {**found, "methods": {name: {**entry, "spent": {}} for name, entry in found["methods"].items()}}


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is trained from now on."""
    begun: list[str] = []
    plain = trial_module.sweep

    class Notes(Silent):
        def begins(self, runs: Sequence[Progress], stop: Any) -> None:
            begun.extend(run.run.id for run in runs)

    monkeypatch.setattr(trial_module, "sweep", lambda *args, **more: plain(*args, **{**more, "listener": Notes()}))
    return begun


def test_every_method_is_tuned_and_measured(tmp_path: Path, family: Family) -> None:
    found = done(tmp_path, family)
    assert found["complete"]
    assert list(found["methods"]) == list(METHODS)
    for name, entry in found["methods"].items():
        assert entry["complete"]
        assert len(entry["points"]) in ((9,) if len(entry["windows"]) == 1 else (9 + 3, 9 + 5))
        assert [one["seed"] for one in entry["fresh"]] == [0, 1]
        for point in entry["points"]:
            assert [one["seed"] for one in point["seeds"]] == [6, 7]
            assert all(one["epochs"] <= point["budget"] <= 9 for one in point["seeds"])
        best = entry["best"]
        chosen = next(point for point in entry["points"] if point["place"] == best["place"])
        surest = min(failures(point) for point in entry["points"])
        medians = [point["median"] for point in entry["points"] if failures(point) == surest]
        assert failures(chosen) == surest
        assert chosen["median"] == min(medians, key=lambda median: math.inf if median is None else median)
        loaded = catalog.load("parity-2", [*CHANGES, *best["changes"]])
        for one in entry["fresh"]:  # a run like any other, stored where all are
            run = Run(loaded, name, one["seed"])
            assert run.id == one["id"]
            stored = Store(tmp_path / "runs").find(run).records()
            assert all("validation_accuracy" not in record for record in stored)
            past = [r["epoch"] for r in stored if "snapshot" not in r and r["test_accuracy"] > 0.9]
            assert one["crossed"] == next(iter(past), None)


def failures(point: dict[str, Any]) -> int:
    return sum(seed["crossed"] is None for seed in point["seeds"])


def test_what_was_trained_elsewhere_stays_so_where_nothing_is_left_to_train(tmp_path: Path, family: Family) -> None:
    done(tmp_path, family)
    (path,) = (tmp_path / "results").glob("*.json")
    path.write_text(path.read_text().replace("a machine", "another machine"))
    before = path.read_text()
    shutil.rmtree(tmp_path / "runs")
    done(tmp_path, family)
    assert path.read_text() == before


def test_without_moves_every_method_has_the_same_number_of_points(tmp_path: Path, family: Family) -> None:
    found = done(tmp_path, family.replace(moves=0, no_decay=True))
    assert [len(entry["points"]) for entry in found["methods"].values()] == [12, 12]
    assert [len({point["decay"] for point in entry["points"]}) for entry in found["methods"].values()] == [4, 4]


def test_the_choice_reads_the_validation_split_of_runs_that_go_on_until_it_is_known(tmp_path: Path, family: Family) -> None:
    seeds = (6, 7, 8, 9)
    changes = (*CHANGES, "measure.past=0")  # so that a sweep ends a seed as soon as its test accuracy is past
    found = done(tmp_path, family.replace(moves=0, cut=50.0, tuning_seeds=seeds), ["egd"], changes=changes)
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


def test_a_second_time_nothing_is_trained(tmp_path: Path, family: Family, untrained: list[str]) -> None:
    found = done(tmp_path, family)
    assert untrained
    untrained.clear()
    before = files(tmp_path / "runs")
    assert lasting(done(tmp_path, family)) == lasting(found)
    assert untrained == []
    assert files(tmp_path / "runs") == before
    shutil.move(tmp_path / "results", tmp_path / "away")  # the runs alone
    assert lasting(done(tmp_path, family)) == lasting(found)
    assert untrained == []
    shutil.rmtree(tmp_path / "runs")  # the file alone
    assert lasting(done(tmp_path, family)) == lasting(found)
    assert untrained == []
    assert not (tmp_path / "runs").exists()


def test_a_larger_window_trains_only_what_is_new(tmp_path: Path, family: Family, untrained: list[str]) -> None:
    done(tmp_path, family.replace(moves=0, cut=50.0), ["egd"])
    untrained.clear()
    found = done(tmp_path, family.replace(moves=0, cut=50.0, size=5), ["egd"])
    assert len(found["methods"]["egd"]["points"]) == 25
    fresh = {one["id"] for one in found["methods"]["egd"]["fresh"]}
    assert len(set(untrained) - fresh) == (25 - 9) * 2


def test_a_method_that_never_passes_is_reported_so(tmp_path: Path, family: Family) -> None:
    found = done(tmp_path, family.replace(budget=2, moves=0), changes=(*CHANGES, "measure.threshold=1", "epochs=2"))
    assert found["complete"]
    for row in rows(found):
        assert (row.inside, row.fresh, row.passed, row.gain) == ("no point passes", "> 2", "0 of 2", "–")
    assert "no point passes" in markdown([found])


class Signals(Silent):
    """Ctrl-C at an epoch's end, after so many epochs in all."""

    def __init__(self, epochs: int) -> None:
        self._left = epochs

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_leaves_a_file_that_says_it_is_partial(tmp_path: Path, family: Family) -> None:
    with pytest.raises(Interrupted):
        done(tmp_path, family, listener=Signals(30))
    (path,) = (tmp_path / "results").glob("*.json")
    partial = read_results(path)
    assert not partial["complete"]
    entry = partial["methods"]["egd"]
    assert not entry["complete"]
    assert 0 < len(entry["points"]) < 9
    (row,) = rows(partial)
    assert (row.inside, row.fresh) == ("not yet known", "partial")
    assert "(partial)" in markdown([partial])
    spent = entry["spent"]
    assert list(spent) == ["a machine, 2026-11-15"]
    whole = done(tmp_path, family, environment={"hardware": "another", "when": "2026-11-16T01:00"})
    (own, _), *_ = [list(each["spent"].items()) for each in whole["methods"].values() if len(each["spent"]) == 2]
    assert own == ("a machine, 2026-11-15", spent["a machine, 2026-11-15"]), "what went into it there stays theirs"
    assert "a machine, 2026-11-15: " in markdown([whole])
    assert "another, 2026-11-16: " in markdown([whole])
    known = done(tmp_path, family, environment={"hardware": "a third", "when": "2026-11-17"})
    assert {name: each["spent"] for name, each in known["methods"].items()} == {
        name: each["spent"] for name, each in whole["methods"].items()
    }, "nothing was trained there"
    unbroken = done(tmp_path / "unbroken", family, environment={"hardware": "another", "when": "2026-11-16T01:00"})
    assert lasting(whole) == lasting(unbroken)


def test_when_time_is_over_nothing_is_begun(tmp_path: Path, family: Family) -> None:
    with pytest.raises(OutOfTime):
        done(tmp_path, family, deadline=time.monotonic() - 1)
    assert not (tmp_path / "runs").exists()
    whole = done(tmp_path, family)
    assert whole["complete"]
    assert lasting(done(tmp_path, family, deadline=time.monotonic() - 1)) == lasting(whole)  # all of it is known


# the files


def test_a_fuller_file_is_kept_unless_it_is_to_be_replaced(tmp_path: Path, family: Family) -> None:
    full = done(tmp_path, family.replace(size=5), ["egd"])
    assert lasting(done(tmp_path, family.replace(moves=0), ["egd"])) == lasting(full)
    both = done(tmp_path, family, ["sgd"])
    assert list(both["methods"]) == ["egd", "sgd"]  # beside each other
    fewer = done(tmp_path, family.replace(moves=0), ["egd"], replace=True)
    assert len(fewer["methods"]["egd"]["points"]) == 9
    assert fewer["methods"]["sgd"] == both["methods"]["sgd"], "it was not asked for"


def test_a_search_that_goes_further_and_is_stopped_leaves_its_points_in_the_file(
    tmp_path: Path, family: Family, request: pytest.FixtureRequest
) -> None:
    """A whole method stays whole; with the runs gone, none of what was tried meanwhile is trained again."""
    whole = done(tmp_path, family.replace(moves=0), ["egd"])["methods"]["egd"]
    further = family.replace(size=5)

    class Enough(Silent):
        points = 0

        def begins(self, runs: Sequence[Progress], stop: Any) -> None:
            self.points += 1
            if self.points == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done(tmp_path, further, ["egd"], listener=Enough())
    stopped = read_results(next((tmp_path / "results").glob("*.json")))["methods"]["egd"]
    assert stopped["complete"]
    assert (stopped["best"], stopped["fresh"]) == (whole["best"], whole["fresh"])
    assert stopped["points"] == whole["points"]
    assert len(stopped["further"]) == 3
    shutil.rmtree(tmp_path / "runs")
    untrained = request.getfixturevalue("untrained")
    further_on = done(tmp_path, further, ["egd"])["methods"]["egd"]
    assert len(further_on["points"]) > len(whole["points"])
    assert "further" not in further_on
    assert untrained
    tried = [*stopped["points"], *stopped["further"]]
    assert not {seed["id"] for point in tried for seed in point["seeds"]} & set(untrained)


def test_a_method_tuned_by_other_rules_is_not_taken_for_one_of_now(tmp_path: Path, family: Family) -> None:
    done(tmp_path, family, ["egd"])
    for other, said in (
        (family.replace(tuning_seeds=(6, 7, 8)), r"egd's tuning_seeds \[6, 7, 8\], got \[6, 7\]"),
        (family.replace(cut=5.0), r"egd's cut 5.0, got 2.0"),
    ):
        for asked in ("egd", "sgd"):  # nor do they stand in one table
            with pytest.raises(
                SpecError, match=rf"must have {said}; name another --out, or overwrite the entry with --replace"
            ):
                done(tmp_path, other, [asked])
    again = done(tmp_path, family.replace(tuning_seeds=(6, 7, 8)), ["egd"], replace=True)
    assert again["methods"]["egd"]["tuning_seeds"] == [6, 7, 8]


def test_what_a_plan_says_of_the_family_is_what_the_file_says(tmp_path: Path, family: Family) -> None:
    assert done(tmp_path, family)["plain"] == family.plain
    other = next(method for method in METHODS if method != family.plain)
    assert done(tmp_path, family.replace(plain=other))["plain"] == other


def test_a_file_of_something_else_is_not_touched(tmp_path: Path, family: Family) -> None:
    done(tmp_path, family.replace(moves=0), ["egd"])
    (path,) = (tmp_path / "results").glob("*.json")
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"must have changes .* with --replace"):
        done(tmp_path, family, changes=(*CHANGES, "task.bits=5"))
    path.write_text("{}")
    with pytest.raises(SpecError, match="must be as `egalitarian tune` wrote it, got KeyError"):
        done(tmp_path, family)
    path.write_bytes(before)
    assert done(tmp_path, family)["complete"]


def test_what_is_changed_or_quick_has_files_of_its_own() -> None:
    assert apart({"changes": [], "quick": False}) == ""
    assert apart({"changes": [], "quick": True}) == "-quick"
    assert apart({"changes": ["task.modulus=7"], "quick": True}) == "-changed-quick"


def entry(crossed: list[int | None], train: float = 0.5, **more: Any) -> dict[str, Any]:
    fresh = [
        {"crossed": one, "epochs": 20, "diverged": False, "mean_train_accuracy": train, "seed": 0, "id": ""}
        for one in crossed
    ]
    best = {"lr": 0.5, "decay": 0.001, "budget": 20, "passes": True}
    rules = {"size": 5, "no_decay": False, "validation": 0.5, "lr_factor": 2.0, "decay_factor": 3.0}
    about = {
        "rules": rules,
        "tuning_seeds": [1],
        "fresh_seeds": [0],
        "environment": {"hardware": "H", "when": "2026-11-15"},
    }
    whole = {
        "title": "SGD",
        "complete": True,
        "best": best,
        "fresh": fresh,
        "points": [{"seeds": []}] * 30,
        "spent": {"H, 2026-11-15": 60.0},
    }
    return {**whole, "windows": [{}, {}], "inside": True, **about, **more}


def table(score: str, plain: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    about = {"family": "f", "experiment": "e", "title": "T", "plain": "sgd", "score": score, "threshold": 0.95}
    return {**about, "changes": [], "quick": False, "complete": True, "methods": {"sgd": plain, **others}}


def test_the_table_has_settings_counts_and_gains() -> None:
    slow, fast = entry([99, 299, 199]), entry([9, 29, 19], title="EGD", inside=False)
    failed = entry([None, None, 7], title="other")
    found = [tuple(row) for row in rows(table("epochs", slow, egd=fast, other=failed))]
    assert found == [
        ("SGD", "0.5", "0.001", "30, 1 move", "yes", "199 (99–299)", "3 of 3", "1.0×"),
        ("EGD", "0.5", "0.001", "30, 1 move", "no, on the edge", "19 (9–29)", "3 of 3", "10.0×"),
        ("other", "0.5", "0.001", "30, 1 move", "yes", "> 20 (7 to > 20)", "1 of 3", "< 10.0×"),
    ]
    at_once = entry([0, 0, 0])
    assert [row.gain for row in rows(table("epochs", slow, egd=at_once))] == ["1.0×", "200.0×"], (
        "epoch 0 is one epoch's work"
    )
    assert [row.gain for row in rows(table("epochs", failed, egd=fast))] == ["–", "–"], "a plain optimizer that fails"
    better = entry([None], 0.75, title="EGD")
    assert [row.gain for row in rows(table("train-accuracy", entry([None]), egd=better))] == ["+0.0 points", "+25.0 points"]
    text = markdown([table("train-accuracy", entry([None]), egd=better)])
    assert "| EGD | 0.5 | 0.001 | 30, 1 move | yes | 75.0 % (75.0–75.0) | – | +25.0 points |" in text
    assert "`e`, 5 x 5 windows, steps of 2 in lr and 3 in decay" in text


# the command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("EGALITARIAN_RUNS", raising=False)
    (tmp_path / "plan.toml").write_text(PLAN)
    smaller = [part for change in CHANGES for part in ("--set", change)]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["tune", *arguments, "--plan", "plan.toml", *smaller, "--device", "cpu"])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_the_command_tunes_shows_and_writes(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    code, out, _ = command("all", "--method", "egd", "--size", "3", "--out", "elsewhere", "--minutes", "0")
    assert code == 1
    assert "The --minutes are over" in out
    assert command("tiny", "--quick", "--method", "egd")[0] == 0


def test_the_command_tells_of_mistakes_before_it_trains(command, tmp_path: Path) -> None:
    for arguments, message in (
        (["tyni"], "FAMILY must be one of the plan's, got 'tyni'; did you mean 'tiny'?"),
        (["tiny", "--method", "edg"], "--method must be one that family 'tiny' tunes, got 'edg'"),
        (["tiny", "--size", "4"], "size must be odd, got 4"),
        (["tiny", "--set", "optim.rl=3"], "rl must be a known setting"),
    ):
        code, _, err = command(*arguments)
        assert code == 2
        assert message in err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "tuned").exists()


def test_the_command_says_what_it_would_cost(command, tmp_path: Path) -> None:
    code, out, _ = command("all", "--estimate")
    assert code == 0
    assert "tiny" in out
    assert not (tmp_path / "runs").exists()


# the switch-off


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


@pytest.fixture
def addition() -> Family:
    return load_plan()["addition"]


def results_in(folder: Path, family: Family, *methods: str, replace: bool = False, **changed: Any) -> Results:
    experiment = catalog.load(family.experiment, added=family.added).replace(**changed)
    return Results(folder, family, experiment, replace=replace, methods=methods)


def test_a_file_of_another_threshold_or_budget_is_refused(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd"))
    experiment = catalog.load(addition.experiment, added=addition.added)
    longer = {name: each.replace(epochs=7) for name, each in experiment.methods.items()}
    with pytest.raises(SpecError, match=r"must have threshold 0.5, got 0.95; .* with --replace --method sgd"):
        results_in(tmp_path, addition, measure=experiment.measure.replace(threshold=0.5))
    with pytest.raises(SpecError, match=r"must have sgd's epochs 7, got 14000"):
        results_in(tmp_path, addition, methods=longer)


def test_a_file_of_the_same_name_and_another_task_is_refused(tmp_path: Path, addition: Family) -> None:
    """Whichever method is asked for: a table has one experiment."""
    own = tmp_path / "mine.toml"
    own.write_text('extends = "addition-97"\n')
    mine = addition.replace(experiment=str(own))
    results_in(tmp_path, mine).put("sgd", begun(mine, "sgd"))
    assert list(results_in(tmp_path, mine, "egd").methods) == ["sgd"]
    own.write_text('extends = "addition-97"\ntask.modulus = 101\n')
    for asked in ("sgd", "egd"):
        with pytest.raises(SpecError, match=r"must have sgd's runs at lr 8 and decay 0.001, as the experiment is now"):
            results_in(tmp_path, mine, asked)


def test_what_others_wrote_meanwhile_is_looked_at_too(tmp_path: Path, addition: Family) -> None:
    one, other = results_in(tmp_path, addition, "sgd"), results_in(tmp_path, addition.replace(cut=9.0), "egd")
    one.put("sgd", begun(addition, "sgd"))
    with pytest.raises(SpecError, match=r"sgd's cut 9.0, got 2.0"):
        other.put("egd", begun(addition.replace(cut=9.0), "egd"))


def test_replacing_destroys_nothing_before_it_is_whole(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd", complete=True))
    results_in(tmp_path, addition).put("egd", begun(addition, "egd", complete=True))
    other = addition.replace(cut=9.0)
    with pytest.raises(SpecError, match="egd's cut"):
        results_in(tmp_path, other, "sgd", replace=True)  # it would stand beside
    two = other.replace(methods={name: other.methods[name] for name in ("sgd", "egd")})
    replacing = results_in(tmp_path, two, replace=True)
    replacing.put("sgd", begun(other, "sgd"))
    assert replacing.kept == ["sgd"]
    assert read_results(replacing.path)["methods"]["sgd"]["rules"]["cut"] == addition.cut
    replacing.put("sgd", begun(other, "sgd", complete=True))
    found = read_results(replacing.path)
    assert {name: each["rules"]["cut"] for name, each in found["methods"].items()} == {"sgd": 9.0, "egd": addition.cut}
    assert not found["complete"], "EGD's turn is yet to come"


def test_a_plan_that_has_got_a_method_goes_on_with_the_file(tmp_path: Path, addition: Family) -> None:
    first, second, *_ = addition.methods
    before = addition.replace(methods={first: addition.methods[first]}, plain=first)
    results_in(tmp_path, before).put(first, begun(before, first))
    now = results_in(tmp_path, addition, second)
    now.put(second, begun(addition, second))
    assert list(now.methods) == [first, second]


def test_a_new_title_does_not_move_where_and_when_a_method_was_tuned(tmp_path: Path, addition: Family) -> None:
    there = {**HERE, "hardware": "there"}
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd", title="then", environment=there))
    now = results_in(tmp_path, addition)
    now.put("sgd", begun(addition, "sgd", title="now"))
    assert now.methods["sgd"]["title"] == "now"
    assert now.methods["sgd"]["environment"]["hardware"] == "there"


def test_more_moves_that_nothing_needs_do_not_move_where_and_when_a_method_was_tuned(
    tmp_path: Path, addition: Family
) -> None:
    there = {**HERE, "hardware": "there"}
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd", environment=there))
    further = addition.replace(moves=addition.moves + 2)
    now = results_in(tmp_path, further)
    now.put("sgd", begun(further, "sgd"))
    assert now.methods["sgd"]["rules"]["moves"] == further.moves
    assert now.methods["sgd"]["environment"]["hardware"] == "there"


@pytest.mark.parametrize(
    "damage",
    [
        {"spent": None},
        {"spent": {"here": "long"}},
        {"spent": {"here": -1.0}},
        {"spent": {"here": float("nan")}},
        {"rules": {}},
        {"windows": None},
        {"inside": None},
        {"further": 3},
        {"title": 7},
        {"fresh": [{"seed": 0}]},
        {"complete": True},
        {"points": [{"seeds": []}]},
        {"environment": 3},
        {"best": {"lr": "many"}},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_file_is_told_of(tmp_path: Path, addition: Family, damage: dict[str, Any]) -> None:
    results = results_in(tmp_path, addition)
    results.put("sgd", begun(addition, "sgd"))
    found = read_results(results.path)
    found["methods"]["sgd"] |= damage
    results.path.write_text(json.dumps(found))
    with pytest.raises(SpecError, match="must be as `egalitarian tune` wrote it"):
        results_in(tmp_path, addition)
    told: list[str] = []
    assert all_results(tmp_path, "", (), told.append) == []
    assert "Left out of the table" in told[0]


def test_seconds_are_booked_once_and_never_lost(tmp_path: Path, addition: Family) -> None:
    """Whatever becomes of what they found: the file may keep a fuller entry, or replace one by another."""
    there = {**HERE, "hardware": "there"}
    results = results_in(tmp_path, addition)
    results.put("sgd", begun(addition, "sgd", complete=True), 5.0)
    results.put("sgd", begun(addition, "sgd", complete=True), 7.0)
    assert read_results(results.path)["methods"]["sgd"]["spent"] == {"a machine, 2026-11-15": 7.0}
    other = results_in(tmp_path, addition)
    other.put("sgd", begun(addition, "sgd", environment=there), 3.0)
    assert other.kept == ["sgd"]
    assert read_results(results.path)["methods"]["sgd"]["environment"] == HERE
    both = {"a machine, 2026-11-15": 7.0, "there, 2026-11-15": 3.0}
    assert read_results(results.path)["methods"]["sgd"]["spent"] == both
    again = results_in(tmp_path, addition, "sgd", replace=True)
    again.put("sgd", begun(addition, "sgd"), 1.0)
    again.put("sgd", begun(addition, "sgd", complete=True), 4.0)
    assert read_results(results.path)["methods"]["sgd"]["spent"] == {**both, "a machine, 2026-11-15": 11.0}


def test_nothing_is_written_of_a_method_that_was_not_begun(tmp_path: Path, addition: Family) -> None:
    results = results_in(tmp_path, addition)
    results.put("sgd", begun(addition, "sgd", points=[], best=None))
    assert not results.path.exists()


def test_processes_at_different_methods_share_a_file(tmp_path: Path, addition: Family) -> None:
    first, second = list(addition.methods)[:2]
    one, other = results_in(tmp_path, addition), results_in(tmp_path, addition)
    one.put(first, begun(addition, first))
    other.put(second, begun(addition, second))
    one.put(first, begun(addition, first, complete=True))
    found = read_results(one.path)["methods"]
    assert {name: each["complete"] for name, each in found.items()} == {first: True, second: False}
