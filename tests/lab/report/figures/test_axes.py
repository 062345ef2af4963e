"""Parts of panels: epochs as tables count them, thin bands, chance."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.config import load
from egalitarian.lab.report.figures.axes import add_key, chance, epoch_axis, lowest, sparse
from egalitarian.lab.report.figures.style import styled


def test_a_band_is_thin_and_keeps_its_ends() -> None:
    epochs = np.arange(1000.0)
    kept = sparse(epochs)
    assert (kept[0], kept[-1]) == (0, 999)
    assert len(kept) < 90


@pytest.mark.parametrize(("last", "scale"), [(0, "linear"), (50, "linear"), (51, "symlog"), (9999, "symlog")])
def test_epochs_begin_at_0_and_are_logarithmic_if_they_are_many(last: int, scale: str) -> None:
    axis = Figure().subplots()
    axis.plot([0, last], [0, 1])
    epoch_axis([axis])
    low, high = axis.get_xlim()
    assert (axis.get_xscale(), low) == (scale, 0)
    assert high > last
    assert axis.get_xlabel() == "epoch"
    if scale == "symlog":
        assert [tick.get_text() for tick in axis.get_xticklabels()][:3] == ["0", "1", "10"]


@pytest.mark.parametrize(("name", "share"), [("addition-97", 1 / 97), ("parity-3", 0.5), ("mnist", 0.1)])
def test_chance_is_known_and_an_axis_begins_there_if_that_is_far_from_0(name: str, share: float) -> None:
    assert chance(load(name)) == share
    assert lowest(load(name)) == (share if share == 0.5 else 0)


@styled
def test_a_key_stays_within_its_figure() -> None:
    figure = Figure(figsize=(4, 3), layout="constrained")
    add_key(figure, [Line2D([], [], label="word " * 8) for _ in range(5)])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
