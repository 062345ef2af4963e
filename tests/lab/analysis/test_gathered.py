"""All runs of a store: which count, which are variants, what cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_records import as_earlier, write_run

from egalitarian.lab.analysis import estimate, gather
from egalitarian.lab.config import SpecError
from egalitarian.lab.runs import Evidence, Store, pack


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_every_state_of_a_run(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1)
    write_run(store, "addition-97", "egd", 2, epochs=12)
    write_run(store, "addition-97", "egd", 3, epochs=12, diverged=True)
    runs = gather(store).of("addition-97", "egd")
    assert [(run.state, run.outcome.crossed, run.bound, run.outcome.epochs) for run in runs] == [
        ("passed", 30, 36, 36),
        ("not passed", None, 1000, 1000),
        ("unfinished", None, 12, 12),
        ("diverged", None, 1000, 12),
    ]
    assert runs[0].outcome.test_accuracy is not None
    assert runs[0].outcome.test_accuracy > 0.95
    found = estimate(runs)
    assert (found.n, found.passed, found.unfinished, found.diverged) == (4, 1, 1, 1)


def test_a_folder_without_a_trained_epoch_is_not_begun_and_no_run(store: Store) -> None:
    first = write_run(store, "addition-97", "egd", 0, epochs=0)
    second = write_run(store, "addition-97", "egd", 1, 20)
    for file in second.folder.iterdir():
        if file.name not in ("spec.json", "lock"):
            file.unlink()
    changed = write_run(store, "addition-97", "egd", 2, epochs=0, changes=["optim.lr=2.0"])
    found = gather(store)
    assert (found.runs, found.variants, found.warnings) == ((), (), ())
    folders = [stored.folder.relative_to(store.root).as_posix() for stored in (first, second, changed)]
    assert sorted(found.not_begun) == sorted(folders)
    assert all(folder in found.remarks[0] for folder in folders)


def test_runs_of_other_settings_are_listed_with_what_differs_and_count_nowhere(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 0, 8, changes=["optim.lr=2.0", "task.modulus=31"])
    found = gather(store)
    assert [run.outcome.crossed for run in found.runs] == [30]
    (variant,) = found.variants
    assert variant.outcome.crossed == 8
    assert variant.differs == "task.modulus = 31 (catalogue: 97), optim.lr = 2.0 (catalogue: 0.7)"


def test_an_older_version_is_a_variant(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 30))
    spec = {**stored.spec, "version": 0, "id": "000000000000"}
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    found = gather(store)
    assert not found.runs
    assert found.variants[0].differs == "version = 0 (catalogue: 2)"


def test_a_run_from_before_a_setting_that_it_has_at_its_default_counts(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 30))
    spec = stored.spec
    del spec["settings"]["transform"][0]["precision"]
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    assert [run.outcome.crossed for run in gather(store).runs] == [30]


def test_a_transform_that_was_edited_does_not_count(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd-rsvd-64", 0, 30))
    spec = stored.spec
    spec["settings"]["transform"][0]["rank"] = 63
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    (variant,) = gather(store).variants
    assert variant.differs == "transform.0.rank = 63 (catalogue: 64)"


def test_a_timing_that_divides_by_nothing_becomes_a_warning_and_the_other_runs_count(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 30))
    write_run(store, "addition-97", "egd", 1, 30)
    path = stored.folder / "timings.jsonl"
    path.write_text(path.read_text().replace('"seeds":4', '"seeds":0'))
    found = gather(store)
    assert [run.seed for run in found.runs] == [1]
    assert any("seed-0" in warning for warning in found.warnings), found.warnings


def test_a_spec_that_was_edited_does_not_count(store: Store) -> None:
    for seed, stored in enumerate([as_earlier, lambda stored: stored]):
        path = stored(write_run(store, "addition-97", "egd", seed, 30)).folder / "spec.json"
        path.write_text(path.read_text().replace('"lr": 0.7', '"lr": 0.9'))
    found = gather(store)
    assert not found.runs
    assert [(run.seed, run.differs) for run in found.variants] == [(0, "optim.lr = 0.9 (catalogue: 0.7)")]
    (warning,) = found.warnings
    assert "seed-1-" in warning
    assert "spec.json must hold" in warning


@pytest.mark.parametrize("file", ["timings.jsonl", "environment.jsonl"])
def test_times_and_environments_that_were_edited_are_a_warning(store: Store, file: str) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1, 30)
    path = stored.folder / file
    path.write_text(path.read_text().replace('"seeds":4', '"seeds":8'))
    found = gather(store)
    assert [run.seed for run in found.runs] == [1]
    assert f"{file} must hold" in found.warnings[0]


def test_runs_without_checksums_of_all_files_are_said(store: Store) -> None:
    as_earlier(write_run(store, "addition-97", "egd", 0, 30))
    write_run(store, "addition-97", "egd", 1, 30)
    expected = (
        "Without checksums of settings, environment and times, as earlier versions stored them: addition-97 egd (1)",
    )
    assert gather(store).remarks == expected
    pack(store, store.root / "packed")
    assert gather(Evidence(store.root / "packed")).remarks == expected


def test_a_copied_folder_does_not_count_twice(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    shutil.copytree(stored.folder, stored.folder.with_name(stored.folder.name + "-copy"))
    found = gather(store)
    assert len(found.runs) == 1
    assert "a copy" in found.variants[0].differs


def test_runs_of_an_unknown_experiment_are_listed(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    shutil.copytree(stored.folder, store.root / "mine" / "egd" / stored.folder.name)
    found = gather(store)
    assert [run.experiment for run in found.variants] == ["mine"]
    assert "name its .toml file" in found.variants[0].differs


def test_edited_records_become_a_warning_and_the_rest_is_read(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1, 40)
    path = stored.folder / "records.jsonl"
    path.write_text(path.read_text().replace('"epoch":7', '"epoch":8', 1))
    found = gather(store)
    assert [run.seed for run in found.runs] == [1]
    (warning,) = found.warnings
    assert warning.startswith(f"addition-97/egd/{stored.folder.name}/records.jsonl must hold")
    assert str(store.root) not in warning


@pytest.mark.parametrize("spoil", ["", "{}", "not json"])
def test_a_spoilt_spec_becomes_a_warning(store: Store, spoil: str) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1, 40)
    (stored.folder / "spec.json").write_text(spoil)
    found = gather(store)
    assert [run.seed for run in found.runs] == [1]
    assert len(found.warnings) == 1


def test_a_missing_spec_becomes_a_warning(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    (stored.folder / "spec.json").unlink()
    assert len(gather(store).warnings) == 1


def test_only_the_experiments_asked_for_are_read(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "parity-3", "egd", 0, 20)
    assert {run.experiment for run in gather(store, ["parity-3"]).runs} == {"parity-3"}
    with pytest.raises(SpecError, match="did you mean"):
        gather(store, ["parity-33"])


def test_a_users_experiment_is_read_by_its_path(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "addition-97"\ntitle = "Mine"\n[task]\nmodulus = 31\n')
    write_run(store, str(path), "egd", 0, 30)
    assert [run.outcome.crossed for run in gather(store, [str(path)]).of("mine", "egd")] == [30]


def test_an_empty_store_has_everything_and_nothing(store: Store) -> None:
    found = gather(store)
    assert len(found.experiments) > 9
    assert (found.runs, found.variants, found.warnings) == ((), (), ())
    assert len(found.curves) == 0
