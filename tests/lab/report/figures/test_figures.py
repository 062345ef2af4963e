"""Figures: what is drawn has known values, and nothing crashes for want of runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from report_records import write_curves, write_run

from egalitarian.lab.analysis import Gathered, gather
from egalitarian.lab.config import catalog, changing
from egalitarian.lab.report.figures import look, save, slim, styled
from egalitarian.lab.report.figures.curves import by_optimizer, draw_curves, draw_learning, draw_shuffles
from egalitarian.lab.report.figures.spectra import draw_spectra
from egalitarian.lab.report.figures.style import add_legend, sparse
from egalitarian.lab.report.figures.weights import draw_distances, draw_trajectories
from egalitarian.lab.runs import Store

DRAWN = (draw_curves, draw_spectra, draw_distances, draw_trajectories)


METHODS = ("sgd", "egd", "egd-after")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_curves(Store(tmp_path_factory.mktemp("runs"))), ["addition-79", "addition-97", "addition-127"])


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def test_a_band_is_thin_and_keeps_its_ends() -> None:
    epochs = np.arange(1000.0)
    kept = sparse(epochs)
    assert (kept[0], kept[-1]) == (0, 999)
    assert len(kept) < 90


@pytest.mark.parametrize("draw", DRAWN)
def test_partial_runs_are_drawn_and_the_rest_is_noted(
    draw: Callable[..., Figure], gathered: Gathered, tmp_path: Path
) -> None:
    figure = draw(gathered, gathered.experiments[:2], METHODS)
    assert any("not run" in text for text in texts(figure))
    for path in save(figure, tmp_path / "figure"):
        slim(path)
        assert 1000 < path.stat().st_size < 300_000


@pytest.mark.parametrize("draw", DRAWN)
def test_nothing_run_is_a_figure_with_a_note(draw: Callable[..., Figure], tmp_path: Path) -> None:
    empty = gather(Store(tmp_path / "runs"), ["parity-2"])
    figure = draw(empty, empty.experiments, METHODS)
    assert "not run" in texts(figure)


def test_a_panel_per_experiment_with_its_title_threshold_and_log_epochs(gathered: Gathered) -> None:
    figure = draw_curves(gathered, gathered.experiments, METHODS)
    assert [axis.get_title() for axis in figure.axes] == ["Addition modulo 79", "Addition modulo 97", "Addition modulo 127"]
    assert {axis.get_xscale() for axis in figure.axes} == {"log"}
    (marks,) = [marks_of(figure.axes[1], "egd")]
    assert marks == [(61, 0.95)]


def marks_of(axis: Axes, method: str) -> list[tuple[float, float]]:
    marks = [
        line for line in axis.lines if line.get_marker() == look(method, [method]).marker and len(line.get_xdata()) == 1
    ]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in marks]


def test_the_remarks_count_the_seeds_that_pass(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([20, None]):
        write_run(store, "addition-97", "egd", seed, crossed)
    write_run(store, "addition-97", "sgd", 0, epochs=5)
    found = gather(store, ["addition-79", "addition-97"])
    figure = draw_curves(found, found.experiments, METHODS)
    assert legend_of(figure) == ["SGD", "EGD", "test (band: middle half of seeds)", "training"]
    below = [axis.get_xlabel().replace("\N{NO-BREAK SPACE}", " ").splitlines() for axis in figure.axes]
    assert below == [["epoch"], ["epoch", "SGD: 0 of 1 pass, unfinished", "EGD: 1 of 2 pass"]]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    """MNIST, with a full-length run, and shuffled labels."""
    store = Store(tmp_path_factory.mktemp("others"))
    for seed in range(3):
        write_run(store, "mnist", "egd", seed, 6, epochs=1000 if seed == 0 else None)
        write_run(store, "mnist", "adamw-decay", seed, 17)
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch: epoch % 25 / 25)
    return gather(store)


def test_learning_is_drawn_against_steps_and_goes_on_with_the_full_length_run(others: Gathered) -> None:
    figure = draw_learning(others, others.named_in(["mnist"]), ("adamw", "egd", "adamw-decay"))
    accuracy, loss = figure.axes
    assert (accuracy.get_xlabel(), accuracy.get_ylabel(), loss.get_ylabel()) == ("step", "accuracy", "loss")
    colour = look("egd", ("egd",)).colour
    lines = [line for line in accuracy.lines if line.get_color() == colour]
    marks = [line.get_xdata()[0] for line in lines if line.get_marker() == "s"]
    assert marks == [700], "through the seventh reading"
    ends = [(np.nanmin(line.get_xdata()), np.nanmax(line.get_xdata()), line.get_linewidth()) for line in lines]
    assert (1200, 100_000, 0.5) in ends, "alone from where the others have stopped"
    assert legend_of(figure) == [
        "EGD",
        "AdamW, the same decay",
        "test (band: middle half of seeds)",
        "training",
        "test, a full-length run alone",
    ]


def test_shuffled_labels_have_a_panel_for_each_optimizer_and_a_line_where_they_change(others: Gathered) -> None:
    experiments = others.named_in(["cifar-shuffle-1", "cifar-shuffle-3"])
    methods = ("adam", "adam-egd", "radam", "rmsprop")
    assert by_optimizer(experiments, methods) == [["adam", "adam-egd"], ["radam"], ["rmsprop"]]
    assert [changing(experiment) for experiment in experiments] == [[50], [25, 50, 75]]
    figure = draw_shuffles(others, experiments, methods)
    assert len(figure.axes) == 6
    drawn = figure.axes[3]
    assert list(drawn.lines[0].get_ydata()) == pytest.approx([epoch % 25 / 25 for epoch in range(100)]), "no epoch left out"
    assert [line.get_xdata()[0] for line in drawn.lines[1:]] == [26, 51, 76]
    assert texts(figure).count("not run") == 5
    assert [label.partition(" (")[0] for label in legend_of(figure)] == [
        "the optimizer alone",
        "with EGD",
        "labels shuffled",
    ]


@pytest.mark.parametrize("draw", [draw_learning, draw_shuffles])
def test_nothing_run_can_be_drawn(draw: Callable[..., Figure], tmp_path: Path) -> None:
    found = gather(Store(tmp_path))
    figure = draw(found, found.named_in(["mnist"]), ("adamw", "egd"))
    assert "not run" in texts(figure)
    save(figure, tmp_path / "figure")


@pytest.mark.parametrize("draw", DRAWN)
def test_the_legend_lists_what_is_drawn_and_a_panel_lists_what_it_lacks(
    draw: Callable[..., Figure], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-79", "egd", 0, 20)
    write_run(store, "addition-97", "egd", 0, 20)
    write_run(store, "addition-97", "sgd", 0, 30)
    found = gather(store, ["addition-79", "addition-97"])
    figure = draw(found, found.experiments, METHODS)
    assert legend_of(figure)[:2] == ["SGD", "EGD"]
    assert not any("decay after" in label for label in legend_of(figure))
    if draw is not draw_spectra:  # that has a panel of its own for each method
        assert figure.axes[-2].get_xlabel().endswith("\nnot run:\nSGD")
        assert "not run" not in figure.axes[-1].get_xlabel()


@styled
def test_a_legend_stays_within_its_figure_however_long_its_words() -> None:
    figure = Figure(figsize=(4, 3), layout="constrained")
    add_legend(figure, {"first": "word " * 40, "second": "short"}, ["first", "second"])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


@pytest.mark.parametrize("draw", DRAWN)
def test_a_method_that_diverged_at_once_does_not_take_others_along(draw: Callable[..., Figure], tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "addition-97", "egd", 0, 20)
    write_run(store, "addition-97", "sgd", 0, epochs=1, diverged=True)
    found = gather(store, ["addition-97"])
    assert len(found.runs) == 2
    figure = draw(found, found.experiments, ("sgd", "egd"))
    colour = look("egd", ("sgd", "egd")).colour
    assert any(line.get_color() == colour for axis in figure.axes for line in axis.lines)
    save(figure, tmp_path / "figure")


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


def test_the_legend_has_the_colours_of_the_lines() -> None:
    figure, methods = Figure(), ["first", "second"]
    add_legend(figure, {"second": "Second"}, methods)
    (handle,) = figure.legends[0].legend_handles
    assert isinstance(handle, Line2D)
    assert handle.get_color() == look("second", methods).colour != look("first", methods).colour


def test_spectra_are_of_the_first_methods_that_were_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("egd-rsvd-64", "egd-after", "row-norm", "egd-rsvd-128"):
        write_run(store, "addition-97", method, 0, 20)
    found = gather(store, ["addition-97"])
    figure = draw_spectra(found, found.experiments, tuple(found.experiments[0].methods))
    assert "not run" not in texts(figure)
    assert len(figure.axes) == 4


def test_spectra_have_methods_that_treat_the_gradient_otherwise_and_titles_that_do_not_meet(tmp_path: Path) -> None:
    store, methods = Store(tmp_path), tuple(catalog.load("full-cifar").methods)
    for method in methods:
        write_run(store, "full-cifar", method, 0, 20)
    found = gather(store, ["full-cifar"])
    figure = draw_spectra(found, found.experiments, methods)
    assert any("EGD" in title for title in legend_of(figure))
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_where_no_accuracy_is_waited_for_the_mark_is_at_the_end_of_the_line(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "full-cifar", "adam-1e-3", 0, 20)
    found = gather(store, ["full-cifar"])
    axis = draw_curves(found, found.experiments, ("adam-1e-3",)).axes[0]
    line, mark = axis.lines[-2:]
    assert (mark.get_xdata()[-1], mark.get_ydata()[-1]) == (line.get_xdata()[-1], line.get_ydata()[-1])
    assert mark.get_marker() == look("adam-1e-3", ("adam-1e-3",)).marker


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]
