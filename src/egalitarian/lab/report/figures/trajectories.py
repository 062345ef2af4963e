"""The path of the weights during training, in the plane of one PCA over several methods with the same start."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Gathered, common_seed, plane_of
from egalitarian.lab.config import SKETCH, Experiment
from egalitarian.lab.report.figures.lines import (
    add_legend,
    add_remarks,
    list_missing,
    new_figure,
    note,
    panel_title,
    titles_of,
)
from egalitarian.lab.report.figures.style import look, styled

CAPTION = (
    "How far all weights have moved from the start, in the two main directions, for one seed. Start and data are the same "
    "for every method. There are about ten points per decade of epochs; the star is the one nearest to passing the "
    "threshold. The directions come from one PCA of all paths in a panel, and each axis gives its share of the variance. "
    f"The PCA uses a count sketch of the weights with {SKETCH} buckets, which keeps inner products to about 3 %."
)


@styled
def draw_trajectories(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One panel per experiment."""
    figure = new_figure(len(experiments), 2.6)
    axes = figure.subplots(1, len(experiments), squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        axis.set_title(panel_title(experiment.title, len(experiments)))
        _draw_panel(axis, gathered, experiment, methods)
    marks = (
        Line2D([], [], marker="o", linestyle="none", color="0.25", markersize=5, label="start"),
        Line2D([], [], marker="*", linestyle="none", color="0.25", markersize=8, label="passes the threshold"),
    )
    titles = titles_of(gathered, experiments, methods)
    add_remarks(axes, [list_missing(gathered, experiment, titles) for experiment in experiments])
    add_legend(figure, titles, methods, *marks)
    return figure


def _draw_panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
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
