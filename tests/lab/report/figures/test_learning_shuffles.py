"""Shuffled labels: a panel for each optimizer, and a line where labels change."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_records import write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import changing
from egalitarian.lab.report.figures.learning import by_optimizer, draw_shuffles
from egalitarian.lab.runs import Store


def test_a_panel_for_each_optimizer_and_a_line_where_labels_change(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch: epoch % 25 / 25)
    found = gather(store)
    experiments = found.named_in(["cifar-shuffle-1", "cifar-shuffle-3"])
    methods = ("adam", "adam-egd", "radam", "rmsprop")
    assert by_optimizer(experiments, methods) == [["adam", "adam-egd"], ["radam"], ["rmsprop"]]
    assert [changing(experiment) for experiment in experiments] == [[50], [25, 50, 75]]
    figure = draw_shuffles(found, experiments, methods)
    assert len(figure.axes) == 6
    drawn = figure.axes[3]
    assert list(drawn.lines[0].get_ydata()) == pytest.approx([epoch % 25 / 25 for epoch in range(100)]), "no epoch left out"
    assert [line.get_xdata()[0] for line in drawn.lines[1:]] == [25, 50, 75], "epochs count from 0"
    said = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert said.count("not run") == 5
    assert "labels shuffled\n3 times" in said
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["the optimizer alone", "with EGD", "middle half of the seeds"]
