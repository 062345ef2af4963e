"""From records to numbers: crossings, censoring, medians, what counts and what is only listed."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from report_records import write_run

from egalitarian.lab.analysis.counts import Count, mean, ratio
from egalitarian.lab.analysis.gather import Summary, gather
from egalitarian.lab.analysis.reading import PER_DECADE, is_kept
from egalitarian.lab.analysis.rows import cost_of, seconds_of
from egalitarian.lab.analysis.statistics import estimate, median_and_range
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.runs.store import Store


def a_seed(crossed: int | None, bound: int = 1000, state: str = "") -> Summary:
    said = state or ("passed" if crossed is not None else "not passed")
    return Summary("addition-97", "egd", 0, "id", said, crossed, bound, bound, None, None, None, None)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.mark.parametrize(
    ("crossings", "median", "low", "high"),
    [
        ([30], "30", "30", "30"),
        ([10, 40, 20], "20", "10", "40"),
        ([10, 40, 20, 30], "25", "10", "40"),
        ([10, 20, None], "20", "10", "> 1000"),
        ([10, None, None], "> 1000", "10", "> 1000"),
        ([10, 20, None, None], "> 1000", "10", "> 1000"),
        ([10, 20, 30, None], "25", "10", "> 1000"),
        ([None, None], "> 1000", "> 1000", "> 1000"),
    ],
)
def test_a_seed_that_does_not_pass_counts_as_more_than_its_budget(
    crossings: list[int | None], median: str, low: str, high: str
) -> None:
    found = estimate([a_seed(crossed) for crossed in crossings])
    assert (str(found.median), str(found.low), str(found.high)) == (median, low, high)
    assert (found.n, found.passed) == (len(crossings), sum(crossed is not None for crossed in crossings))


def test_quartiles_lie_between_neighbours_and_turn_into_bounds() -> None:
    found = estimate([a_seed(crossed) for crossed in (10, 20, 30, 40, None)])
    assert (found.lower_quartile, found.upper_quartile) == (Count(20), Count(40))
    assert estimate([a_seed(crossed) for crossed in (10, 20, 30, None, None)]).upper_quartile == Count(1000, ">")


def test_a_bound_is_the_smallest_of_those_not_passed_and_the_largest_of_all_for_the_maximum() -> None:
    found = estimate([a_seed(7000), a_seed(None, 400), a_seed(None, 900)])
    assert (str(found.median), str(found.low), str(found.high)) == ("> 400", "> 400", "> 7000")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([], "not run"),
        ([(30, 36)], "30"),
        ([(None, 500)], "> 500"),
        ([(10, 16), (40, 46), (20, 26)], "20 (10–40)"),
        ([(10, 16), (20, 26), (None, 1000)], "20 (10 to > 1000)"),
        ([(10, 16), (20, 26), (None, 1000), (None, 1200)], "> 1000 (10 to > 1200)"),
        ([(None, 400), (None, 900)], "> 400 (> 400 to > 900)"),
    ],
)
def test_median_and_range_for_any_room(seeds: list[tuple[int | None, int]], words: str) -> None:
    assert median_and_range(seeds) == words


def test_counting_seeds_needs_no_pandas() -> None:
    code = "import sys, egalitarian.lab.analysis.statistics; print('pandas' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_nothing_run_has_no_median() -> None:
    assert str(estimate([])) == "not run"


def test_unfinished_seeds_are_marked_and_their_bound_settles_nothing() -> None:
    found = estimate([a_seed(10), a_seed(None, 6, "unfinished"), a_seed(None, 6, "unfinished")])
    assert str(found) == "> 6 (> 6 to > 10), unfinished"
    assert found.settled is None
    assert estimate([a_seed(10), a_seed(12), a_seed(None, 12, "unfinished")]).settled == Count(12)
    assert estimate([a_seed(10), a_seed(12), a_seed(None, 6, "unfinished")]).settled is None, "it may pass before both"


def test_a_median_that_a_seed_with_a_small_bound_might_move_is_a_bound() -> None:
    early = [(10, 15), (100, 105), (100, 105), (None, 5), (None, 5)]
    assert median_and_range(early) == "> 10 (> 5 to > 100)"
    assert median_and_range([(10, 15), (100, 105), (100, 105), (None, 200), (None, 200)]) == "100 (10 to > 200)"


def test_large_counts_lose_no_digit_for_machines() -> None:
    assert [Count(value).plain for value in (100000.5, 1234567, 65000.5, 51.49557)] == [
        "100000.5",
        "1234567",
        "65000.5",
        "51.4956",
    ]


def test_ratios_of_bounds_are_bounds() -> None:
    assert ratio(Count(100), Count(20)) == Count(5)
    assert ratio(Count(100, ">"), Count(20)) == Count(5, ">")
    assert ratio(Count(100), Count(20, ">")) == Count(5, "<")
    assert ratio(Count(100, ">"), Count(20, ">")) is None
    assert ratio(Count(100), Count(0)) is None
    assert ratio(Count(0), Count(20)) == Count(0)
    assert ratio(Count(0), Count(20, ">")) is None, "nothing is less than no epochs"
    assert ratio(Count(0, ">"), Count(20)) is None
    assert ratio(None, Count(1)) is None


def test_a_mean_of_bounds_both_ways_says_nothing() -> None:
    assert mean([Count(1), Count(3)]) == Count(2)
    assert mean([Count(1), Count(3, ">")]) == Count(2, ">")
    assert mean([Count(1, "<"), Count(3, ">")]) is None
    assert mean([]) is None


def test_every_state_of_a_run(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1)
    write_run(store, "addition-97", "egd", 2, epochs=12)
    write_run(store, "addition-97", "egd", 3, epochs=12, diverged=True)
    runs = gather(store).of("addition-97", "egd")
    assert [(run.state, run.crossed, run.bound, run.epochs) for run in runs] == [
        ("passed", 30, 36, 36),
        ("not passed", None, 1000, 1000),
        ("unfinished", None, 12, 12),
        ("diverged", None, 1000, 12),
    ]
    assert runs[0].test_accuracy is not None
    assert runs[0].test_accuracy > 0.95
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
    assert [run.crossed for run in found.runs] == [30]
    (variant,) = found.variants
    assert variant.crossed == 8
    assert variant.differs == "task.modulus = 31 (catalogue: 97), optim.lr = 2.0 (catalogue: 0.7)"


def test_an_older_version_is_a_variant(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    spec = {**stored.spec, "version": 0, "id": "000000000000"}
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    found = gather(store)
    assert not found.runs
    assert found.variants[0].differs == "version = 0 (catalogue: 1)"


def test_a_run_from_before_a_setting_that_it_has_at_its_default_counts(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    spec = stored.spec
    del spec["settings"]["transform"][0]["precision"]
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    assert [run.crossed for run in gather(store).runs] == [30]


def test_a_transform_that_was_edited_does_not_count(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd-rsvd-64", 0, 30)
    spec = stored.spec
    spec["settings"]["transform"][0]["rank"] = 63
    (stored.folder / "spec.json").write_text(json.dumps(spec))
    (variant,) = gather(store).variants
    assert variant.differs == "transform.0.rank = 63 (catalogue: 64)"


def test_how_the_polar_factor_was_taken_is_read_over_all_sittings(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 29, polar="exact")
    with (stored.folder / "environment.jsonl").open("a") as file:
        file.write(json.dumps({**stored.environments[0], "polar": "fast", "epoch": 30}) + "\n")
    write_run(store, "addition-97", "egd", 1, 29)
    first, second = gather(store).runs
    assert first.platform is not None
    assert second.platform is not None
    assert (first.platform.polar, second.platform.polar) == ("exact, fast", "")


def test_a_timing_that_divides_by_nothing_is_told_and_the_other_runs_count(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    write_run(store, "addition-97", "egd", 1, 30)
    path = stored.folder / "timings.jsonl"
    path.write_text(path.read_text().replace('"seeds":4', '"seeds":0'))
    found = gather(store)
    assert [run.seed for run in found.runs] == [1]
    assert any("seed-0" in warning for warning in found.warnings), found.warnings


def test_a_spec_that_was_edited_does_not_count(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 30)
    path = stored.folder / "spec.json"
    path.write_text(path.read_text().replace('"lr": 0.7', '"lr": 0.9'))
    found = gather(store)
    assert not found.runs
    assert found.variants[0].differs == "optim.lr = 0.9 (catalogue: 0.7)"


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
    assert [run.crossed for run in gather(store, [str(path)]).of("mine", "egd")] == [30]


def test_an_empty_store_has_everything_and_nothing(store: Store) -> None:
    found = gather(store)
    assert len(found.experiments) > 9
    assert (found.runs, found.variants, found.warnings) == ((), (), ())
    assert len(found.curves) == 0


def test_times_are_one_seeds_share_without_measuring(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 29, ms=3.0, together=4)
    runs = gather(store).of("addition-97", "egd")
    assert runs[0].platform is not None
    assert runs[0].platform.ms_per_epoch == pytest.approx(3.0, rel=0.05)
    assert runs[0].platform.measuring_ms_per_epoch == pytest.approx(1.5, rel=0.05)
    cost = cost_of(runs)
    assert cost is not None
    assert cost.place == "NVIDIA H200, 4 seeds side by side"
    seconds = seconds_of(estimate(runs), cost)
    assert seconds is not None
    assert seconds.value == pytest.approx(30 * cost.ms_per_epoch / 1000)


def test_times_of_a_run_in_two_sittings_are_those_of_the_longer(store: Store) -> None:
    stored = write_run(store, "addition-97", "egd", 0, 29, ms=3.0)
    about = stored.environments[0]
    later = {**about, "hardware": "a slow one", "device": "cpu", "threads": 2, "epoch": 30, "seeds": 1}
    with (stored.folder / "environment.jsonl").open("a") as file:
        file.write(json.dumps(later) + "\n")
    (run,) = gather(store).runs
    assert run.platform is not None
    assert run.platform.hardware == "NVIDIA H200"


def test_kept_epochs_are_dense_first_and_then_even_in_the_logarithm() -> None:
    kept = [epoch for epoch in range(20000) if is_kept(epoch)]
    assert kept[:20] == list(range(20))
    assert len(kept) <= 400
    steps = [math.log10((after + 1) / (before + 1)) for before, after in zip(kept[-50:], kept[-49:], strict=False)]
    assert max(steps) == pytest.approx(1 / PER_DECADE, rel=0.05)


def test_curves_keep_the_last_epoch_and_snapshots_stay_whole(store: Store) -> None:
    write_run(store, "addition-97", "egd", 3, 120)
    found = gather(store)
    assert found.curves.epoch.max() == 125
    assert set(found.curves.seed) == {3}
    snapshots = found.snapshots("addition-97", "egd")
    assert list(snapshots.epoch[:6]) == [0, 1, 2, 3, 4, 5]
    assert snapshots.singular_values[0].shape == (24,)
    assert snapshots.displacement[0].shape == (1024,)
    assert len(found.snapshots("addition-97", "egd", [0])) == 0
