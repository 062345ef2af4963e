"""Statistics over seeds: censoring, medians, ratios of bounds, accuracies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from report_records import a_seed, write_accuracies, write_run

from egalitarian.lab.analysis import Count, Gathered, estimate, gather, median_and_range
from egalitarian.lab.analysis.statistics import final_accuracy, mean_train_accuracy
from egalitarian.lab.config import catalog
from egalitarian.lab.runs import Store


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
def test_median_and_range(seeds: list[tuple[int | None, int]], words: str) -> None:
    assert median_and_range(seeds) == words


def test_counting_seeds_imports_no_pandas() -> None:
    code = "import sys, egalitarian.lab.analysis; print('pandas' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_nothing_run_has_no_median() -> None:
    assert str(estimate([])) == "not run"


def test_unfinished_seeds_are_marked_and_their_bound_settles_nothing() -> None:
    found = estimate([a_seed(10), a_seed(None, 6, budget=7), a_seed(None, 6, budget=7)])
    assert str(found) == "> 6 (> 6 to > 10), unfinished"
    assert found.settled_median is None
    assert estimate([a_seed(10), a_seed(12), a_seed(None, 12, budget=13)]).settled_median == Count(12)
    assert estimate([a_seed(10), a_seed(12), a_seed(None, 6, budget=7)]).settled_median is None, "it may pass before both"


def test_a_median_that_a_seed_with_a_small_bound_might_move_is_a_bound() -> None:
    early = [(10, 15), (100, 105), (100, 105), (None, 5), (None, 5)]
    assert median_and_range(early) == "> 10 (> 5 to > 100)"
    assert median_and_range([(10, 15), (100, 105), (100, 105), (None, 200), (None, 200)]) == "100 (10 to > 200)"


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_accuracies(Store(tmp_path_factory.mktemp("runs"))))


def test_the_mean_is_over_all_epochs_and_the_spread_over_seeds(gathered: Gathered) -> None:
    found = mean_train_accuracy(gathered.of("cifar-shuffle-3", "adam"))
    assert (found.median, found.low, found.high) == pytest.approx((0.3, 0.2, 0.4))
    assert (found.n, found.diverged, found.others) == (3, 0, 0)


def test_going_on_past_the_budget_changes_no_mean(tmp_path: Path) -> None:
    store, budget = Store(tmp_path), 100
    for seed, epochs in enumerate((budget, 2 * budget)):
        learnt = {"learnt": lambda epoch: 0.2 if epoch < budget else 1.0}
        write_run(store, "cifar-shuffle-3", "adam", seed, epochs=epochs, **learnt)
    found = mean_train_accuracy(gather(store).of("cifar-shuffle-3", "adam"))
    assert (found.low, found.high) == pytest.approx((0.2, 0.2))


def test_the_end_is_that_of_full_length_runs_alone(gathered: Gathered) -> None:
    runs = gathered.of("mnist", "egd")
    assert [run.full for run in runs] == [True, False, False]
    found = final_accuracy(runs)
    assert (found.n, found.others, found.median) == (1, 2, runs[0].outcome.test_accuracy)
    assert found.low is not None
    assert found.low > 0.99, "not the start of the run"
    assert final_accuracy(gathered.of("mnist", "adamw-decay")).n == 0


def test_a_run_that_is_long_for_its_failure_does_not_count_at_the_end_but_the_first_does(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([None, 6, None, 8]):
        write_run(store, "mnist", "egd", seed, crossed)
    write_run(store, "mnist", "adamw", 0, 6)
    write_run(store, "mnist", "adamw", 1)
    for seed in range(3):
        write_run(store, "mnist", "grokfast-ema", seed)
    budget = catalog.load("mnist").method("egd-rsvd-16").epochs
    write_run(store, "mnist", "egd-rsvd-16", 0, 6)
    write_run(store, "mnist", "egd-rsvd-16", 1, budget - 2, epochs=budget)
    write_run(store, "mnist", "egd-rsvd-16", 2, 6, epochs=budget)
    write_run(store, "mnist", "egd-rsvd-8", 0)
    write_run(store, "mnist", "egd-rsvd-8", 1)
    write_run(store, "mnist", "egd-rsvd-8", 2, 6, epochs=40, diverged=True)
    methods = ("egd", "adamw", "grokfast-ema", "egd-rsvd-16", "egd-rsvd-8")
    finals = {method: final_accuracy(gather(store).of("mnist", method)).n for method in methods}
    assert finals == {"egd": 1, "adamw": 0, "grokfast-ema": 3, "egd-rsvd-16": 1, "egd-rsvd-8": 2}


def test_a_run_that_passed_and_then_diverged_passed_and_has_no_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "mnist", "egd", 0, 6, epochs=1000, diverged=True)
    (run,) = gather(store).of("mnist", "egd")
    assert (run.state, run.outcome.crossed, run.full, run.outcome.diverged) == ("passed", 6, False, True)
    assert str(final_accuracy([run])) == "1 diverged"
