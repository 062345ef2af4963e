"""Accuracy and loss against steps, side by side: one row per experiment, one colour per method, seeds as a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures.curves import how_many_pass
from egalitarian.lab.report.figures.lines import (
    Band,
    band,
    draw_band,
    labels,
    legend,
    look,
    mark,
    missing,
    new_figure,
    note,
    present,
    say_below,
)
from egalitarian.lab.report.figures.style import styled

MEASURES = ("accuracy", "loss")
CAPTION = (
    "Test is solid, training dashed. Lines are medians over seeds; the band is the middle half of the seeds, for test. A "
    "seed stops soon after it passes the threshold (dotted) and keeps its last accuracy from then on. A line ends when "
    "half of the seeds have stopped. From there on a thin line is the test of one full-length run, where there is one. "
    "The mark is the median of the steps at which seeds pass. The baseline with the other methods' weight decay is ours."
)


@styled
def draw_learning(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    figure = Figure(figsize=(new_figure(3, 1).get_figwidth(), 0.2 + 2.3 * len(experiments)), layout="constrained")
    axes = figure.subplots(len(experiments), len(MEASURES), squeeze=False)
    titles = labels(gathered, experiments, methods)
    for row, experiment in zip(axes, experiments, strict=True):
        for axis, measure in zip(row, MEASURES, strict=True):
            _panel(axis, gathered, experiment, methods, measure)
        row[0].set_ylim(-0.03, 1.04)
        row[1].set_yscale("log")
    remarks = [[*how_many_pass(gathered, each, titles), *missing(gathered, each, titles)] for each in experiments]
    say_below(list(axes[:, 0]), remarks, panels=len(MEASURES))
    kinds = [
        Line2D([], [], color="0.25", label="test (band: middle half of seeds)"),
        Line2D([], [], color="0.25", linewidth=0.8, linestyle="--", label="training"),
    ]
    if any(run.full for each in experiments for method in titles for run in gathered.of(each.name, method)):
        kinds.append(Line2D([], [], color="0.25", linewidth=0.5, label="test, a full-length run alone"))
    legend(figure, titles, methods, *kinds)
    return figure


def _panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str], measure: str) -> None:
    steps, shown = experiment.steps_per_epoch or 1, present(gathered, experiment, methods)
    threshold = experiment.measure.threshold
    hold = measure == "accuracy"
    for method in shown:
        drawn, seeds = look(method, methods), gathered.of(experiment.name, method)
        own = gathered.curves_of(experiment.name, method)
        training = band(own, seeds, f"train_{measure}", hold=hold)
        testing = band(own, seeds, f"test_{measure}", hold=hold)
        draw_band(axis, training, drawn.colour, per_epoch=steps, edges=False, linewidth=0.8, linestyle="--")
        draw_band(axis, testing, drawn.colour, per_epoch=steps)
        _alone(axis, gathered, experiment.name, method, f"test_{measure}", testing, drawn.colour, steps)
        passing = estimate(seeds, steps).median
        if hold and passing is not None and not passing.sign:
            mark(axis, passing.value, threshold, drawn)
    if hold:
        axis.axhline(threshold, color="0.5", linewidth=0.7, linestyle=":")
    if not shown:
        note(axis, "not run")
    axis.set(xscale="log", xlabel="step", ylabel=measure, title=experiment.title if hold else "")


def _alone(
    axis: Axes, gathered: Gathered, experiment: str, method: str, measure: str, drawn: Band, colour: str, steps: int
) -> None:
    """The rest of a full-length run, after the others have stopped."""
    full = [run.seed for run in gathered.of(experiment, method) if run.full]
    known = drawn.epochs[np.isfinite(drawn.middle)]
    if not full or not len(known):
        return
    own = gathered.curves_of(experiment, method)
    rest = own[(own.seed == full[0]) & (own.epoch >= known[-1])].sort_values("epoch")
    if len(rest) > 1:
        axis.plot(steps * (rest.epoch + 1), rest[measure], color=colour, linewidth=0.5)
