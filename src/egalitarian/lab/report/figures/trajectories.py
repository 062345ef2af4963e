"""The weights' way through training in the plane that shows most of it: one PCA of several methods from the same start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures.lines import (
    Array,
    labels,
    legend,
    look,
    missing,
    new_figure,
    note,
    panel_title,
    present,
    say_below,
)
from egalitarian.lab.report.figures.style import styled
from egalitarian.lab.training.metrics import SKETCH

CAPTION = (
    "How far all weights have moved from the start, in the two main directions, for one seed. Start and data are the same "
    "for every method. There are about ten points per decade of epochs; the star is the one nearest to passing the "
    "threshold. The directions come from one PCA of all paths in a panel, and each axis gives its share of the variance. "
    f"The PCA uses a count sketch of the weights with {SKETCH} buckets, which keeps inner products to about 3 %."
)


class Path(NamedTuple):
    """One run in the plane."""

    epochs: Array
    """The start has -1."""
    points: Array
    """(epochs, 2)."""


class Plane(NamedTuple):
    """Several runs in their common plane."""

    paths: Mapping[str, Path]
    shares: Array
    """Of the variance, on each axis."""


@styled
def draw_trajectories(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    figure = new_figure(len(experiments), 2.6)
    axes = figure.subplots(1, len(experiments), squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        shown = present(gathered, experiment, methods)
        seed = common_seed(gathered, experiment.name, shown)
        axis.set_title(panel_title(experiment.title, len(experiments)))
        if seed is None:
            note(axis, "no seed in common" if shown else "not run")
        else:
            _panel(axis, gathered, experiment, shown, seed, methods)
    marks = (
        Line2D([], [], marker="o", linestyle="none", color="0.25", markersize=5, label="start"),
        Line2D([], [], marker="*", linestyle="none", color="0.25", markersize=8, label="passes the threshold"),
    )
    titles = labels(gathered, experiments, methods)
    say_below(axes, [missing(gathered, experiment, titles) for experiment in experiments])
    legend(figure, titles, methods, *marks)
    return figure


def common_seed(gathered: Gathered, experiment: str, methods: Sequence[str]) -> int | None:
    """The smallest seed that all methods have."""
    seeds = [{run.seed for run in gathered.of(experiment, method)} for method in methods]
    return min(set.intersection(*seeds), default=None) if seeds else None


def project(displacements: Mapping[str, tuple[Array, Array]]) -> Plane:
    """From (epochs, displacements from the start, one row each) of each method to their common plane, start included."""
    with_start = {
        name: (np.append(-1.0, epochs), np.vstack([np.zeros((1, rows.shape[1])), rows]))
        for name, (epochs, rows) in displacements.items()
    }
    stacked = np.vstack([rows for _, rows in with_start.values()])
    centre = stacked.mean(0)
    _, values, directions = np.linalg.svd(stacked - centre, full_matrices=False)
    directions = directions[:2]
    largest = np.abs(directions).argmax(1)
    directions = (
        directions * np.sign(directions[np.arange(len(directions)), largest])[:, None]
    )  # a sign of its own choosing
    total = float((values**2).sum())
    paths = {name: Path(epochs, (rows - centre) @ directions.T) for name, (epochs, rows) in with_start.items()}
    return Plane(paths, values[:2] ** 2 / total if total else np.zeros(2))


def _panel(
    axis: Axes, gathered: Gathered, experiment: Experiment, shown: Sequence[str], seed: int, methods: Sequence[str]
) -> None:
    found = {method: gathered.snapshots(experiment.name, method, [seed]) for method in shown}
    found = {method: frame[[bool(np.isfinite(row).all()) for row in frame.displacement]] for method, frame in found.items()}
    found = {method: frame for method, frame in found.items() if len(frame)}
    if not found:
        note(axis, "no snapshots")
        return
    plane = project(
        {
            method: (frame.epoch.to_numpy(dtype=float), np.stack(frame.displacement.to_list()).astype(float))
            for method, frame in found.items()
        }
    )
    for method, path in plane.paths.items():
        colour = look(method, methods).colour
        axis.plot(*path.points.T, color=colour, marker=".", markersize=3, linewidth=1.0)
        crossed = next(run.crossed for run in gathered.of(experiment.name, method) if run.seed == seed)
        if crossed is not None:
            nearest = np.abs(np.log(path.epochs[1:] + 1) - np.log(crossed + 1)).argmin() + 1
            axis.plot(*path.points[nearest], "*", color=colour, markeredgecolor="white", markersize=10, zorder=5)
    start = next(iter(plane.paths.values())).points[0]
    axis.plot(*start, "o", color="0.25", markersize=5, zorder=6)
    axis.set_xlabel(f"first direction, {100 * plane.shares[0]:.0f} % (seed {seed})")
    axis.set_ylabel(f"second, {100 * plane.shares[1]:.0f} %")
    axis.set_aspect("equal", adjustable="datalim")
