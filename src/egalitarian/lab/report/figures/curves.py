"""Curves over training: accuracy by epoch, accuracy and loss by step, and shuffled labels; seeds as a band."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Gathered, band, estimate, rest_of_full_run
from egalitarian.lab.config import Experiment, changing, load_looks
from egalitarian.lab.report.figures.style import (
    add_legend,
    add_remarks,
    count_passed,
    draw_band,
    list_missing,
    look,
    mark,
    new_figure,
    note,
    panel_title,
    styled,
    titles_of,
)

MANY_METHODS = 8
"""Methods in a panel, beyond which training accuracy is left out if there is no threshold."""
LETTERS = 16
"""How many letters of a vertical label fit into a panel's height."""
CURVES = (
    "Test accuracy is solid, training accuracy dashed; with many methods only test accuracy is drawn. Lines are medians "
    "over seeds, bands the middle half of the seeds. A seed stops soon after it passes the threshold (dotted) and keeps "
    "its last value from then on. A line ends when half of the seeds have stopped. The mark is the median epoch of "
    "passing; without a threshold, it is the end of the line. The axis counts epochs from 1. Where not all seeds of a "
    "method pass, the panel says how many do."
)
LEARNING = (
    "Test is solid, training dashed. Lines are medians over seeds; the band is the middle half of the seeds, for test. A "
    "seed stops soon after it passes the threshold (dotted) and keeps its last accuracy from then on. A line ends when "
    "half of the seeds have stopped. From there on a thin line is the test of one full-length run, where there is one. "
    "The mark is the median of the steps at which seeds pass. The baseline with the other methods' weight decay is ours."
)
SHUFFLES = (
    "Training accuracy by epoch, on the labels of that epoch. Lines are medians over seeds, bands the middle half of the "
    "seeds. All labels are shuffled before the epochs with a dotted line. Each column is one "
    "optimizer, with and without EGD."
)


@styled
def draw_curves(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One panel per experiment: test and training accuracy against epochs."""
    figure = new_figure(len(experiments), 2.4)
    axes = figure.subplots(1, len(experiments), sharey=True, squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        _curves_panel(axis, gathered, experiment, methods)
        axis.set_title(panel_title(experiment.title, len(experiments)))
    axes[0].set_ylabel("accuracy")
    titles = titles_of(gathered, experiments, methods)
    add_remarks(axes, [_remarks(gathered, experiment, titles) for experiment in experiments])
    kinds = [_test_line()]
    if any(_with_training(each, gathered.methods_run(each.name, methods)) for each in experiments):
        kinds.append(_training_line())
    add_legend(figure, titles, methods, *kinds)
    return figure


def _remarks(gathered: Gathered, experiment: Experiment, titles: dict[str, str]) -> list[str]:
    return [*count_passed(gathered, experiment, titles), *list_missing(gathered, experiment, titles)]


def _test_line() -> Line2D:
    return Line2D([], [], color="0.25", label="test (band: middle half of seeds)")


def _training_line() -> Line2D:
    return Line2D([], [], color="0.25", linewidth=0.8, linestyle="--", label="training")


def _with_training(experiment: Experiment, shown: Sequence[str]) -> bool:
    """Whether to draw training accuracy. Without a threshold it would hide the final accuracies of many methods."""
    return experiment.measure.has_threshold or len(shown) <= MANY_METHODS


def _curves_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown = gathered.methods_run(experiment.name, methods)
    threshold = experiment.measure.threshold
    if experiment.measure.has_threshold:
        axis.axhline(threshold, color="0.5", linewidth=0.7, linestyle=":")
    for method in shown:
        drawn = look(method, methods)
        if _with_training(experiment, shown):
            training = band(gathered, experiment.name, method, "train_accuracy", hold=True)
            draw_band(axis, training, drawn.colour, edges=False, linewidth=0.8, linestyle="--")
        test = band(gathered, experiment.name, method, "test_accuracy", hold=True)
        draw_band(axis, test, drawn.colour)
        passing = estimate(gathered.of(experiment.name, method)).median
        if not experiment.measure.has_threshold:
            mark(axis, test.epochs[test.known][-1:] + 1, test.middle[test.known][-1:], drawn)
        elif passing is not None and passing.is_exact:
            mark(axis, passing.value + 1, threshold, drawn)  # epochs count from 0, the axis from 1
    if not shown:
        note(axis, "not run")
    axis.set(xscale="log", xlabel="epoch")
    if experiment.measure.has_threshold or not shown:
        axis.set(ylim=(-0.03, 1.04))


@styled
def draw_learning(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One row per experiment: accuracy and loss against steps."""
    figure = Figure(figsize=(new_figure(3, 1).get_figwidth(), 0.2 + 2.3 * len(experiments)), layout="constrained")
    axes = figure.subplots(len(experiments), 2, squeeze=False)
    titles = titles_of(gathered, experiments, methods)
    for (accuracy, loss), experiment in zip(axes, experiments, strict=True):
        _learning_panel(accuracy, gathered, experiment, methods, "accuracy")
        _learning_panel(loss, gathered, experiment, methods, "loss")
        _mark_passing(accuracy, gathered, experiment, methods)
        accuracy.set_ylim(-0.03, 1.04)
        loss.set_yscale("log")
    add_remarks(list(axes[:, 0]), [_remarks(gathered, each, titles) for each in experiments], panels=2)
    kinds = [_test_line(), _training_line()]
    if any(run.full for each in experiments for method in titles for run in gathered.of(each.name, method)):
        kinds.append(Line2D([], [], color="0.25", linewidth=0.5, label="test, a full-length run alone"))
    add_legend(figure, titles, methods, *kinds)
    return figure


def _learning_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str], measure: str) -> None:
    steps, shown = experiment.steps_per_epoch or 1, gathered.methods_run(experiment.name, methods)
    hold = measure == "accuracy"
    for method in shown:
        colour = look(method, methods).colour
        training = band(gathered, experiment.name, method, f"train_{measure}", hold=hold)
        test = band(gathered, experiment.name, method, f"test_{measure}", hold=hold)
        draw_band(axis, training, colour, per_epoch=steps, edges=False, linewidth=0.8, linestyle="--")
        draw_band(axis, test, colour, per_epoch=steps)
        epochs, values = rest_of_full_run(gathered, experiment.name, method, f"test_{measure}", test)
        if len(epochs) > 1:
            axis.plot(steps * (epochs + 1), values, color=colour, linewidth=0.5)
    if not shown:
        note(axis, "not run")
    axis.set(xscale="log", xlabel="step", ylabel=measure, title=experiment.title if hold else "")


def _mark_passing(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    """The threshold, and the median step at which each method passes it."""
    steps, threshold = experiment.steps_per_epoch or 1, experiment.measure.threshold
    for method in gathered.methods_run(experiment.name, methods):
        passing = estimate(gathered.of(experiment.name, method), steps).median
        if passing is not None and passing.is_exact:
            mark(axis, passing.value, threshold, look(method, methods))  # steps already include the epoch that passed
    axis.axhline(threshold, color="0.5", linewidth=0.7, linestyle=":")


@styled
def draw_shuffles(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One panel per experiment and optimizer."""
    columns = by_optimizer(experiments, methods)
    figure = new_figure(len(columns), 0.4 + 1.25 * len(experiments))
    axes = figure.subplots(len(experiments), len(columns), sharex="row", sharey=True, squeeze=False)
    for row, experiment in zip(axes, experiments, strict=True):
        for axis, column in zip(row, columns, strict=True):
            _shuffles_panel(axis, gathered, experiment, column)
        row[0].set_ylabel(textwrap.fill(experiment.title.rpartition(", ")[2], LETTERS))
    figure.supylabel("training accuracy", fontsize="medium")
    for axis, (first, *_) in zip(axes[0], columns, strict=True):
        axis.set_title(next(each.methods[first].title for each in experiments if first in each.methods))
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    pair = load_looks().pair
    add_legend(
        figure,
        {},
        methods,
        Line2D([], [], color=pair.plain.colour, label=f"{pair.plain.title} (band: middle half of seeds)"),
        Line2D([], [], color=pair.transformed.colour, label=pair.transformed.title),
        Line2D([], [], color="0.5", linewidth=0.7, linestyle=":", label="labels shuffled"),
    )
    return figure


def by_optimizer(experiments: Sequence[Experiment], methods: Sequence[str]) -> list[list[str]]:
    """The methods by their optimizer, in the order of `methods`."""
    known = {name: method for experiment in experiments for name, method in experiment.methods.items()}
    columns: dict[str, list[str]] = {}
    for name in methods:
        if name in known:
            columns.setdefault(known[name].optim.optimizer, []).append(name)
    return list(columns.values())


def _shuffles_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown, pair = gathered.methods_run(experiment.name, methods), load_looks().pair
    for method in shown:
        series = pair.transformed if experiment.method(method).transform else pair.plain
        found = band(gathered, experiment.name, method, "train_accuracy")
        draw_band(axis, found, series.colour, thin=False, linewidth=1.1)
    for epoch in changing(experiment):
        axis.axvline(epoch + 1, color="0.5", linewidth=0.7, linestyle=":")
    if not shown:
        note(axis, "not run")
    axis.set(ylim=(-0.03, 1.04))
