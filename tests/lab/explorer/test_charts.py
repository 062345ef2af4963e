"""Charts as values: what is drawn, in colours that can be seen, and sent as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egalitarian.lab.config import load, load_looks
from egalitarian.lab.explorer import charts
from egalitarian.lab.explorer.charts import CONTRAST, DARK, LIGHT, Ink
from egalitarian.lab.explorer.session import WatchedRuns
from egalitarian.lab.explorer.toy import KNOBS, simulate
from egalitarian.lab.explorer.watched import Watched
from egalitarian.lab.runs import Request
from egalitarian.lab.theory import ShiftedProblem

inks = pytest.mark.parametrize("ink", [LIGHT, DARK], ids=["light", "dark"])


def run(method: str = "egd", **more: Any) -> Watched:
    one = Watched(Request("addition-97", method, (0,), "cpu", 1, Path("runs"), **more))
    points = [[0, 0.5, 0.25], [1, None, 0.5]]
    one.take({"kind": "begins", "epoch": 0, "budget": 30, "threshold": 0.95, "points": points})
    return one


def contrast(one: str, other: str) -> float:
    return charts.contrast(*([float(int(colour[at : at + 2], 16)) for at in (1, 3, 5)] for colour in (one, other)))


@inks
def test_every_colour_can_be_seen(ink: Ink) -> None:
    looks = load_looks()
    colours = (
        {look.colour for look in looks.methods.values()} | set(looks.cycle) | {each.colour for each in looks.toy.values()}
    )
    for colour in colours:
        assert contrast(charts.readable(colour, ink.paper), ink.paper) >= CONTRAST
    assert contrast(ink.text, ink.paper) >= CONTRAST
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@inks
def test_runs_have_colours_and_names_of_their_own(ink: Ink) -> None:
    runs = [run(), run("sgd"), run(values={"optim.lr": 2.0}), run("row-norm"), run("muon")]
    assert len(set(charts.colours_of(runs, ink))) == len(runs)
    title = load("addition-97").method("egd").title
    names = [each.name for each in charts.drawn(runs, ink)]
    assert len(set(names)) == len(runs)
    assert names[0] == f"{title} 1"
    assert names[2] == f"{title} 2"


def test_accuracies_are_in_per_cent_of_epochs_trained() -> None:
    one = run()
    options = charts.accuracy([one], LIGHT, logarithmic=True)
    test, train = options["series"]
    assert test["data"] == [[1, 25.0], [2, 50.0]]
    assert train["data"] == [[1, 50.0], [2, None]]
    assert train["lineStyle"]["type"] == "dotted"
    assert [mark["yAxis"] for mark in test["markLine"]["data"]] == [95]
    assert [line["data"] for line in charts.newest(one)] == [test["data"], train["data"]]
    assert [line["id"] for line in charts.newest(one)] == [test["id"], train["id"]]
    assert options["animation"] is False  # for those who want less motion, and cheaper
    assert charts.accuracy([one], LIGHT, logarithmic=False)["xAxis"]["type"] == "value"


def test_changes_are_marked_in_words() -> None:
    one = run()
    values = {"transform": [], "until": None, "optim.lr": 0.5, "hidden.weight_decay": 1e-4}
    one.take({"kind": "recording", "path": "x", "epoch": 7, "values": values})
    marks = charts.accuracy([one], LIGHT, logarithmic=True)["series"][0]["markLine"]["data"]
    assert (marks[0]["xAxis"], marks[0]["label"]["formatter"]) == (8, "EGD off, lr 0.5, weight decay 0.0001")
    assert charts.change_text({"transform": [{"name": "polar"}]}) == "EGD on"
    assert charts.drawn([one], LIGHT)[0].name.endswith(" (recording)")


def test_measures_of_the_moment() -> None:
    one, other = run(), run("sgd")
    one.singular_values, one.fourier = [(1, 0.5), (2, 0.0), (3, 0.25)], [0.75, None, 0.25]
    spectrum = charts.spectrum([one, other], LIGHT)["series"]
    assert [line["data"] for line in spectrum] == [[[1, 0.5], [3, 0.25]], []]  # zero is not on a logarithmic axis
    fourier = charts.fourier([one, other], LIGHT)
    assert [bar["data"] for bar in fourier["series"]] == [[75.0, None, 25.0]]
    assert fourier["xAxis"]["data"] == ["1", "2", "3"]


def test_a_path_ends_in_a_dot_and_has_no_noise() -> None:
    session = WatchedRuns()
    one = run()
    session.runs.append(one)
    assert charts.path(session.plane(), [one], LIGHT)["series"][0]["data"] == []
    one.path = [(0, np.array([1.0, 1.0, 0.0])), (1, np.array([2.0, 2.0, 0.0]))]  # on a line
    (line,) = charts.path(session.plane(), [one], LIGHT)["series"]
    assert len(line["data"]) == 3
    assert line["data"][-1]["symbolSize"] == 10
    assert [point[1] for point in line["data"][:-1]] == [0.0, 0.0]


@inks
def test_every_chart_is_json_also_without_runs(ink: Ink) -> None:
    for runs in ([], [run(), run("sgd")]):
        for options in (
            charts.accuracy(runs, ink, logarithmic=True),
            charts.spectrum(runs, ink),
            charts.fourier(runs, ink),
            charts.path(None, runs, ink),
        ):
            json.dumps(options, allow_nan=False)
            assert options["aria"]["label"]["description"]


def test_the_toy_problem_has_theory_simulation_and_plateaus() -> None:
    lines = simulate(**{knob.name: knob.value(knob.start) for knob in KNOBS})
    assert set(lines) == {"GD", "EGD"}
    assert lines["GD"].plateau > 10 * lines["EGD"].plateau
    for own in lines.values():
        assert all(error == 1 for step, error in own.theory if step < own.plateau - 1)
        assert next(error for step, error in own.theory if step > own.plateau + 1) < 1
        assert [step for step, _ in own.simulation] == sorted(step for step, _ in own.simulation)
    options = charts.toy_errors(lines, {"GD": "#0072B2", "EGD": "#E69F00"}, LIGHT)
    json.dumps(options, allow_nan=False)
    assert [set(each) - {"data", "id", "markLine"} for each in charts.data_alone(options)["series"]] == [set()] * 4


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
@pytest.mark.parametrize("end", ["low", "high"])
def test_the_ends_of_every_slider_are_shown_or_refused_in_words(knob: Any, end: str) -> None:
    values = {each.name: each.value(each.start) for each in KNOBS} | {knob.name: knob.value(getattr(knob, end))}
    diverges = values["eta"] >= 2 / ShiftedProblem(values["eps"], values["theta"] * math.pi, values["s"], 0.01).m2
    if diverges:
        with pytest.raises(ValueError, match="eta must be in"):
            simulate(**values)
    else:
        assert all(math.isfinite(own.plateau) for own in simulate(**values).values())


def test_a_setting_that_diverges_is_the_theorys_own_error() -> None:
    values = {knob.name: knob.value(knob.start) for knob in KNOBS}
    with pytest.raises(ValueError, match=r"eta must be in \(0, 0\.18"):
        simulate(**{**values, "s": 3.0, "eta": 0.5})
