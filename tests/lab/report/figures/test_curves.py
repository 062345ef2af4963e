"""Curves: what is drawn has known values; where only some seeds pass, shares are drawn instead of accuracies."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_records import write_run

from egalitarian.lab.analysis import Gathered, gather
from egalitarian.lab.config import catalog
from egalitarian.lab.report.figures.curves import draw_curves
from egalitarian.lab.report.figures.style import looks_of
from egalitarian.lab.runs import Store

METHODS = ("sgd", "egd", "egd-after")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(3):
        write_run(store, "addition-97", "egd", seed, 50 + 10 * seed)
        write_run(store, "addition-97", "sgd", seed, 300)
    return gather(store, ["addition-79", "addition-97", "addition-127"])


def names(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def marks_of(axis: Axes, marker: str) -> list[tuple[float, float]]:
    """The single points with this marker."""
    found = [line for line in axis.lines if line.get_marker() == marker and len(line.get_xydata()) == 1]
    return [(float(line.get_xydata()[0][0]), float(line.get_xydata()[0][1])) for line in found]


def mixed(tmp_path: Path) -> Figure:
    store = Store(tmp_path)
    for seed, crossed in enumerate([20, 60, None, None]):
        write_run(store, "parity-3", "egd", seed, crossed)
    for seed in range(4):
        write_run(store, "parity-3", "row-norm", seed, 90 + seed)
    found = gather(store, ["parity-3"])
    return draw_curves(found, found.experiments, ("sgd", "egd", "row-norm"))


def test_a_panel_per_experiment_with_its_title_and_one_axis_of_epochs_from_0(gathered: Gathered) -> None:
    figure = draw_curves(gathered, gathered.experiments, METHODS)
    assert [axis.get_title("left") for axis in figure.axes] == [
        "Addition modulo 79", "Addition modulo 97", "Addition modulo 127"
    ]  # fmt: skip
    assert {(axis.get_xscale(), axis.get_xlim()[0]) for axis in figure.axes} == {("symlog", 0.0)}
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "", "epoch"], "and no caption in it"


def test_a_name_has_the_median_epoch_and_the_mark_is_on_the_line_there(gathered: Gathered) -> None:
    axis = draw_curves(gathered, gathered.experiments, METHODS).axes[1]
    ((x, y),) = marks_of(axis, "s")
    assert x == 60
    line = next(line for line in axis.lines if line.get_color() == "#D55E00" and len(line.get_xydata()) > 2)
    assert any(tuple(point) == (x, pytest.approx(y)) for point in axis.lines[axis.lines.index(line) + 1].get_xydata())
    assert {"EGD: 60", "SGD: 300", "threshold\n95 %", "chance\n1 %"} <= set(names(axis))


def test_where_some_seeds_of_a_method_pass_the_share_that_has_passed_is_drawn(tmp_path: Path) -> None:
    (axis,) = mixed(tmp_path).axes
    assert axis.get_ylabel() == "seeds past 95 %"
    egd = next(line for line in axis.lines if line.get_color() == "#D55E00" and line.get_drawstyle() == "steps-post")
    assert egd.get_xydata().tolist() == [[0, 0], [20, 0.25], [60, 0.5], [1499, 0.5]]
    assert {"EGD: 2 of 4", "row norm: 91.5"} == set(names(axis))
    assert marks_of(axis, "^") == [(91.5, 0.5)], "the median of a method is where half of its seeds have passed"


def test_seeds_that_all_pass_but_far_apart_are_shares_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([100, 200, 600]):
        write_run(store, "parity-3", "egd", seed, crossed)
    found = gather(store, ["parity-3"])
    (axis,) = draw_curves(found, found.experiments, ("egd",)).axes
    assert axis.get_ylabel() == "seeds past 95 %"
    assert marks_of(axis, "s") == [(200, 0.5)]


def test_a_method_none_of_whose_seeds_pass_keeps_its_accuracy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "parity-3", "egd", 0, 20)
    write_run(store, "parity-3", "sgd", 0, epochs=12000)
    found = gather(store, ["parity-3"])
    (axis,) = draw_curves(found, found.experiments, ("sgd", "egd")).axes
    assert axis.get_ylabel() == "accuracy"
    assert {"SGD: 0 of 1", "EGD: 20", "chance\n50 %"} <= set(names(axis))
    assert 0.4 < axis.get_ylim()[0] < 0.5, "the axis begins at chance, not at 0"


def test_without_a_threshold_names_are_at_the_ends_of_lines(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "full-cifar", "adam-1e-3", 0, 20)
    found = gather(store, ["full-cifar"])
    (axis,) = draw_curves(found, found.experiments, ("adam-1e-3",)).axes
    (name,) = axis.texts
    assert name.get_text() == "Adam, lr 1e-3"
    assert name.xy[0] == axis.get_xlim()[1]
    assert axis.get_xscale() == "linear", "twenty epochs are few"


def test_of_many_methods_a_few_have_curves(tmp_path: Path) -> None:
    store, order = Store(tmp_path), catalog.load("order")
    for number, method in enumerate(order.methods):
        write_run(store, "order", method, 0, 100 - 10 * number)
    found = gather(store, ["order"])
    (axis,) = draw_curves(found, found.experiments, tuple(order.methods)).axes
    titles = [order.method(name).title for name in ("egd-after", "egd-momentum-1e0", "momentum-egd-1e1")]
    assert {name.partition(":")[0] for name in names(axis) if ":" in name} == set(titles)


def test_dotted_is_training_and_the_family_gives_the_colour(gathered: Gathered) -> None:
    axis = draw_curves(gathered, gathered.experiments, METHODS).axes[1]
    dotted = {line.get_color() for line in axis.lines if line.get_linestyle() == ":"}
    assert dotted == {looks_of(gathered.experiments, METHODS)[name].colour for name in ("sgd", "egd")}
