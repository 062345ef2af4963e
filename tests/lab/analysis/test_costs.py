"""What fresh seeds needed: the fastest stock optimizer, and every method relative to it."""

from __future__ import annotations

import math

from egalitarian.lab.analysis import FreshCost, MethodCost, Side, fastest_stock, ratios_to_stock


def method(name: str, side: Side, *seeds: float) -> MethodCost:
    return MethodCost(name, name.upper(), side, FreshCost(seeds, 100.0))


def test_the_fastest_stock_optimizer_has_the_smallest_median_whatever_others_have() -> None:
    slow, fast = method("sgd", "stock", 8, 9, 10), method("adamw", "stock", 4, 5, 30)
    assert fastest_stock([method("egd", "ours", 1, 1, 1), slow, fast]) is fast
    assert fastest_stock([method("egd", "ours", 1, 1, 1)]) is None


def test_of_equal_medians_the_one_with_fewer_failures_is_fastest() -> None:
    failing, whole = method("sgd", "stock", 4, 5, math.inf), method("adamw", "stock", 4, 5, 60)
    assert fastest_stock([failing, whole]) is whole


def test_a_ratio_is_of_medians_and_infinite_for_a_method_that_fails() -> None:
    one = [method("sgd", "stock", 10, 10), method("egd", "ours", 4, 6), method("lion", "rival", math.inf, math.inf)]
    other = [method("sgd", "stock", 8, 8), method("egd", "ours", 16, 16)]
    ratios = ratios_to_stock({"one": one, "other": other})
    assert ratios == {"sgd": {"one": 1, "other": 1}, "egd": {"one": 0.5, "other": 2}, "lion": {"one": math.inf}}


def test_a_family_whose_stock_optimizers_all_fail_has_no_ratios() -> None:
    assert ratios_to_stock({"one": [method("sgd", "stock", math.inf), method("egd", "ours", 4)]}) == {}
