"""The table 'tuned fairly': the chosen points, the fresh seeds, and each method against the best stock optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from egalitarian.lab.analysis import FreshCost
from egalitarian.lab.console.tuning import markdown
from egalitarian.lab.tuning.table import cost_of, headings, rank_forms, rows, stock_costs

RULES = {"readings": 1, "fresh_readings": 2, "validation": 0.5}


def entry(crossed: Sequence[int | None], train: float = 0.5, **more: Any) -> dict[str, Any]:
    """A method whose fresh seeds passed at these readings; there are two in a pass."""
    seeds = [
        {"crossed": one, "epochs": 40 if one is None else one + 1, "diverged": False, "mean_train_accuracy": train}
        for one in crossed
    ]
    best = {"lr": 0.5, "decay": 0.001, "third": "", "budget": 40, "passes": True}
    about = {"rules": RULES, "tuning_seeds": [1], "fresh_seeds": [0, 1, 2], "spent": {"H, 2026-11-15": 60.0}}
    whole = {"title": "SGD", "complete": True, "searched": True, "inside": True, "beyond": 0, "points": [{}] * 48}
    return {**whole, **about, "best": best, "fresh": {"e": seeds}, "seconds": {}, **more}


def table(score: str = "epochs", **methods: dict[str, Any]) -> dict[str, Any]:
    about = {
        "family": "f",
        "experiment": "e",
        "titles": {"e": "T"},
        "stock": ["sgd"],
        "forms": [],
        "ours": "egd",
        "score": score,
    }
    return {**about, "threshold": 0.95, "changes": [], "quick": False, "complete": True, "methods": methods}


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ((1.0, 2.0), (3.0, 4.0), "ahead"),
        ((1.0, 3.0), (3.0, 4.0), "level"),
        ((1.0, 9.0), (3.0, 4.0), "level"),
        ((5.0, 9.0), (3.0, 4.0), "behind"),
        ((1.0, math.inf), (3.0, 4.0), "level"),
        ((1.0, 2.0), (3.0, math.inf), "ahead"),
        ((math.inf, math.inf), (3.0, 4.0), "behind"),
        ((math.inf, math.inf), (math.inf, math.inf), "level"),
    ],
)
def test_ahead_and_behind_mean_that_no_seeds_overlap(ours: tuple[float, ...], theirs: tuple[float, ...], word: str) -> None:
    assert FreshCost(ours, 10.0).against(FreshCost(theirs, 10.0)) == word


def test_the_table_has_settings_counts_and_verdicts() -> None:
    slow = entry([99, 299, 199])
    fast = entry([9, 29, 19], title="EGD", inside=False, beyond=6, best={**slow["best"], "third": "momentum 0.9"})
    failed = entry([None, None, 7], title="other")
    found = [tuple(row) for row in rows(table(sgd=slow, egd=fast, other=failed), "e")]
    none = ("–", "–")
    assert found == [
        ("SGD", "0.5", "0.001", "–", "48", "yes", "100 (50–150)", "3 of 3", "–", *none),
        (
            *("EGD (ours)", "0.5", "0.001", "momentum 0.9", "48, 6 beyond an edge", "no, on the edge"),
            *("10 (5–15)", "3 of 3", "ahead, 10.0×", *none),
        ),
        ("other", "0.5", "0.001", "–", "48", "yes", "> 20 (4 to > 20)", "1 of 3", "level, 33% of pairs", *none),
    ]


def timed(*seeds: float, hardware: str = "H") -> dict[str, Any]:
    """The seconds of an entry's fresh seeds."""
    return {"e": {"hardware": hardware, "seeds": list(seeds)}}


def test_seconds_have_a_verdict_of_their_own() -> None:
    slow = entry([99, 299, 199], seconds=timed(1.0, 3.0, 2.0))
    fast = entry([9, 29, 19], title="EGD", seconds=timed(2.5, 4.0, 3.0))
    failed = entry([9, None, 19], title="other", seconds=timed(0.1, 9.0, 0.2))
    sgd, egd, other = rows(table(sgd=slow, egd=fast, other=failed), "e")
    assert (sgd.seconds, sgd.against_in_seconds) == ("2 (1–3)", "–")
    assert (egd.against, egd.against_in_seconds) == ("ahead, 10.0×", "level, 0.7×, 17% of pairs")
    assert (other.seconds, other.against_in_seconds) == ("0.2 (0.1 to > 9)", "level, 10.0×, 67% of pairs")


def test_seconds_of_other_hardware_are_not_compared() -> None:
    slow = entry([99, 299, 199], seconds=timed(1.0, 3.0, 2.0))
    fast = entry([9, 29, 19], title="EGD", seconds=timed(0.1, 0.2, 0.3, hardware="another"))
    _, egd = rows(table(sgd=slow, egd=fast), "e")
    assert (egd.seconds, egd.against_in_seconds) == ("0.2 (0.1–0.3)", "not on the same hardware")
    assert egd.against == "ahead, 10.0×"


def test_errors_are_compared_where_accuracy_is_the_score() -> None:
    both = {"sgd": entry([None], 0.75), "egd": entry([None], 0.95, title="EGD")}
    found = table("train-accuracy", **both)
    assert headings(found)[6] == "mean training error, %"
    sgd, egd = rows(found, "e")
    assert (sgd.fresh, sgd.passed, sgd.seconds) == ("25 (25–25)", "–", "–")
    assert (egd.fresh, egd.against) == ("5 (5–5)", "ahead, 5.0×")
    assert "| EGD (ours) | 0.5 | 0.001 | – | 48 | yes | 5 (5–5) | – | ahead, 5.0× | – | – |" in markdown([found])


def test_ahead_means_ahead_of_every_stock_optimizer_and_behind_means_behind_one() -> None:
    """A slow and sure baseline does not stand in for a fast one with a failure."""
    surer, faster = entry([400, 400, 400]), entry([30, 30, None], title="Adam")
    found = {**table(sgd=surer, adam=faster, egd=entry([40, 40, 40])), "stock": ["sgd", "adam"]}
    assert rows(found, "e")[2].against == "level, 0.8×, 33% of pairs"
    assert list(stock_costs(found, "e", cost_of)) == ["adam", "sgd"]
    assert "The stock optimizer with the smallest median is Adam." in markdown([found])
    found["methods"]["egd"] = entry([20, 20, 20])
    assert rows(found, "e")[2].against == "ahead, 1.5×"
    found["methods"]["adam"] = entry([3, 3, 3], title="Adam")
    assert rows(found, "e")[2].against == "behind, 0.2×"
    found["methods"]["adam"]["complete"] = False
    assert stock_costs(found, "e", cost_of) == {}
    assert {row.against for row in rows(found, "e")} == {"–"}
    found["stock"] = ["sgd", "lion"]
    assert stock_costs(found, "e", cost_of) == {}, "one is not searched yet"


def test_few_readings_are_said() -> None:
    assert "fewer than 20 readings" in markdown([table(sgd=entry([99, 99, 99]), egd=entry([9, 9, 9]))])
    assert "fewer than 20 readings" not in markdown([table(sgd=entry([99, 99, 99]), egd=entry([19, 19, 19]))])


def searched(median: float | None, failed: int = 0, train: float = 0.5) -> dict[str, Any]:
    """A form whose best tuning point needs so many readings, of which there are three in a pass."""
    seeds = [{"crossed": None if number < failed else 1} for number in range(3)]
    point = {"position": [1, 2, 0], "seeds": seeds, "median": median, "mean_train_accuracy": train}
    return {"searched": True, "best": {"position": [1, 2, 0]}, "points": [point], "rules": {"readings": 3}}


def test_ours_is_the_form_whose_worst_ratio_is_smallest() -> None:
    forms = ["a", "b", "c"]

    def family(score: str = "epochs", **methods: dict[str, Any]) -> dict[str, Any]:
        return {"score": score, "forms": forms, "methods": methods}

    one = family(a=searched(5), b=searched(11), c=searched(17))
    other = family(a=searched(29), b=searched(5), c=searched(5))
    third = family("train-accuracy", a=searched(None, train=0.9), b=searched(None, train=0.8), c=searched(None, train=0.9))
    found = rank_forms([one, other, third])
    assert [score.form for score in found] == ["b", "c", "a"]
    assert [score.worst for score in found] == pytest.approx([2, 3, 5])
    assert [score.product for score in found] == pytest.approx([4, 3, 5])
    fails = family(a=searched(5), b=searched(2, failed=1), c=searched(5))
    assert [score.form for score in rank_forms([one, fails])] == ["a", "c", "b"]
    assert math.isinf(rank_forms([one, fails])[-1].worst)
    unfinished = family(a=searched(5), b={**searched(5), "searched": False}, c=searched(5))
    assert rank_forms([one, unfinished]) == []


def test_a_search_without_fresh_seeds_is_shown_as_far_as_it_is() -> None:
    waiting = entry([], title="EGD", complete=False, fresh={})
    begun = entry([], title="Adam", complete=False, searched=False, fresh={}, best=None)
    one, other = rows(table(egd=waiting, adam=begun), "e")
    assert (one.lr, one.inside, one.fresh) == ("0.5", "yes", "partial")
    assert (other.lr, other.inside, other.fresh) == ("–", "not yet known", "partial")
