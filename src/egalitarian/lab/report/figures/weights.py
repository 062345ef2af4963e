"""Figures of the weights: how far they move, and their paths in the plane of the two main directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Array, Gathered, band, common_seed, estimate, plane_of
from egalitarian.lab.config import SKETCH, Experiment, Look
from egalitarian.lab.report.figures.axes import add_key, draw_band, epoch_axis, grow, mark, median_key, note
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.curves import flag_text
from egalitarian.lab.report.figures.labels import Flag, flag_panels
from egalitarian.lab.report.figures.style import FOOT, QUIET, SMALL, WIDTH, ink, literal, looks_of, styled, wrapped

MEASURES = {"distance": "distance from the start", "weight_norm": "norm of the weights"}
"""What the two columns show, with the labels of their axes."""
HEIGHT, INSIDE = 1.3, 2.6
"""Inches: a panel of distances without its flags and title, and the width of its axis."""
MOST = 6
"""The largest number of methods in one panel."""
TRAJECTORIES = (
    "Paths of all weights of one seed, from the start of training. The axes are the first two directions of one PCA "
    "(principal component analysis) of all paths in a panel, with their shares of the variance. The rest of the variance "
    "is not visible. Start and data are the same for every method. There are about ten points per decade of epochs; the "
    f"star is the point closest to passing the threshold. The PCA uses a count sketch of the weights with {SKETCH} "
    "buckets, which keeps inner products to about 3 %."
)
DISTANCES = (
    "Euclidean norms over all parameters. Lines are medians over the seeds still in training, bands the middle half of "
    "them. A line ends at the median epoch at which seeds pass, which is the number after its name. Without such an "
    "epoch it ends when half of the seeds have stopped. Epochs count from 0, as in the tables."
)


@styled
def draw_trajectories(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws the paths of the weights, one panel per experiment."""
    methods = choose(gathered, experiments, methods, MOST)
    looks = looks_of(experiments, methods)
    figure = Figure(figsize=(WIDTH, 2.9 if len(experiments) > 1 else 3.4), layout="constrained")
    axes = figure.subplots(1, len(experiments), squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        axis.set_title(wrapped(experiment.title, WIDTH / len(axes) - 0.7), loc="left")
        _trajectories_panel(axis, gathered, experiment, looks, alone=len(experiments) == 1)
    marks = (("o", 5, "start"), ("*", 8, "passes the threshold"))
    add_key(
        figure,
        [Line2D([], [], marker=each, ls="none", color=QUIET, markersize=size, label=name) for each, size, name in marks],
    )
    return figure


def _trajectories_panel(
    axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look], alone: bool
) -> None:
    shown = gathered.methods_run(experiment.name, list(looks))
    seed = common_seed(gathered, experiment.name, shown)
    plane = None if seed is None else plane_of(gathered, experiment.name, shown, seed)
    if plane is None:
        note(axis, "not run" if not shown else "no seed in common" if seed is None else "no snapshots")
        axis.set(xticks=[], yticks=[])
        return
    for method, trajectory in plane.trajectories.items():
        colour = looks[method].colour
        axis.plot(*trajectory.points.T, color=colour, marker=".", markersize=3, linewidth=1.0)
        crossed = next(run.outcome.crossed for run in gathered.of(experiment.name, method) if run.seed == seed)
        if crossed is not None:
            star = trajectory.nearest(crossed)
            axis.plot(*star, "*", color=colour, markeredgecolor="white", markersize=10, zorder=5)
        _name_path(axis, trajectory.points, experiment.method(method).title, colour, beside=alone)
    axis.plot(*next(iter(plane.trajectories.values())).points[0], "o", color=QUIET, markersize=5, zorder=6)
    axis.set_xlabel(f"PCA 1: {100 * plane.shares[0]:.0f} % (seed {seed})")
    axis.set_ylabel(f"PCA 2: {100 * plane.shares[1]:.0f} %")
    axis.margins(0.3, 0.25)
    axis.set_aspect("equal", adjustable="datalim")


def _name_path(axis: Axes, points: Array, title: str, colour: str, *, beside: bool) -> None:
    """Writes a name at the point of a path farthest from its start: at its side in wide panels, else above or below."""
    far = points[np.linalg.norm(points - points[0], axis=1).argmax()]
    right, up = far >= points[0]
    offset: tuple[float, float] = (0, 7 if up else -7)
    place: dict[str, Any] = {"ha": "center", "va": "bottom" if up else "top"}
    if beside:
        offset, place = (7 if right else -7, 0), {"ha": "left" if right else "right", "va": "center"}
    name = wrapped(title, 1.4 if beside else 1.1)
    end = (float(far[0]), float(far[1]))
    axis.annotate(name, end, offset, textcoords="offset points", color=ink(colour), fontsize=SMALL, zorder=6, **place)


@styled
def draw_distances(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws how far the weights move, and their norm, one row per experiment."""
    methods = choose(gathered, experiments, methods, MOST)
    looks = looks_of(experiments, methods)
    figure = Figure(figsize=(WIDTH, FOOT + HEIGHT * len(experiments)), layout="constrained")
    axes = figure.subplots(len(experiments), len(MEASURES), sharex=True, squeeze=False)
    flags: list[list[Flag]] = []
    for row, experiment in zip(axes, experiments, strict=True):
        row[0].set_title(literal(experiment.title), loc="left")
        for axis, (measure, label) in zip(row, MEASURES.items(), strict=True):
            axis.set_ylabel(label)
            own = _distances_panel(axis, gathered, experiment, measure, looks)
            axis.set_ylim(0, 1.06 * axis.get_ylim()[1])
            if axis is row[0]:
                flags.append(own)
    for column in axes.T:
        epoch_axis(list(column))
    grow(figure, flag_panels(list(axes[:, 0]), flags, INSIDE, HEIGHT))
    add_key(figure, median_key() if any(flags) else [])
    return figure


def _distances_panel(
    axis: Axes, gathered: Gathered, experiment: Experiment, measure: str, looks: Mapping[str, Look]
) -> list[Flag]:
    """Draws medians and bands up to the median epoch at which seeds pass. Returns a flag for each line."""
    flags = []
    for method in gathered.methods_run(experiment.name, list(looks)):
        found, look = band(gathered, experiment.name, method, measure), looks[method]
        passed = estimate(gathered.of(experiment.name, method))
        if passed.median is not None and passed.median.is_exact:
            found = found.until(passed.median.value)
        draw_band(axis, found, look)
        if found.known.any():
            x, y = float(found.epochs[found.known][-1]), float(found.middle[found.known][-1])
            mark(axis, x, y, look)
            flags.append(Flag(flag_text(experiment, method, passed), x, y, look.colour))
    if not flags:
        note(axis, "not run")
    return flags
