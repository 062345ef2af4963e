"""Interactive figures: the numbers and looks of the static ones, thinned by a rule, as JSON that a page can hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from report_records import write_accuracies, write_curves, write_run

from egalitarian.lab.analysis import Gathered, band, cost_of, gather
from egalitarian.lab.config import load_contents
from egalitarian.lab.report.charts import CHARTS, Arrays, Chart, Detail, chart_json
from egalitarian.lab.report.charts.parts import rounded, thin
from egalitarian.lab.report.figures import FIGURES, looks_of
from egalitarian.lab.runs import Store

FULL = Detail(10_000, 10_000)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    store = write_accuracies(write_curves(Store(tmp_path_factory.mktemp("runs"))))
    write_run(store, "addition-97", "row-norm", 0, epochs=30, diverged=True)
    return gather(store)


def chart(gathered: Gathered, name: str) -> Chart:
    plan = next(plan for plan in load_contents().figures if plan.name == name)
    experiments = gathered.named_in(plan.experiments)
    run = [method for method in plan.methods if any(gathered.of(each.name, method) for each in experiments)]
    return CHARTS[plan.kind](gathered, experiments, run)


def test_every_kind_of_figure_has_a_chart_but_pictures_of_colours() -> None:
    assert CHARTS.keys() | {"fourier"} == FIGURES.keys()


@pytest.mark.parametrize(
    "plan", [plan for plan in load_contents().figures if plan.kind != "toy"], ids=lambda plan: plan.name
)
def test_every_figure_of_the_paper_is_json_without_nan(gathered: Gathered, plan: object) -> None:
    made = chart(gathered, plan.name)  # type: ignore[attr-defined]
    arrays = Arrays()
    text = json.dumps([chart_json(made, arrays, FULL), arrays.arrays], allow_nan=False)
    assert text
    for panel in chart_json(made, arrays, FULL)["panels"]:
        for line in panel["lines"]:
            assert len(arrays.arrays[line["x"]]) == len(arrays.arrays[line["y"]])
            assert all(len(arrays.arrays[line["x"]]) == len(arrays.arrays[each]) for low, high, _ in line.get("b", ())
                       for each in (low, high))  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "panel", "experiment", "method", "measure", "hold"),
    [
        ("figure-1-addition", 1, "addition-97", "egd", "test_accuracy", True),
        ("figure-16-addition-distance", 2, "addition-97", "sgd", "distance", False),
        ("figure-14-non-stationarity", 2, "cifar-shuffle-3", "adam", "train_accuracy", False),
        ("figure-10-mnist", 1, "mnist", "adamw-decay", "test_loss", False),
    ],
)
def test_medians_and_bands_are_those_of_analysis(
    gathered: Gathered, figure: str, panel: int, experiment: str, method: str, measure: str, hold: bool
) -> None:
    made, arrays = chart(gathered, figure), Arrays()
    found = chart_json(made, arrays, FULL)["panels"][panel]
    place = list(made.titles).index(method)
    (line,) = [each for each in found["lines"] if each["m"] == place and each["r"] == "median"]
    expected = band(gathered, experiment, method, measure, hold=hold)
    values = {epoch: tuple(map(rounded, row)) for epoch, *row in zip(*expected, strict=True)}
    low, high, _ = line["b"][0]
    columns = [arrays.arrays[each] for each in (line["x"], line["y"], low, high)]
    assert len(columns[0]) > 10
    for epoch, *row in zip(*columns, strict=True):
        assert tuple(row) == values[epoch]


def test_seconds_are_epochs_at_their_median_cost(gathered: Gathered) -> None:
    found = chart_json(chart(gathered, "figure-1-addition"), Arrays(), FULL)
    cost = cost_of(gathered.of("addition-97", "egd"))
    assert cost is not None
    assert found["units"] == [["epoch", "Epochs"], ["seconds", "Seconds"]]
    assert found["panels"][1]["ms"][1] == rounded(cost.ms_per_epoch)
    assert cost.platform in chart(gathered, "figure-1-addition").clock_note


def test_methods_look_as_in_the_static_figure(gathered: Gathered) -> None:
    made = chart(gathered, "figure-11-mnist-ranks")
    assert made.looks == looks_of(gathered.named_in(["mnist"]), list(made.titles))
    first = chart_json(made, Arrays(), FULL)["methods"][0]
    assert (first["colour"], first["line"]) == (made.looks["egd"].colour, made.looks["egd"].line)


def test_a_line_keeps_its_ends_its_crossing_and_about_as_many_points_as_it_may() -> None:
    epochs = np.unique(np.round(np.geomspace(1, 6000, 290))) - 1
    crossing = 1234.0
    kept = epochs[thin(epochs, 40, [crossing])]
    assert 30 <= len(kept) <= 44
    assert {epochs[0], epochs[-1]} <= set(kept)
    after = np.searchsorted(epochs, crossing)
    assert {epochs[after], epochs[after - 1]} <= set(kept)
    assert list(thin(epochs[:40], 40)) == list(range(40))


def test_what_is_no_number_interrupts_a_line_and_numbers_have_few_digits() -> None:
    arrays = Arrays()
    place = arrays.add(np.array([0.123456, math.nan, math.inf, 12.0, 123456.0]))
    assert arrays.arrays[place] == [0.1235, None, None, 12, 123456]
    assert arrays.add(np.array([0.123456, math.nan, math.inf, 12.0, 123456.0])) == place, "once"


def test_single_seeds_are_left_out_of_a_page_that_would_be_too_large(gathered: Gathered) -> None:
    made = chart(gathered, "figure-1-addition")
    whole, less = (chart_json(made, Arrays(), Detail(50, seeds)) for seeds in (50, 0))
    assert (whole["seeds"], less["seeds"]) == ([0, 1, 2], [])
    assert not any("s" in line for panel in less["panels"] for line in panel["lines"])


def test_the_methods_of_a_clock_note_are_named_by_platform(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = Store(tmp_path_factory.mktemp("runs"))
    write_run(store, "addition-97", "sgd", 0, 30)
    write_run(store, "addition-97", "egd", 0, 20, hardware="another", together=1)
    made = chart(gather(store), "figure-1-addition")
    assert "They are of several platforms and cannot be compared" in made.clock_note
    panels = tuple(replace(panel, clock={}) for panel in made.panels)
    assert replace(made, panels=panels).clock_note == ""
