"""How far the weights go: distance from the start and norm of all weights, against epochs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures.lines import (
    band,
    draw_band,
    labels,
    legend,
    look,
    mark,
    missing,
    new_figure,
    note,
    panel_title,
    present,
    say_below,
)
from egalitarian.lab.report.figures.style import styled

MEASURES = {"distance": "distance from start", "weight_norm": "norm of weights"}
CAPTION = (
    "Euclidean norms over all parameters. Lines are medians over the seeds still in training, bands the middle half of "
    "them. A line ends when half of the seeds have stopped, soon after passing the threshold. The mark is the median epoch "
    "of passing. The axis counts epochs from 1."
)


@styled
def draw_distances(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    figure = new_figure(len(experiments), 3.6)
    axes = figure.subplots(len(MEASURES), len(experiments), sharex="col", squeeze=False)
    for column, experiment in zip(axes.T, experiments, strict=True):
        shown = present(gathered, experiment, methods)
        for axis, measure in zip(column, MEASURES, strict=True):
            for method in shown:
                _line(axis, gathered, experiment, method, measure, methods)
            axis.set_xscale("log")
        column[0].set_ylim(bottom=0)
        if not shown:
            note(column[0], "not run")
        column[0].set_title(panel_title(experiment.title, len(experiments)))
        column[-1].set_xlabel("epoch")
    for axis, words in zip(axes[:, 0], MEASURES.values(), strict=True):
        axis.set_ylabel(words)
    figure.align_ylabels(axes[:, 0])
    titles = labels(gathered, experiments, methods)
    say_below(axes[-1], [missing(gathered, experiment, titles) for experiment in experiments])
    legend(figure, titles, methods)
    return figure


def _line(
    axis: Axes, gathered: Gathered, experiment: Experiment, method: str, measure: str, methods: Sequence[str]
) -> None:
    seeds = gathered.of(experiment.name, method)
    found = band(gathered.curves_of(experiment.name, method), seeds, measure)
    drawn, passing = look(method, methods), estimate(seeds).median
    draw_band(axis, found, drawn.colour)
    known = np.isfinite(found.middle)
    if passing is not None and not passing.sign and known.any():
        height = np.interp(np.log(passing.value + 1), np.log(found.epochs[known] + 1), found.middle[known])
        mark(axis, passing.value + 1, float(height), drawn)
