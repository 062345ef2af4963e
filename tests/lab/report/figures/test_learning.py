"""Accuracy and loss by step: steps are those of the tables, and a full-length run goes on alone."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.report.figures.learning import draw_learning
from egalitarian.lab.report.figures.style import looks_of
from egalitarian.lab.runs import Store

METHODS = ("adamw", "egd", "adamw-decay")


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> Figure:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(3):
        write_run(store, "mnist", "egd", seed, 6, epochs=1000 if seed == 0 else None)
        write_run(store, "mnist", "adamw-decay", seed, None if seed else 17)
    found = gather(store, ["mnist"])
    return draw_learning(found, found.experiments, METHODS)


def test_steps_are_counted_through_the_epoch_that_passes(figure: Figure) -> None:
    accuracy, loss = figure.axes
    assert (loss.get_xlabel(), accuracy.get_ylabel(), loss.get_ylabel()) == ("step", "accuracy", "test loss")
    assert [line.get_xdata()[0] for line in accuracy.lines if line.get_marker() == "s"] == [700], "the seventh reading"
    assert {"EGD: 700", "threshold\n85 %", "chance\n10 %"} <= {text.get_text() for text in accuracy.texts}


def test_a_full_length_run_goes_on_alone_and_loss_ends_at_the_median(figure: Figure) -> None:
    accuracy, loss = figure.axes
    colour = looks_of([], METHODS)["egd"].colour
    thin = [line for line in accuracy.lines if line.get_color() == colour and line.get_alpha() == 0.5]
    assert [(line.get_xdata()[0], line.get_xdata()[-1]) for line in thin if len(line.get_xdata())] == [(1200, 100_000)]
    (test,) = [line for line in loss.lines if line.get_color() == colour]
    assert np.nanmax(test.get_xdata()) == 700


def test_a_method_of_which_some_seeds_fail_has_no_band(figure: Figure) -> None:
    accuracy, loss = figure.axes
    assert len(accuracy.collections) == len(loss.collections) == 1, "of EGD alone"
    assert any(text.get_text() == "AdamW, the same decay: 1 of 3" for text in accuracy.texts)
