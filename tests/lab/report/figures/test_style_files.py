"""Pictures as files: made smaller, they are the same pictures."""

from __future__ import annotations

import re
import xml.dom.minidom
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from report_records import write_curves

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import load_looks
from egalitarian.lab.report.figures import save, slim
from egalitarian.lab.report.figures.weights import draw_distances
from egalitarian.lab.runs import Store


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
