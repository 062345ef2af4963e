"""All families in one picture: methods are sorted by their worst ratio."""

from __future__ import annotations

import math
from pathlib import Path

from egalitarian.lab.analysis import FreshCost, MethodCost, Side
from egalitarian.lab.report.figures import draw_ratios, save


def method(name: str, side: Side, *seeds: float) -> MethodCost:
    return MethodCost(name, f"the {name}", side, FreshCost(seeds, 100.0))


METHODS = [
    method("sgd", "stock", 150, 160, 170),
    method("egd", "ours", 14, 15, 15),
    method("lion", "rival", 80, math.inf, math.inf),
    method("row-norm", "rival", 20, 25, 90),
]


def test_all_families_are_sorted_by_the_worst_ratio() -> None:
    other = [method("sgd", "stock", 10, 12), method("egd", "ours", 30, 30), method("row-norm", "rival", 9, 9)]
    figure = draw_ratios({"one": METHODS, "other": other})
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()][::-1]
    assert names == ["the row-norm", "the sgd", "the egd", "the lion"]


def test_families_without_a_stock_optimizer_give_an_empty_picture(tmp_path: Path) -> None:
    assert save(draw_ratios({"one": METHODS[1:]}), tmp_path / "ratios")
