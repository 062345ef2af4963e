"""The pictures of the fair comparison: every seed is a mark, methods are sorted, failures have a place."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from egalitarian.lab.analysis import FreshCost, MethodCost, Side
from egalitarian.lab.report.figures import draw_costs, draw_ratios, save


def method(name: str, side: Side, *seeds: float) -> MethodCost:
    return MethodCost(name, f"the {name}", side, FreshCost(seeds, 100.0))


METHODS = [
    method("sgd", "stock", 150, 160, 170),
    method("egd", "ours", 14, 15, 15),
    method("lion", "rival", 80, math.inf, math.inf),
    method("row-norm", "rival", 20, 25, 90),
]


def labels(figure: Figure) -> list[str]:
    """Of the rows, the uppermost first."""
    return [tick.get_text() for tick in figure.axes[0].get_yticklabels()][::-1]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_methods_are_sorted_by_their_median_and_failures_come_last() -> None:
    assert labels(draw_costs("T", METHODS, "epochs")) == ["the egd", "the row-norm", "the sgd", "the lion"]


def test_every_seed_is_a_mark() -> None:
    axis = draw_costs("T", METHODS, "epochs").axes[0]
    dots = sum(len(np.atleast_1d(line.get_xdata())) for line in axis.lines if line.get_marker() == "o")
    crosses = sum(len(np.atleast_1d(line.get_xdata())) for line in axis.lines if line.get_marker() == "x")
    assert (dots, crosses) == (10, 2)


def test_equal_seeds_do_not_hide_each_other() -> None:
    axis = draw_costs("T", [method("egd", "ours", 15, 15, 15)], "epochs").axes[0]
    heights = np.concatenate([np.asarray(line.get_ydata()) for line in axis.lines if line.get_marker() == "o"])
    assert len(set(heights.tolist())) == 3


def test_a_label_has_the_median_the_failures_and_says_which_is_ours() -> None:
    found = texts(draw_costs("T", METHODS, "epochs"))
    assert {"15 (ours)", "25", "160", "none, 2 of 3 failed", "failed"} <= set(found)


def test_without_failures_there_is_no_place_for_them() -> None:
    assert "failed" not in texts(draw_costs("T", METHODS[:2], "epochs"))


@pytest.mark.parametrize("methods", [METHODS, METHODS[:1], [method("lion", "rival", math.inf)], [METHODS[1]]])
def test_any_set_of_methods_can_be_drawn(tmp_path: Path, methods: list[MethodCost]) -> None:
    files = save(draw_costs("10 % of $x", methods, "epochs"), tmp_path / "costs")
    assert all(file.stat().st_size > 1000 for file in files)


def test_all_families_are_sorted_by_the_worst_ratio() -> None:
    other = [method("sgd", "stock", 10, 12), method("egd", "ours", 30, 30), method("row-norm", "rival", 9, 9)]
    figure = draw_ratios({"one": METHODS, "other": other})
    assert labels(figure) == ["the row-norm", "the sgd", "the egd", "the lion"]


def test_families_without_a_stock_optimizer_give_an_empty_picture(tmp_path: Path) -> None:
    assert save(draw_ratios({"one": METHODS[1:]}), tmp_path / "ratios")
