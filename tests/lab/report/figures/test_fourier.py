"""The figure of Fourier measures: what its panels hold, and what it says of runs without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.report.figures import save, slim
from egalitarian.lab.report.figures.fourier import draw_fourier
from egalitarian.lab.runs import Store

NAME = "addition-97-fourier"


def labels(figure: object) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]  # type: ignore[attr-defined]


def test_every_panel_has_its_name_and_every_line_is_in_the_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, seed in (("sgd", 0), ("egd", 0), ("egd", 1)):
        write_run(store, NAME, method, seed, 20 + seed)
    found = gather(store, [NAME])
    figure = draw_fourier(found, found.experiments, ("sgd", "egd", "adamw"))
    names = [axis.get_ylabel() for axis in figure.axes]
    expected = ["frequency (seed 0)", "", "concentration (Gini)", "loss", "", "scale of the logits", "share of the power"]
    assert names == expected
    assert [axis.get_title() for axis in figure.axes[:2]] == ["SGD", "EGD"]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["training loss", "test loss", "excluded loss", "restricted loss"]
    assert [len(axis.lines) for axis in figure.axes[3:5]] == [5, 5], "four losses, and where the threshold is passed"
    assert not labels(figure)
    mesh = figure.axes[0].collections[0]
    assert mesh.get_array().shape == (48, 13)
    assert mesh.norm.vmax == pytest.approx(26 / 73, rel=1e-3)
    assert np.argmax(mesh.get_array()[:, -1]) == 9
    again = draw_fourier(found, found.experiments, ("sgd", "egd", "adamw"))
    once, twice = (save(each, tmp_path / name) for each, name in ((figure, "once"), (again, "twice")))
    for one, other in zip(once, twice, strict=True):
        assert one.read_bytes() == other.read_bytes()
        slim(one)
        assert 1000 < one.stat().st_size < 300_000


def test_runs_without_measures_are_said_to_have_none(tmp_path: Path) -> None:
    """They were stored before the measures were asked for: the same id, since measuring is no part of a run."""
    store = Store(tmp_path)
    write_run(store, NAME, "sgd", 0, 20, changes=["measure.fourier=off"])
    found = gather(store, [NAME])
    figure = draw_fourier(found, found.experiments, ("sgd",))
    assert labels(figure) == ["not measured"] * 3
    write_run(store, NAME, "egd", 1, 20)
    found = gather(store, [NAME])
    figure = draw_fourier(found, found.experiments, ("sgd", "egd"))
    assert labels(figure) == ["not measured"]
    assert figure.axes[0].get_ylabel() == "frequency (seed 0, 1)", "none in common: each has its own"


def test_without_runs_there_is_a_figure_that_says_so(tmp_path: Path) -> None:
    write_run(store := Store(tmp_path), NAME, "sgd", 0, epochs=1)
    found = gather(store, [NAME])
    figure = draw_fourier(found, found.experiments, ("egd",))
    assert "not run" in labels(figure)
    assert draw_fourier(found, found.experiments, ("sgd",)).axes
