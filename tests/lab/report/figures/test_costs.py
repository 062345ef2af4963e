"""What every seed needed: every seed is a mark, methods are sorted, failures have a place."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_records import write_run

from egalitarian.lab.analysis import FreshCost, MethodCost, Side, gather
from egalitarian.lab.report.figures import draw_costs, save
from egalitarian.lab.report.figures.costs import draw_needed
from egalitarian.lab.runs import Store


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


def test_a_report_has_the_epoch_of_every_seed_as_its_tables_count_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([20, 60, None]):
        write_run(store, "parity-3", "egd", seed, crossed)
    for seed in range(3):
        write_run(store, "parity-3", "sgd", seed)
        write_run(store, "parity-3", "row-norm", seed, 90 + seed)
    found = gather(store, ["parity-3"])
    figure = draw_needed(found, found.experiments, ("sgd", "egd", "row-norm"))
    assert labels(figure) == ["EGD", "row norm", "SGD"]
    assert {"60, 2 of 3 pass", "91", "> 12000, 0 of 3 pass", "not passed"} == set(texts(figure))
    (axis,) = figure.axes
    egd = [line for line in axis.lines if line.get_marker() == "o" and line.get_color() == "#D55E00"]
    assert sorted(np.concatenate([line.get_xdata() for line in egd]).tolist()) == [20, 60]


def test_a_seed_that_passes_at_epoch_0_has_its_place(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "mnist", "egd", 0, 0)
    write_run(store, "mnist", "adamw", 0, 400)
    found = gather(store, ["mnist"])
    (axis,) = draw_needed(found, found.experiments, ("egd", "adamw")).axes
    assert axis.get_xlim()[0] < 0


def test_without_a_threshold_final_accuracies_are_sorted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "full-cifar", "adam-1e-3", 0, epochs=20)
    write_run(store, "full-cifar", "adam-egd-1e-3", 0, 15, epochs=20)
    write_run(store, "full-cifar", "sgd-1e-2", 0, epochs=3)
    found = gather(store, ["full-cifar"])
    figure = draw_needed(found, found.experiments, tuple(found.experiments[0].methods))
    assert labels(figure) == ["Adam, EGD, lr 1e-3", "Adam, lr 1e-3", "SGD, momentum 0.9, lr 1e-2"]
    assert figure.axes[0].get_xlabel() == "final test accuracy, %"
    assert "1 of 1 not to the end" in texts(figure)
