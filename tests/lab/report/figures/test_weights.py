"""Distances and trajectories: lines end where their marks are, and the plane is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from report_records import write_run

from egalitarian.lab.analysis import Gathered, gather
from egalitarian.lab.report.figures.weights import draw_distances, draw_trajectories
from egalitarian.lab.runs import Store


def three(tmp_path: Path) -> Gathered:
    store = Store(tmp_path)
    for seed, crossed in enumerate([20, 60, 100]):
        write_run(store, "addition-97", "egd", seed, crossed)
        write_run(store, "addition-97", "sgd", seed, 300)
    return gather(store, ["addition-97"])


def test_a_line_ends_at_its_mark_and_both_rows_begin_at_0(tmp_path: Path) -> None:
    found = three(tmp_path)
    figure = draw_distances(found, found.experiments, ("sgd", "egd"))
    for axis in figure.axes:
        lines = [line for line in axis.lines if line.get_color() == "#D55E00" and len(line.get_xydata()) > 2]
        marks = [line for line in axis.lines if line.get_marker() == "s"]
        assert [np.nanmax(line.get_xdata()) for line in lines] == [line.get_xdata()[0] for line in marks] == [60]
        assert axis.get_ylim()[0] == 0
    assert "EGD: 60" in [text.get_text() for text in figure.axes[0].texts]


def test_the_plane_is_named_with_its_shares_and_its_seed(tmp_path: Path) -> None:
    found = three(tmp_path)
    (axis,) = draw_trajectories(found, found.experiments, ("sgd", "egd")).axes
    assert axis.get_xlabel().startswith("PCA 1: ")
    assert axis.get_xlabel().endswith(" % (seed 0)")
    assert axis.get_ylabel().startswith("PCA 2: ")
    assert [text.get_text() for text in axis.texts] == ["SGD", "EGD"], "at the ends of the paths"
