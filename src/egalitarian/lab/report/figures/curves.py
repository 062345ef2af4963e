"""Accuracy against epochs: one panel per experiment, one colour per method, seeds as a band, log epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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

MANY = 8
"""Methods beyond which only test accuracy is drawn, where no accuracy is waited for."""
CAPTION = (
    "Test accuracy is solid, training accuracy dashed; with many methods only test accuracy is drawn. Lines are medians "
    "over seeds, bands the middle half of the seeds. A seed stops soon after it passes the threshold (dotted) and keeps "
    "its last value from then on. A line ends when half of the seeds have stopped. The mark is the median epoch of "
    "passing; without a threshold, it is the end of the line. The axis counts epochs from 1. Where not all seeds of a "
    "method pass, the panel says how many do."
)


@styled
def draw_curves(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    figure = new_figure(len(experiments), 2.4)
    axes = figure.subplots(1, len(experiments), sharey=True, squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        _panel(axis, gathered, experiment, methods)
        axis.set_title(panel_title(experiment.title, len(experiments)))
    axes[0].set_ylabel("accuracy")
    titles = labels(gathered, experiments, methods)
    say_below(axes, [[*how_many_pass(gathered, each, titles), *missing(gathered, each, titles)] for each in experiments])
    kinds = [Line2D([], [], color="0.25", label="test (band: middle half of seeds)")]
    if any(with_training(each, present(gathered, each, methods)) for each in experiments):
        kinds.append(Line2D([], [], color="0.25", linewidth=0.8, linestyle="--", label="training"))
    legend(figure, titles, methods, *kinds)
    return figure


def with_training(experiment: Experiment, shown: Sequence[str]) -> bool:
    """Not where methods are many and what counts is how good they get, which training accuracy would hide."""
    return experiment.measure.waits or len(shown) <= MANY


def _panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown = present(gathered, experiment, methods)
    threshold = experiment.measure.threshold
    if experiment.measure.waits:
        axis.axhline(threshold, color="0.5", linewidth=0.7, linestyle=":")
    for method in shown:
        drawn = look(method, methods)
        seeds = gathered.of(experiment.name, method)
        own = gathered.curves_of(experiment.name, method)
        if with_training(experiment, shown):
            training = band(own, seeds, "train_accuracy", hold=True)
            draw_band(axis, training, drawn.colour, edges=False, linewidth=0.8, linestyle="--")
        test = band(own, seeds, "test_accuracy", hold=True)
        draw_band(axis, test, drawn.colour)
        passing = estimate(seeds).median
        if not experiment.measure.waits:
            drawn_at = np.flatnonzero(np.isfinite(test.middle))[-1:]
            mark(axis, test.epochs[drawn_at] + 1, test.middle[drawn_at], drawn)
        elif passing is not None and not passing.sign:
            mark(axis, passing.value + 1, threshold, drawn)
    if not shown:
        note(axis, "not run")
    axis.set(xscale="log", xlabel="epoch")
    if experiment.measure.waits or not shown:
        axis.set(ylim=(-0.03, 1.04))


def how_many_pass(gathered: Gathered, experiment: Experiment, titles: Mapping[str, str]) -> Iterator[str]:
    """How many seeds pass, for each method of which not all do; for several at once where it is the same.
    Nothing where no accuracy is waited for."""
    alike: dict[str, list[str]] = {}
    for method, title in titles.items() if experiment.measure.waits else ():
        found = estimate(gathered.of(experiment.name, method))
        if found.failed:
            share = f"{found.passed} of {found.n} pass".replace(" ", "\N{NO-BREAK SPACE}")
            alike.setdefault(f"{share}{', unfinished' if found.unfinished else ''}", []).append(title)
    for share, own in alike.items():
        yield f"{own[0]}: {share}" if len(own) == 1 else f"{share}: {'; '.join(own)}"
