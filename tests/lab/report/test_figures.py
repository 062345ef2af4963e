"""Figures: what is drawn has known values, and nothing crashes for want of runs."""

from __future__ import annotations

import re
import xml.dom.minidom
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from report_records import SPECTRUM, write_run

from egalitarian.lab.analysis.gather import Gathered, gather
from egalitarian.lab.analysis.reading import is_kept
from egalitarian.lab.config import catalog
from egalitarian.lab.config.contents import changing, load_contents
from egalitarian.lab.report.figures.curves import draw_curves
from egalitarian.lab.report.figures.distances import draw_distances
from egalitarian.lab.report.figures.learning import draw_learning
from egalitarian.lab.report.figures.lines import LOOKS, band, legend, look, sparse
from egalitarian.lab.report.figures.shuffles import by_optimizer, draw_shuffles
from egalitarian.lab.report.figures.slim import slim
from egalitarian.lab.report.figures.spectra import draw_spectra, fan
from egalitarian.lab.report.figures.style import save, styled
from egalitarian.lab.report.figures.trajectories import common_seed, draw_trajectories, project
from egalitarian.lab.runs.store import Store
from egalitarian.lab.training.metrics import is_snapshot

DRAWN = (draw_curves, draw_spectra, draw_distances, draw_trajectories)
METHODS = ("sgd", "egd", "egd-after")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed, crossed in enumerate([20, 60, 100]):
        write_run(store, "addition-97", "egd", seed, crossed)
    for seed in (1, 2):
        write_run(store, "addition-97", "sgd", seed, 300)
    write_run(store, "addition-79", "egd", 0, epochs=0)
    write_run(store, "addition-127", "egd", 0, epochs=1)
    return gather(store, ["addition-79", "addition-97", "addition-127"])


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.texts]


def curves_of(gathered: Gathered, method: str) -> pd.DataFrame:
    return gathered.curves[(gathered.curves.experiment == "addition-97") & (gathered.curves.method == method)]


def test_a_seed_that_has_passed_stays_passed_and_the_line_ends_with_half_of_them(gathered: Gathered) -> None:
    found = band(curves_of(gathered, "egd"), gathered.of("addition-97", "egd"), "test_accuracy", hold=True)
    at = dict(zip(found.epochs.astype(int), zip(found.low, found.middle, found.high, strict=True), strict=True))
    assert at[19][1] < 0.95
    assert at[61][1] > 0.95, "the median seed has passed, though the slow one is all that is left"
    last = found.epochs[np.isfinite(found.middle)][-1]
    assert 60 < last <= 65, "the median seed stops at 65"
    assert found.epochs[np.isfinite(found.low)][-1] > 100


def test_without_hold_only_seeds_in_training_count(gathered: Gathered) -> None:
    found = band(curves_of(gathered, "egd"), gathered.of("addition-97", "egd"), "distance")
    held = dict(zip(found.epochs.astype(int), found.high, strict=True))
    assert held[94] == pytest.approx(10 * np.log1p(94))


def test_a_band_is_thin_and_keeps_its_ends() -> None:
    epochs = np.arange(1000.0)
    kept = sparse(epochs)
    assert (kept[0], kept[-1]) == (0, 999)
    assert len(kept) < 90


def test_the_fan_is_the_spectrums_quantiles(gathered: Gathered) -> None:
    epochs, quantiles = fan(gathered.snapshots("addition-97", "egd"))
    assert list(epochs[:4]) == [0, 1, 2, 3]
    assert epochs[-1] == 63, "after that fewer than half of the seeds are left"
    values = np.geomspace(0.1, 0.0005, SPECTRUM)
    assert quantiles[0] == pytest.approx(np.quantile(values, (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)), rel=1e-5)


def test_the_fan_leaves_rounding_noise_out() -> None:
    spectrum = np.array([1.0, 0.5, 1e-9])
    _, quantiles = fan(pd.DataFrame({"seed": [0], "epoch": [0], "singular_values": [spectrum]}))
    assert quantiles[0, 0] == 0.5


def test_the_plane_of_flat_paths_is_theirs() -> None:
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 2)))[0].T
    flat = {"a": np.array([[1.0, 0.0], [2.0, 1.0]]), "b": np.array([[0.0, 3.0], [1.0, 4.0], [2.0, 8.0]])}
    plane = project({name: (np.arange(float(len(points))), points @ basis) for name, points in flat.items()})
    assert plane.shares.sum() == pytest.approx(1)
    for name, points in flat.items():
        path = plane.paths[name]
        assert path.epochs[0] == -1
        steps = np.linalg.norm(np.diff(path.points, axis=0), axis=1)
        assert steps == pytest.approx(np.linalg.norm(np.diff(np.vstack([[0, 0], points]), axis=0), axis=1))
    assert plane.paths["a"].points[0] == pytest.approx(plane.paths["b"].points[0])


def test_a_run_that_has_not_moved_has_a_plane() -> None:
    plane = project({"a": (np.array([0.0]), np.zeros((1, 5)))})
    assert plane.shares.tolist() == [0, 0]


def test_trajectories_are_of_a_seed_that_all_methods_have(gathered: Gathered) -> None:
    assert common_seed(gathered, "addition-97", ["sgd", "egd"]) == 1
    assert common_seed(gathered, "addition-97", []) is None


@pytest.mark.parametrize("draw", DRAWN)
def test_partial_runs_are_drawn_and_the_rest_is_said(
    draw: Callable[..., Figure], gathered: Gathered, tmp_path: Path
) -> None:
    figure = draw(gathered, gathered.experiments[:2], METHODS)
    assert any("not run" in text for text in texts(figure))
    for path in save(figure, tmp_path / "figure"):
        slim(path)
        assert 1000 < path.stat().st_size < 300_000


@pytest.mark.parametrize("draw", DRAWN)
def test_nothing_run_is_a_figure_that_says_so(draw: Callable[..., Figure], tmp_path: Path) -> None:
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
    marks = [line for line in axis.lines if line.get_marker() == LOOKS[method].marker and len(line.get_xdata()) == 1]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in marks]


def test_the_legend_says_how_many_pass(tmp_path: Path) -> None:
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
def test_the_legend_lists_what_is_drawn_and_a_panel_says_what_it_lacks(draw: Callable[..., Figure], tmp_path: Path) -> None:
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


@pytest.mark.parametrize("count", [3, 7, 12, 30])
def test_methods_the_lab_does_not_know_differ_however_many(count: int) -> None:
    methods = ["egd", "row-norm", *(f"own-{place}" for place in range(count))]
    assert len({look(method, methods).colour for method in methods}) == len(methods)
    assert look("own-0", methods).marker != look("own-1", methods).marker
    alike = ["sgd", "adam", "adamw", "egd-rsvd-40", "egd-rsvd-128", *methods]
    assert len({look(method, alike).colour for method in alike}) == len(alike)


@styled
def test_a_legend_stays_within_its_figure_however_long_its_words() -> None:
    figure = Figure(figsize=(4, 3), layout="constrained")
    legend(figure, {"first": "word " * 40, "second": "short"}, ["first", "second"])
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


def test_many_colours_are_none_that_a_known_method_nearly_has() -> None:
    methods = [*catalog.load("addition-97").methods, *(f"own-{place}" for place in range(8))]
    colours = [to_rgb(look(method, methods).colour) for method in methods]
    apart = [np.linalg.norm(np.subtract(one, other)) for place, one in enumerate(colours) for other in colours[:place]]
    assert min(apart) > 0.1


def test_the_legend_has_the_colours_of_the_lines() -> None:
    figure, methods = Figure(), ["first", "second"]
    legend(figure, {"second": "Second"}, methods)
    (handle,) = figure.legends[0].legend_handles
    assert isinstance(handle, Line2D)
    assert handle.get_color() == look("second", methods).colour != look("first", methods).colour


def test_slim_pictures_keep_the_colour_of_bands(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 3))
    axis = figure.subplots()
    for place, name in enumerate(LOOKS):
        axis.fill_between([0, 1], place, place + 1, color=LOOKS[name].colour, alpha=0.2, linewidth=0)
        axis.plot(np.linspace(0, 1), 16 * np.random.default_rng(place).random(50), color=LOOKS[name].colour, linewidth=0.5)
    png = save(figure, tmp_path / "figure")[0]
    before = np.array(Image.open(png).convert("RGB")).astype(int)
    slim(png)
    after = np.array(Image.open(png).convert("RGB")).astype(int)
    colours, counts = np.unique(before.reshape(-1, 3), axis=0, return_counts=True)
    for colour in colours[counts > 500]:
        assert np.abs(after[(before == colour).all(-1)] - colour).max() <= 3


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


def test_every_snapshot_is_drawn() -> None:
    """On a GPU a run has spectra of these epochs alone: a condition number that is thinned out of them would end early."""
    assert all(is_kept(epoch) for epoch in range(20_000) if is_snapshot(epoch))


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


def test_no_two_methods_of_a_figure_look_alike() -> None:
    for plan in load_contents().figures:
        own = [look(method, plan.methods) for method in plan.methods]
        assert len({drawn.colour for drawn in own}) == len(own), plan.name
        assert len({drawn.marker for drawn in own}) >= len(own) - 2, plan.name


def test_every_method_of_the_lab_has_its_look() -> None:
    for name in catalog.names():
        assert set(catalog.load(name).methods) <= set(LOOKS)


def test_unknown_methods_take_colours_in_turn() -> None:
    first, second = look("mine", ["sgd", "mine", "yours"]), look("yours", ["sgd", "mine", "yours"])
    assert first.colour != second.colour


def test_slim_svg_is_well_formed_and_has_only_ids_that_are_used(gathered: Gathered, tmp_path: Path) -> None:
    svg = save(draw_distances(gathered, gathered.experiments[1:2], METHODS), tmp_path / "figure")[1]
    before = len(svg.read_text())
    slim(svg)
    text = svg.read_text()
    assert len(text) < 0.7 * before
    xml.dom.minidom.parseString(text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) == set(ids)
    assert len(ids) == len(set(ids))
