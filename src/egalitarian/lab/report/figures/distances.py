"""How far the weights move: distance from the start and norm of all weights, against epochs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egalitarian.lab.analysis import Gathered, band, estimate
from egalitarian.lab.config import Experiment
from egalitarian.lab.report.figures.lines import (
    add_legend,
    add_remarks,
    draw_band,
    list_missing,
    mark,
    new_figure,
    note,
    panel_title,
    titles_of,
)
from egalitarian.lab.report.figures.style import look, styled

MEASURES = {"distance": "distance from start", "weight_norm": "norm of weights"}
"""Columns of the curves, with the labels of their axes."""
CAPTION = (
    "Euclidean norms over all parameters. Lines are medians over the seeds still in training, bands the middle half of "
    "them. A line ends when half of the seeds have stopped, soon after passing the threshold. The mark is the median epoch "
    "of passing. The axis counts epochs from 1."
)


@styled
def draw_distances(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One column per experiment, one row per measure."""
    figure = new_figure(len(experiments), 3.6)
    axes = figure.subplots(len(MEASURES), len(experiments), sharex="col", squeeze=False)
    for column, experiment in zip(axes.T, experiments, strict=True):
        shown = gathered.methods_run(experiment.name, methods)
        for axis, measure in zip(column, MEASURES, strict=True):
            for method in shown:
                _draw_method(axis, gathered, experiment, method, measure, methods)
            axis.set_xscale("log")
        column[0].set_ylim(bottom=0)
        if not shown:
            note(column[0], "not run")
        column[0].set_title(panel_title(experiment.title, len(experiments)))
        column[-1].set_xlabel("epoch")
    for axis, label in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(label)
    figure.align_ylabels(axes[:, 0])
    titles = titles_of(gathered, experiments, methods)
    add_remarks(axes[-1], [list_missing(gathered, experiment, titles) for experiment in experiments])
    add_legend(figure, titles, methods)
    return figure


def _draw_method(
    axis: Axes, gathered: Gathered, experiment: Experiment, method: str, measure: str, methods: Sequence[str]
) -> None:
    found, own = band(gathered, experiment.name, method, measure), look(method, methods)
    draw_band(axis, found, own.colour)
    passing = estimate(gathered.of(experiment.name, method)).median
    if passing is not None and not passing.sign and found.known.any():
        mark(axis, passing.value + 1, found.at(passing.value), own)
