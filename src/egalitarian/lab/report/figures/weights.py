"""Figures of the weights: how far they go, and their path in the plane of its two main directions."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Gathered, band, common_seed, estimate, plane_of
from egalitarian.lab.config import SKETCH, Experiment
from egalitarian.lab.report.figures.style import (
    add_legend,
    add_remarks,
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

MEASURES = {"distance": "distance from start", "weight_norm": "norm of weights"}
"""Columns of the curves, with the labels of their axes."""
TRAJECTORIES = (
    "How far all weights have moved from the start, in the two main directions, for one seed. Start and data are the same "
    "for every method. There are about ten points per decade of epochs; the star is the one nearest to passing the "
    "threshold. The directions come from one PCA of all paths in a panel, and each axis gives its share of the variance. "
    f"The PCA uses a count sketch of the weights with {SKETCH} buckets, which keeps inner products to about 3 %."
)
DISTANCES = (
    "Euclidean norms over all parameters. Lines are medians over the seeds still in training, bands the middle half of "
    "them. A line ends when half of the seeds have stopped, soon after passing the threshold. The mark is the median epoch "
    "of passing. The axis counts epochs from 1."
)


@styled
def draw_trajectories(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One panel per experiment."""
    figure = new_figure(len(experiments), 2.6)
    axes = figure.subplots(1, len(experiments), squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        axis.set_title(panel_title(experiment.title, len(experiments)))
        _trajectories_panel(axis, gathered, experiment, methods)
    marks = (
        Line2D([], [], marker="o", linestyle="none", color="0.25", markersize=5, label="start"),
        Line2D([], [], marker="*", linestyle="none", color="0.25", markersize=8, label="passes the threshold"),
    )
    titles = titles_of(gathered, experiments, methods)
    add_remarks(axes, [list_missing(gathered, experiment, titles) for experiment in experiments])
    add_legend(figure, titles, methods, *marks)
    return figure


def _trajectories_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown = gathered.methods_run(experiment.name, methods)
    seed = common_seed(gathered, experiment.name, shown)
    plane = None if seed is None else plane_of(gathered, experiment.name, shown, seed)
    if plane is None:
        note(axis, "not run" if not shown else "no seed in common" if seed is None else "no snapshots")
        return
    for method, trajectory in plane.trajectories.items():
        colour = look(method, methods).colour
        axis.plot(*trajectory.points.T, color=colour, marker=".", markersize=3, linewidth=1.0)
        crossed = next(run.outcome.crossed for run in gathered.of(experiment.name, method) if run.seed == seed)
        if crossed is not None:
            star = trajectory.nearest(crossed)
            axis.plot(*star, "*", color=colour, markeredgecolor="white", markersize=10, zorder=5)
    start = next(iter(plane.trajectories.values())).points[0]
    axis.plot(*start, "o", color="0.25", markersize=5, zorder=6)
    axis.set_xlabel(f"first direction, {100 * plane.shares[0]:.0f} % (seed {seed})")
    axis.set_ylabel(f"second, {100 * plane.shares[1]:.0f} %")
    axis.set_aspect("equal", adjustable="datalim")


@styled
def draw_distances(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One column per experiment, one row per measure."""
    figure = new_figure(len(experiments), 3.6)
    axes = figure.subplots(len(MEASURES), len(experiments), sharex="col", squeeze=False)
    for column, experiment in zip(axes.T, experiments, strict=True):
        shown = gathered.methods_run(experiment.name, methods)
        for axis, measure in zip(column, MEASURES, strict=True):
            for method in shown:
                _draw_distance(axis, gathered, experiment, method, measure, methods)
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


def _draw_distance(
    axis: Axes, gathered: Gathered, experiment: Experiment, method: str, measure: str, methods: Sequence[str]
) -> None:
    found, drawn = band(gathered, experiment.name, method, measure), look(method, methods)
    draw_band(axis, found, drawn.colour)
    passing = estimate(gathered.of(experiment.name, method)).median
    if passing is not None and passing.is_exact and found.known.any():
        mark(axis, passing.value + 1, found.at(passing.value), drawn)  # epochs count from 0, the axis from 1
