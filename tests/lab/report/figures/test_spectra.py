"""Spectra: which methods have a fan, and what the picture says of its bands."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import catalog
from egalitarian.lab.report.figures.spectra import draw_spectra
from egalitarian.lab.runs import Store


def test_the_task_the_bands_and_both_axes_have_their_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("sgd", "egd"):
        write_run(store, "addition-97", method, 0, 20)
    found = gather(store, ["addition-97"])
    figure = draw_spectra(found, found.experiments, ("sgd", "egd"))
    assert [axis.get_title() for axis in figure.axes] == ["SGD", "EGD", ""]
    assert [axis.get_ylabel() for axis in figure.axes] == ["singular values of the gradient", "", "largest over smallest"]
    assert figure.subfigs[0].get_suptitle() == "Addition modulo 97"
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["all singular values", "central 80 %", "central 50 %", "median"]


def test_fans_are_of_methods_that_were_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("egd-rsvd-64", "egd-after", "row-norm", "egd-rsvd-128"):
        write_run(store, "addition-97", method, 0, 20)
    found = gather(store, ["addition-97"])
    figure = draw_spectra(found, found.experiments, tuple(found.experiments[0].methods))
    assert "not run" not in [text.get_text() for axis in figure.axes for text in axis.texts]
    assert len(figure.axes) == 4


def test_fans_are_of_methods_that_treat_the_gradient_otherwise_and_titles_do_not_meet(tmp_path: Path) -> None:
    store, methods = Store(tmp_path), tuple(catalog.load("full-cifar").methods)
    for method in methods:
        write_run(store, "full-cifar", method, 0, 20)
    found = gather(store, ["full-cifar"])
    figure = draw_spectra(found, found.experiments, methods)
    assert any("EGD" in axis.get_title() for axis in figure.axes)
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes[:3]]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
