"""Training accuracy while the labels change: a row for each experiment, a column for each optimizer, seeds as a band."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Gathered, band
from egalitarian.lab.config import Experiment, changing, load_looks
from egalitarian.lab.report.figures.lines import add_legend, draw_band, new_figure, note
from egalitarian.lab.report.figures.style import styled

LETTERS = 16
"""How many letters of a vertical label fit into a panel's height."""
CAPTION = (
    "Training accuracy by epoch, on the labels of that epoch. Lines are medians over seeds, bands the middle half of the "
    "seeds. All labels are shuffled before the epochs with a dotted line. Each column is one "
    "optimizer, with and without EGD."
)


@styled
def draw_shuffles(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One panel per experiment and optimizer."""
    columns = by_optimizer(experiments, methods)
    figure = new_figure(len(columns), 0.4 + 1.25 * len(experiments))
    axes = figure.subplots(len(experiments), len(columns), sharex="row", sharey=True, squeeze=False)
    for row, experiment in zip(axes, experiments, strict=True):
        for axis, own in zip(row, columns, strict=True):
            _draw_panel(axis, gathered, experiment, own)
        row[0].set_ylabel(textwrap.fill(experiment.title.rpartition(", ")[2], LETTERS))
    figure.supylabel("training accuracy", fontsize="medium")
    for axis, own in zip(axes[0], columns, strict=True):
        axis.set_title(next(each.methods[own[0]].title for each in experiments if own[0] in each.methods))
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


def _draw_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown, pair = gathered.methods_run(experiment.name, methods), load_looks().pair
    for method in shown:
        own = pair.transformed if experiment.method(method).transform else pair.plain
        found = band(gathered, experiment.name, method, "train_accuracy")
        draw_band(axis, found, own.colour, thin=False, linewidth=1.1)
    for epoch in changing(experiment):
        axis.axvline(epoch + 1, color="0.5", linewidth=0.7, linestyle=":")
    if not shown:
        note(axis, "not run")
    axis.set(ylim=(-0.03, 1.04))
