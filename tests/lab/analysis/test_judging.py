"""Rules of a verdict, one case of each."""

from __future__ import annotations

import pytest
from report_records import a_seed

from egalitarian.lab.analysis import Accuracy, Count, Estimate, estimate
from egalitarian.lab.analysis.judging import anchor, compare, distance, excuse, judge_accuracy, judge_reached
from egalitarian.lab.analysis.statistics import Quartiles


def test_steps_go_through_the_epoch_that_passes_and_a_bound_has_no_more_than_were_trained() -> None:
    found = estimate([a_seed(crossed) for crossed in (6, 0, None)], 100)
    assert (str(found.median), str(found.low), str(found.high)) == ("700", "100", "> 100000")
    assert judge_reached(700, found, 3, "steps") == ("inside", "inside the spread")
    assert judge_reached(50, found, 3, "steps") == ("outside", "outside: 50 % below the spread [100, > 100000]")
    kind, words = judge_reached(43100, found, 3, "steps")
    assert kind == "undecided"
    assert words.endswith("(at most 700), and 1 of 3 did not pass within 100000 steps")


def accuracy(low: float, high: float, n: int = 3, diverged: int = 0, others: int = 0) -> Accuracy:
    return Accuracy(n, diverged, others, (low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("paper", "found", "kind", "words"),
    [
        (0.43, accuracy(0.42, 0.44), "inside", "inside the spread"),
        (0.43, accuracy(0.4304, 0.44), "inside", "inside the spread"),
        (0.43, accuracy(0.4306, 0.44), "outside", "outside: 0.1 points below the spread [43.1, 44.0]"),
        (0.43, accuracy(0.40, 0.41), "outside", "outside: 2.0 points above the spread [40.0, 41.0]"),
        (0.43, accuracy(0.42, 0.44, 2, diverged=1), "inside", "inside the spread; 1 of 3 seeds diverged"),
        (0.43, Accuracy(0, 3, 0, None, None, None), "outside", "outside: all 3 seeds diverged"),
        (0.43, accuracy(0.42, 0.44, 2), "too few seeds", "too few seeds: 2 of the first 3 of full length"),
        (0.43, accuracy(0.42, 0.44, 2, others=1), "too few seeds", "too few seeds: 2 of the first 3 of full length"),
        (0.43, Accuracy(0, 0, 3, None, None, None), "too few seeds", "too few seeds: 0 of the first 3 of full length"),
        (0.43, Accuracy(0, 2, 1, None, None, None), "too few seeds", "too few seeds: 2 of the first 3 of full length"),
        (0.43, Accuracy(0, 0, 0, None, None, None), "not run", "not run"),
    ],
)
def test_verdicts_on_an_accuracy(paper: float, found: Accuracy, kind: str, words: str) -> None:
    assert judge_accuracy(paper, found, 3) == (kind, words)


def test_with_too_few_full_length_runs_an_accuracy_neither_agrees_nor_contradicts() -> None:
    """Neither may a value in the middle of one run's range be inside, nor one far from it outside."""
    for paper in (0.9125, 0.5):
        assert judge_accuracy(paper, accuracy(0.910, 0.915, 7, others=1), 8)[0] == "too few seeds"
    assert [judge_accuracy(paper, accuracy(0.910, 0.915, 8), 8)[0] for paper in (0.9125, 0.5)] == ["inside", "outside"]


def seeds(*crossings: int | None, bound: int = 12_000) -> Estimate:
    return estimate([a_seed(crossed, bound) for crossed in crossings])


@pytest.mark.parametrize(
    ("crossings", "kind", "words"),
    [
        ((None, None, None), "inside", "inside the spread"),
        ((10, None, None), "inside", "inside the spread, though 1 of 3 seeds pass"),
        ((10, 20, None, None), "inside", "inside the spread, though 2 of 4 seeds pass"),
        ((10, 20, None), "outside", "outside: 2 of 3 seeds pass"),
        ((46, 52, 51, 175, 214, 2715, None, None), "outside", "outside: 6 of 8 seeds pass"),
    ],
)
def test_never_is_inside_only_where_half_of_the_seeds_or_more_do_not_pass(
    crossings: tuple[int | None, ...], kind: str, words: str
) -> None:
    assert judge_reached("never", seeds(*crossings), 3) == (kind, words)


@pytest.mark.parametrize(
    ("paper", "kind", "words"),
    [
        (293, "inside", "inside the spread"),
        (385, "inside", "inside the spread"),
        (200, "outside", "outside: 32 % below the spread [293, > 12000]"),
        (
            5273,
            "undecided",
            "undecided: above every seed that passed (at most 385), and 1 of 4 did not pass within 12000 epochs",
        ),
    ],
)
def test_above_all_seeds_that_passed_is_undecided_while_others_did_not(paper: int, kind: str, words: str) -> None:
    found = seeds(293, 352, 385, None)
    judged = judge_reached(paper, found, 4)
    assert judged == (kind, words)
    assert excuse(judged, "x")[0] == kind.replace("outside", "known")


def test_where_no_seed_passes_a_number_is_outside_up_to_the_budget_and_undecided_beyond() -> None:
    words = "none of 3 seeds passes within 400 epochs"
    for paper, kind in ((116, "outside"), (400, "outside"), (5392, "undecided")):
        assert judge_reached(paper, seeds(None, None, None, bound=400), 3) == (kind, f"{kind}: {words}")


@pytest.mark.parametrize(
    ("paper", "low", "high", "words"),
    [
        (100, Count(100), Count(200), "inside the spread"),
        (200, Count(100), Count(200), "inside the spread"),
        (50, Count(100), Count(200), "outside: 50 % below the spread [100, 200]"),
        (500, Count(100), Count(200), "outside: 150 % above the spread [100, 200]"),
        (5715, Count(5737), Count(6116), "outside: 0.38 % below the spread [5737, 6116]"),
    ],
)
def test_a_value_is_below_inside_or_above_the_spread(paper: float, low: Count, high: Count, words: str) -> None:
    assert compare(paper, low, high) == (words.partition(":")[0].partition(" ")[0], words)


def test_fewer_seeds_than_were_fixed_in_advance_are_too_few_for_inside_and_for_outside() -> None:
    for paper in (20, 1000, "never"):
        assert judge_reached(paper, seeds(10, 20, 30), 4) == ("too few seeds", "too few seeds: 3 of the first 4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("paper", "ours", "text"),
    [
        (30, Quartiles(10, 20, 30), "+0.5"),
        (0, Quartiles(10, 20, 30), "-1.0"),
        (20, Quartiles(10, 20, 30), "+0.0"),
        (19.9, Quartiles(10, 20, 30), "+0.0"),
        (21, Quartiles(20, 20, 20), "+inf"),
        (19, Quartiles(20, 20, 20), "-inf"),
        (20, Quartiles(20, 20, 20), "+0.0"),
        ("never", Quartiles(10, 20, 30), ""),
        (None, Quartiles(10, 20, 30), ""),
        (20, None, ""),
    ],
)
def test_the_distance_is_from_the_median_in_interquartile_ranges(
    paper: float | str | None, ours: Quartiles | None, text: str
) -> None:
    assert distance(paper, ours) == text


def test_one_slow_seed_makes_no_distance_small_and_one_that_fails_leaves_it_as_it_is() -> None:
    """The range from smallest to largest would do the first, and have no end in the second case."""
    crossings = (10, 11, 12, 13, 14, 15, 16)
    found = {distance(25, seeds(*crossings, last).quartiles) for last in (17, 9000, None)}
    assert found == {"+3.3"}
    assert seeds(10, 11, 12, None, None, None, None, None).quartiles is None


def test_headings_become_anchors() -> None:
    assert anchor("Sparse parity, k = 4: row norm") == "sparse-parity-k--4-row-norm"
