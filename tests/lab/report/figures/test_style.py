"""The style of figures: colours, markers, and files made smaller."""

from __future__ import annotations

import re
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from report_records import write_curves

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import catalog, load_contents, load_looks
from egalitarian.lab.report.figures import look, save, slim
from egalitarian.lab.report.figures.weights import draw_distances
from egalitarian.lab.runs import Store


@pytest.mark.parametrize("count", [3, 7, 12, 30])
def test_methods_the_lab_does_not_know_differ_however_many(count: int) -> None:
    methods = ["egd", "row-norm", *(f"own-{index}" for index in range(count))]
    assert len({look(method, methods).colour for method in methods}) == len(methods)
    assert look("own-0", methods).marker != look("own-1", methods).marker
    alike = ["sgd", "adam", "adamw", "egd-rsvd-40", "egd-rsvd-128", *methods]
    assert len({look(method, alike).colour for method in alike}) == len(alike)


def test_many_colours_are_none_that_a_known_method_nearly_has() -> None:
    methods = [*catalog.load("addition-97").methods, *(f"own-{index}" for index in range(8))]
    colours = [to_rgb(look(method, methods).colour) for method in methods]
    apart = [np.linalg.norm(np.subtract(one, other)) for index, one in enumerate(colours) for other in colours[:index]]
    assert min(apart) > 0.1


def test_unknown_methods_take_colours_in_turn() -> None:
    first, second = look("mine", ["sgd", "mine", "yours"]), look("yours", ["sgd", "mine", "yours"])
    assert first.colour != second.colour


def test_no_two_methods_of_a_figure_look_alike() -> None:
    for plan in load_contents().figures:
        own = [look(method, plan.methods) for method in plan.methods]
        assert len({drawn.colour for drawn in own}) == len(own), plan.name
        assert len({drawn.marker for drawn in own}) >= len(own) - 2, plan.name


def test_every_method_of_the_lab_has_its_look() -> None:
    for name in catalog.names():
        assert set(catalog.load(name).methods) <= set(load_looks().methods)


def test_slim_pictures_keep_the_colour_of_bands(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 3))
    axis = figure.subplots()
    for index, own in enumerate(load_looks().methods.values()):
        axis.fill_between([0, 1], index, index + 1, color=own.colour, alpha=0.2, linewidth=0)
        axis.plot(np.linspace(0, 1), 16 * np.random.default_rng(index).random(50), color=own.colour, linewidth=0.5)
    png = save(figure, tmp_path / "figure")[0]
    before = np.array(Image.open(png).convert("RGB")).astype(int)
    slim(png)
    after = np.array(Image.open(png).convert("RGB")).astype(int)
    colours, counts = np.unique(before.reshape(-1, 3), axis=0, return_counts=True)
    for colour in colours[counts > 500]:
        assert np.abs(after[(before == colour).all(-1)] - colour).max() <= 3


def test_slim_svg_is_well_formed_and_has_only_ids_that_are_used(tmp_path: Path) -> None:
    gathered = gather(write_curves(Store(tmp_path / "runs")), ["addition-97"])
    svg = save(draw_distances(gathered, gathered.experiments, ("sgd", "egd", "egd-after")), tmp_path / "figure")[1]
    before = len(svg.read_text())
    slim(svg)
    text = svg.read_text()
    assert len(text) < 0.7 * before
    xml.dom.minidom.parseString(text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) == set(ids)
    assert len(ids) == len(set(ids))
