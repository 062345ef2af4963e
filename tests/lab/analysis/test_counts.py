"""Numbers and bounds: their ratios, means and texts."""

from __future__ import annotations

from egalitarian.lab.analysis.counts import Count, mean, ratio


def test_large_counts_lose_no_digit_in_csv_files() -> None:
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


def test_a_mean_of_bounds_both_signs_is_not_defined() -> None:
    assert mean([Count(1), Count(3)]) == Count(2)
    assert mean([Count(1), Count(3, ">")]) == Count(2, ">")
    assert mean([Count(1, "<"), Count(3, ">")]) is None
    assert mean([]) is None
