"""Results files: never lost, never mixed, written by several processes, checked when they are read."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tuned_entries import CHANGES, HERE, METHODS, begun, results_in, tuned, without_time

from egalitarian.lab.config import SpecError, catalog
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.results import file_suffix, locked, read_results
from egalitarian.lab.tuning.table import all_results


def test_a_file_of_another_machine_stays_as_it_is_if_nothing_is_left_to_train(tmp_path: Path, family: Family) -> None:
    tuned(tmp_path, family)
    (path,) = (tmp_path / "results").glob("*.json")
    path.write_text(path.read_text().replace("a machine", "another machine"))
    before = path.read_text()
    shutil.rmtree(tmp_path / "runs")
    tuned(tmp_path, family)
    assert path.read_text() == before


def test_a_fuller_file_is_kept_unless_it_is_to_be_replaced(tmp_path: Path, family: Family) -> None:
    full = tuned(tmp_path, family, ["egd"])
    part = results_in(tmp_path / "results", family, changes=CHANGES)
    part.put("egd", {**full["methods"]["egd"], "complete": False, "fresh": {}})
    assert part.kept == ["egd"]
    assert without_time(read_results(part.path)) == without_time(full)
    both = tuned(tmp_path, family, ["sgd"])
    assert list(both["methods"]) == ["egd", "sgd"]
    alone = family.replace(methods={**family.methods, "egd": family.methods["egd"].replace(title="again")})
    again = tuned(tmp_path, alone, ["egd"], replace=True)
    assert again["methods"]["egd"]["title"] == "again"
    assert again["methods"]["sgd"] == both["methods"]["sgd"], "it was not asked for"


def test_an_entry_of_other_rules_is_refused(tmp_path: Path, family: Family) -> None:
    tuned(tmp_path, family, ["egd"])
    for other, message in (
        (family.replace(tuning_seeds=(6, 7, 8)), r"egd's tuning_seeds \[6, 7, 8\], got \[6, 7\]"),
        (family.replace(patience=5.0), r"egd's patience 5.0, got 2.0"),
    ):
        for asked in ("egd", "sgd"):  # nor may they share a table
            with pytest.raises(
                SpecError, match=rf"must have {message}; name another --out, or overwrite the entry with --replace"
            ):
                tuned(tmp_path, other, [asked])
    again = tuned(tmp_path, family.replace(tuning_seeds=(6, 7, 8)), ["egd"], replace=True)
    assert again["methods"]["egd"]["tuning_seeds"] == [6, 7, 8]


def test_nothing_of_a_comparison_changes_after_its_results(tmp_path: Path, family: Family) -> None:
    """Neither the baselines, nor the forms, nor ours, nor what the plan says of a method."""
    chosen = family.replace(forms=METHODS, ours="egd")
    assert tuned(tmp_path, chosen, ["egd"])["ours"] == "egd"
    axis = chosen.methods["egd"].lr.replace(first=0.2)
    for other, message in (
        (chosen.replace(stock=METHODS), r"must have stock \['egd', 'sgd'\], got \['sgd'\]"),
        (chosen.replace(forms=("egd",)), r"must have forms \['egd'\], got"),
        (chosen.replace(ours="sgd"), "must have ours 'sgd', got 'egd'"),
        (chosen.replace(methods={**chosen.methods, "egd": chosen.methods["egd"].replace(lr=axis)}), "must have egd's plan"),
        (
            chosen.replace(methods={**chosen.methods, "egd": chosen.methods["egd"].replace(third=())}),
            "must have egd's plan",
        ),
    ):
        with pytest.raises(SpecError, match=message):
            tuned(tmp_path, other, ["sgd"])


def test_a_file_of_another_experiment_or_format_is_not_touched(tmp_path: Path, family: Family) -> None:
    tuned(tmp_path, family, ["egd"])
    (path,) = (tmp_path / "results").glob("*.json")
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"must have changes .* with --replace"):
        tuned(tmp_path, family, changes=(*CHANGES, "task.bits=5"))
    path.write_text("{}")
    with pytest.raises(SpecError, match="must be as `egalitarian tune` wrote it, got KeyError"):
        tuned(tmp_path, family)
    path.write_bytes(before)
    assert tuned(tmp_path, family)["complete"]
    path.write_text('{"plain": "sgd"}')
    with pytest.raises(SpecError, match="it is of the search before this one, which moved a window; move it away"):
        tuned(tmp_path, family)


def test_changed_and_quick_results_have_files_of_their_own() -> None:
    assert file_suffix({"changes": [], "quick": False}) == ""
    assert file_suffix({"changes": [], "quick": True}) == "-quick"
    assert file_suffix({"changes": ["task.modulus=7"], "quick": True}) == "-changed-quick"


def test_a_file_of_another_threshold_is_refused(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd"))
    experiment = catalog.load(addition.experiment, added=addition.added)
    with pytest.raises(SpecError, match=r"must have threshold 0.5, got 0.95; .* with --replace --method sgd"):
        results_in(tmp_path, addition, measure=experiment.measure.replace(threshold=0.5))
    with pytest.raises(SpecError, match="must have sgd's budget 7, got 1500"):
        results_in(tmp_path, addition.replace(budget=7))


def test_a_file_of_the_same_name_and_another_task_is_refused(tmp_path: Path, addition: Family) -> None:
    """Whichever method is asked for: a table has one experiment."""
    own = tmp_path / "mine.toml"
    own.write_text('extends = "addition-97"\n')
    mine = addition.replace(experiment=str(own))
    results_in(tmp_path, mine).put("sgd", begun(mine, "sgd"))
    assert list(results_in(tmp_path, mine, "egd-sgd").methods) == ["sgd"]
    own.write_text('extends = "addition-97"\ntask.modulus = 101\n')
    for asked in ("sgd", "egd-sgd"):
        with pytest.raises(SpecError, match=r"must have sgd's runs at lr 0.004 and decay 1e-05, as the experiment is now"):
            results_in(tmp_path, mine, asked)


def test_entries_that_others_wrote_meanwhile_are_checked_too(tmp_path: Path, addition: Family) -> None:
    one, other = results_in(tmp_path, addition, "sgd"), results_in(tmp_path, addition.replace(patience=9.0), "egd-sgd")
    one.put("sgd", begun(addition, "sgd"))
    with pytest.raises(SpecError, match=r"sgd's patience 9.0, got 3.0"):
        other.put("egd-sgd", begun(addition.replace(patience=9.0), "egd-sgd"))


def test_an_entry_is_replaced_once_the_new_one_is_complete(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd", complete=True))
    results_in(tmp_path, addition).put("egd-sgd", begun(addition, "egd-sgd", complete=True))
    other = addition.replace(patience=9.0)
    with pytest.raises(SpecError, match="egd-sgd's patience"):
        results_in(tmp_path, other, "sgd", replace=True)  # it would share a table with EGD
    two = other.replace(methods={name: other.methods[name] for name in ("sgd", "egd-sgd")}, stock=("sgd",), forms=())
    replacing = results_in(tmp_path, two, replace=True)
    replacing.put("sgd", begun(other, "sgd"))
    assert replacing.kept == ["sgd"]
    assert read_results(replacing.path)["methods"]["sgd"]["rules"]["patience"] == addition.patience
    replacing.put("sgd", begun(other, "sgd", complete=True))
    found = read_results(replacing.path)
    assert {name: each["rules"]["patience"] for name, each in found["methods"].items()} == {
        "sgd": 9.0,
        "egd-sgd": addition.patience,
    }
    assert not found["complete"], "EGD is still to be replaced"


def test_a_plan_with_a_new_method_resumes_the_file(tmp_path: Path, addition: Family) -> None:
    first, second, *_ = addition.methods
    addition = addition.replace(stock=(first,), forms=())
    before = addition.replace(methods={name: each for name, each in addition.methods.items() if name != second})
    results_in(tmp_path, before).put(first, begun(before, first))
    now = results_in(tmp_path, addition, second)
    now.put(second, begun(addition, second))
    assert list(now.methods) == [first, second]


def test_a_new_title_keeps_the_environment_of_an_entry(tmp_path: Path, addition: Family) -> None:
    there = {**HERE, "hardware": "there"}
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd", title="then", environment=there))
    now = results_in(tmp_path, addition)
    now.put("sgd", begun(addition, "sgd", title="now"))
    assert now.methods["sgd"]["title"] == "now"
    assert now.methods["sgd"]["environment"]["hardware"] == "there"


@pytest.mark.parametrize(
    "damage",
    [
        {"spent": None},
        {"spent": {"here": "long"}},
        {"spent": {"here": -1.0}},
        {"spent": {"here": float("nan")}},
        {"rules": {}},
        {"searched": None},
        {"seconds": {"addition-97": [1.0]}},
        {"polar": None},
        {"inside": None},
        {"title": 7},
        {"fresh": {"addition-97": [{"seed": 0}]}},
        {"complete": True},
        {"points": [{"seeds": []}]},
        {"environment": 3},
        {"best": {"lr": "many"}},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_file_is_an_error(tmp_path: Path, addition: Family, damage: dict[str, Any]) -> None:
    results = results_in(tmp_path, addition)
    results.put("sgd", begun(addition, "sgd"))
    found = read_results(results.path)
    found["methods"]["sgd"] |= damage
    results.path.write_text(json.dumps(found))
    with pytest.raises(SpecError, match="must be as `egalitarian tune` wrote it"):
        results_in(tmp_path, addition)
    found, (message,) = all_results(tmp_path, "", ())
    assert found == []
    assert message.startswith("Left out of the table")


def test_seconds_are_counted_once_and_never_lost(tmp_path: Path, addition: Family) -> None:
    """Also where the file keeps a fuller entry, or replaces one by another."""
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


def test_a_method_without_points_is_not_written(tmp_path: Path, addition: Family) -> None:
    results = results_in(tmp_path, addition)
    results.put("sgd", begun(addition, "sgd", points=[], best=None))
    assert not results.path.exists()


def test_processes_that_tune_different_methods_share_a_file(tmp_path: Path, addition: Family) -> None:
    first, second = list(addition.methods)[:2]
    one, other = results_in(tmp_path, addition), results_in(tmp_path, addition)
    one.put(first, begun(addition, first))
    other.put(second, begun(addition, second))
    one.put(first, begun(addition, first, complete=True))
    found = read_results(one.path)["methods"]
    assert {name: each["complete"] for name, each in found.items()} == {first: True, second: False}


def test_a_locked_folder_waits_for_the_other(tmp_path: Path) -> None:
    folder, order = tmp_path / "new" / "folder", []

    def enter() -> None:
        with locked(folder):
            order.append("other")

    other = threading.Thread(target=enter)
    with locked(folder):
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "other"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = r"must be writable, got: .*; free some space, or name another folder with --out"
    with pytest.raises(SpecError, match=message), locked(tmp_path / "file" / "out"):
        pytest.fail("entered")
