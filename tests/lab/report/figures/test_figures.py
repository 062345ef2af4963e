"""Every kind of figure: nothing crashes for want of runs, nothing is clipped, and titles are no formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report_records import write_curves, write_run

from egalitarian.lab.analysis import Gathered, gather
from egalitarian.lab.config import catalog
from egalitarian.lab.report.figures import FIGURES, save, slim
from egalitarian.lab.report.figures.costs import draw_needed
from egalitarian.lab.report.figures.curves import draw_curves
from egalitarian.lab.report.figures.fourier import draw_fourier
from egalitarian.lab.report.figures.learning import draw_learning, draw_shuffles
from egalitarian.lab.report.figures.spectra import draw_spectra
from egalitarian.lab.report.figures.style import looks_of
from egalitarian.lab.report.figures.weights import draw_distances, draw_trajectories
from egalitarian.lab.runs import Store

DRAWN = (draw_curves, draw_needed, draw_spectra, draw_fourier, draw_distances, draw_trajectories)
METHODS = ("sgd", "egd", "egd-after")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_curves(Store(tmp_path_factory.mktemp("runs"))), ["addition-79", "addition-97", "addition-127"])


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_every_kind_is_drawn_by_one_of_these() -> None:
    assert {each.draw for each in FIGURES.values()} == {*DRAWN, draw_learning, draw_shuffles}


@pytest.mark.parametrize("draw", DRAWN)
def test_partial_runs_are_drawn_and_an_empty_panel_says_so(
    draw: Callable[..., Figure], gathered: Gathered, tmp_path: Path
) -> None:
    figure = draw(gathered, gathered.experiments[:2], METHODS)
    assert "not run" in texts(figure)
    for path in save(figure, tmp_path / "figure"):
        slim(path)
        assert 1000 < path.stat().st_size < 300_000


@pytest.mark.parametrize("draw", [*DRAWN, draw_learning, draw_shuffles])
def test_nothing_run_is_a_figure_with_a_note(draw: Callable[..., Figure], tmp_path: Path) -> None:
    empty = gather(Store(tmp_path / "runs"), ["mnist"])
    figure = draw(empty, empty.experiments, ("adamw", "egd"))
    assert "not run" in texts(figure)
    save(figure, tmp_path / "figure")


@pytest.mark.parametrize("draw", DRAWN)
def test_a_method_that_diverged_at_once_does_not_take_others_along(draw: Callable[..., Figure], tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 0, 20)
    write_run(store, "addition-97", "sgd", 0, epochs=1, diverged=True)
    found = gather(store, ["addition-97"])
    assert len(found.runs) == 2
    figure = draw(found, found.experiments, ("sgd", "egd"))
    colour = looks_of(found.experiments, ("sgd", "egd"))["egd"].colour
    assert any(line.get_color() == colour for axis in figure.axes for line in axis.lines)
    save(figure, tmp_path / "figure")


@pytest.mark.parametrize("draw", DRAWN)
def test_no_text_is_outside_the_figure(draw: Callable[..., Figure], tmp_path: Path) -> None:
    """With more methods than curves can show, of which some have long names and some do not pass."""
    store, output = Store(tmp_path), catalog.load("output")
    for number, method in enumerate(output.methods):
        write_run(store, "output", method, 0, None if number % 4 == 3 else 8 + 9 * number)
    found = gather(store, ["output"])
    figure = draw(found, found.experiments, tuple(output.methods))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())  # inches
    assert -0.02 <= box.x0 < box.x1 <= figure.get_figwidth() + 0.02
    assert -0.02 <= box.y0 < box.y1 <= figure.get_figheight() + 0.02


def test_a_title_is_no_formula(tmp_path: Path) -> None:
    own = tmp_path / "dear.toml"
    own.write_text(
        'extends = "addition-97"\ntitle = "$5 an hour, $6^ a day"\n'
        '[methods.dear]\ntitle = "EGD at $5 and $x_{"\nepochs = 9\n'
    )
    store = Store(tmp_path / "runs")
    write_run(store, catalog.load(str(own)), "dear", 0, epochs=9)
    found = gather(store, [str(own)])
    for draw in DRAWN:
        save(draw(found, found.experiments, ("dear",)), tmp_path / "figure")
