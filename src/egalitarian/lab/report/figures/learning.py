"""Figures of accuracy and loss by optimizer step, and of training accuracy while labels are shuffled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from egalitarian.lab.analysis import Gathered, band, estimate, rest_of_full_run
from egalitarian.lab.config import Experiment, Look, changing, load_looks
from egalitarian.lab.report.figures.axes import (
    LEVEL,
    TRAINING,
    accuracy_axis,
    add_key,
    draw_band,
    draw_levels,
    grow,
    lowest,
    mark,
    median_key,
    note,
    training_key,
)
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.curves import FEW, HEIGHT, INSIDE, flag_text
from egalitarian.lab.report.figures.labels import Flag, flag_panels
from egalitarian.lab.report.figures.style import FOOT, QUIET, SMALL, WIDTH, literal, looks_of, styled, wrapped

SINGLE_RUN: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.5}
"""The style of the line of a single run."""
LEARNING = (
    "The number after a name is the median step at which seeds of the method pass the threshold. The pole below the name "
    "leads to it. A seed stops soon after it passes; from then on its last accuracy counts. A line of accuracy ends "
    "when half of the seeds have stopped, a line of loss at the median step. If some seeds of a method do not pass, it "
    "has no band. A thin line after the end is one full-length run, if there is one. It is a running median of nine "
    "readings, so single readings may be far from it. The baseline with the weight decay of the other methods is not in "
    "the paper."
)
SHUFFLES = (
    "Training accuracy by epoch, on the labels of that epoch. Lines are medians over seeds, bands the middle half of the "
    "seeds. Before each epoch with a dotted line all labels are shuffled. Each column is one optimizer, with and "
    "without EGD."
)


@styled
def draw_learning(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws two panels per experiment: accuracy by step, and test loss below it."""
    methods = choose(gathered, experiments, methods)
    looks = looks_of(experiments, methods)
    figure = Figure(figsize=(WIDTH, (FOOT + 2.2 * HEIGHT) * len(experiments)), layout="constrained")
    parts = figure.subfigures(len(experiments), 1, squeeze=False)[:, 0]
    for part, experiment in zip(parts, experiments, strict=True):
        accuracy, loss = part.subplots(2, 1, sharex=True)
        loss.set(xscale="log", yscale="log", xlabel="step", ylabel="test loss")
        accuracy.set_title(literal(experiment.title), loc="left")
        flags = _accuracy_panel(accuracy, gathered, experiment, looks)
        _loss_panel(loss, gathered, experiment, looks)
        if not flags:
            note(accuracy, "not run")
        grow(figure, flag_panels([accuracy], [flags], INSIDE, HEIGHT))
    add_key(figure, _key(gathered, experiments, methods))
    return figure


def _key(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> list[Line2D | Patch]:
    if not methods:
        return []
    key: list[Line2D | Patch] = [*median_key("test, median of the seeds")]
    if len(methods) <= FEW:
        key.append(training_key())
    if any(run.full for each in experiments for method in methods for run in gathered.of(each.name, method)):
        key.append(Line2D([], [], color=QUIET, label="test, a full-length run alone", **SINGLE_RUN))
    return key


def _accuracy_panel(axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look]) -> list[Flag]:
    """Draws medians, bands, and a mark where a method passes. Returns a flag for each mark."""
    accuracy_axis(axis, "accuracy", lowest(experiment))
    steps, flags = experiment.steps_per_epoch or 1, []
    for method in gathered.methods_run(experiment.name, list(looks)):
        look, seeds = looks[method], gathered.of(experiment.name, method)
        if len(looks) <= FEW:
            training = band(gathered, experiment.name, method, "train_accuracy", hold=True)
            draw_band(axis, training, look, per_epoch=steps, edges=False, **TRAINING)
        test = band(gathered, experiment.name, method, "test_accuracy", hold=True)
        found = estimate(seeds, steps)
        draw_band(axis, test, look, per_epoch=steps, edges=not (found.passed and found.failed))
        epochs, values = rest_of_full_run(gathered, experiment.name, method, "test_accuracy", test)
        axis.plot(steps * (epochs + 1), values, color=look.colour, zorder=1.5, **SINGLE_RUN)
        if test.known.any():
            passes = experiment.measure.has_threshold and found.median is not None and found.median.is_exact
            x = found.median.value if passes and found.median is not None else steps * (test.epochs[test.known][-1] + 1)
            y = test.at(x / steps - 1)
            mark(axis, x, y, look)
            flags.append(Flag(flag_text(experiment, method, found), x, y, look.colour))
    draw_levels(axis, experiment)
    return flags


def _loss_panel(axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look]) -> None:
    for method in gathered.methods_run(experiment.name, list(looks)):
        found, passed = band(gathered, experiment.name, method, "test_loss"), estimate(gathered.of(experiment.name, method))
        if passed.median is not None and passed.median.is_exact:
            found = found.until(passed.median.value)
        steps, mixed = experiment.steps_per_epoch or 1, bool(passed.passed and passed.failed)
        draw_band(axis, found, looks[method], per_epoch=steps, edges=not mixed)


@styled
def draw_shuffles(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws training accuracy by epoch, one panel per experiment and optimizer."""
    columns = by_optimizer(experiments, methods)
    figure = Figure(figsize=(WIDTH, 0.5 + 1.15 * len(experiments)), layout="constrained")
    axes = figure.subplots(len(experiments), len(columns), sharex=True, sharey=True, squeeze=False)
    for row, experiment in zip(axes, experiments, strict=True):
        for axis, column in zip(row, columns, strict=True):
            _panel(axis, gathered, experiment, column)
        row[0].set_ylabel("training accuracy")
        name, place = wrapped(experiment.title.rpartition(", ")[2], 0.9), row[-1].transAxes
        row[-1].text(1.03, 0.5, name, transform=place, rotation=270, va="center", ha="left", ma="center", fontsize=SMALL)
    for axis, (first, *_) in zip(axes[0], columns, strict=True):
        axis.set_title(next(literal(each.methods[first].title) for each in experiments if first in each.methods))
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    pair = load_looks().pair
    lines = [median_key(series.title, series.colour)[0] for series in (pair.plain, pair.transformed)]
    add_key(figure, [*lines, median_key()[1]])
    return figure


def by_optimizer(experiments: Sequence[Experiment], methods: Sequence[str]) -> list[list[str]]:
    """The methods grouped by optimizer, in the order of `methods`."""
    known = {name: method for experiment in experiments for name, method in experiment.methods.items()}
    columns: dict[str, list[str]] = {}
    for name in methods:
        if name in known:
            columns.setdefault(known[name].optim.optimizer, []).append(name)
    return list(columns.values())


def _panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown, pair = gathered.methods_run(experiment.name, methods), load_looks().pair
    accuracy_axis(axis, "")
    for method in shown:
        series = pair.transformed if experiment.method(method).transform else pair.plain
        found = band(gathered, experiment.name, method, "train_accuracy")
        draw_band(axis, found, Look(colour=series.colour, marker=""), thin=False, linewidth=1.1)
    for epoch in changing(experiment):
        axis.axvline(epoch, **LEVEL)
    if not shown:
        note(axis, "not run")
