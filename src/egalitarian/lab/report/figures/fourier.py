"""Fourier measures during training: power by frequency, excluded and restricted loss, concentration, the logits' scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Array, Gathered, band, common_seed, powers
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.axes import LEVEL, TRAINING, add_key, draw_band, epoch_axis, mark, note
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.style import QUIET, WIDTH, ink, literal, looks_of, styled, wrapped

MOST = 3
"""Methods in one row."""
HEIGHT = 3.7
"""Inches: the two rows of an experiment."""
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "train_loss": ("training loss", TRAINING),
    "test_loss": ("test loss", {"linestyle": "-"}),
    "excluded_loss": ("excluded loss", {"linestyle": "--"}),
    "restricted_loss": ("restricted loss", {"linestyle": "-."}),
}
"""Columns of the curves, with their names and lines."""
SHARED = {"concentration": "concentration (Gini)", "logit_scale": "scale of the logits"}
"""What all methods have in one panel, below each other."""
COLOURS = "cividis"
TICKS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Of the scale of colours, where they are on it."""
LAST = 0.05
"""Of the logarithm, how far the last epoch's cell reaches."""
WEAKEST = 0.5
"""Shares below this part of an equal share are drawn alike."""
CAPTION = (
    "Top: the share of each frequency in the power of the weights that read the numbers, for one seed; for products, "
    "frequencies are those of logarithms. Concentration is the Gini coefficient of these shares. Bottom: excluded loss is "
    "that of the training pairs without the key frequencies, restricted loss that of all pairs with these alone, after "
    "Nanda et al. 2023. Lines are medians over seeds in training, at snapshots; docs/lab.md has the definitions. The "
    "upright line is where the seed above passes the threshold."
)


@styled
def draw_fourier(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Two rows per experiment: a column for each of a few methods that were run, and one with all of these."""
    chosen = choose(gathered, experiments, methods, MOST) or list(methods[:MOST])
    looks = looks_of(experiments, methods)
    figure = Figure(figsize=(WIDTH, 0.3 + HEIGHT * len(experiments)), layout="constrained")
    parts = figure.subfigures(len(experiments), 1, squeeze=False)[:, 0]
    for part, experiment in zip(parts, experiments, strict=True):
        part.suptitle(literal(experiment.title), x=0.01, ha="left", fontsize=9)
        axes = part.subplots(2, len(chosen) + 1, squeeze=False)
        seeds = _seeds(gathered, experiment, chosen)
        _draw_powers(part, list(axes[0, :-1]), gathered, experiment, {method: looks[method] for method in chosen}, seeds)
        for axis, method in zip(axes[1, :-1], chosen, strict=True):
            if axis is not axes[1, 0]:
                axis.sharey(axes[1, 0])
            _draw_losses(axis, gathered, experiment, method, looks[method])
            if method in seeds:
                _draw_passing(axis, gathered, experiment, method, seeds[method])
        axes[1, 0].set(ylabel="loss")
        for axis, (measure, label) in zip(axes[:, -1], SHARED.items(), strict=True):
            _draw_shared(axis, gathered, experiment, measure, {method: looks[method] for method in chosen})
            axis.set_ylabel(label)
        for row in axes:
            epoch_axis(list(row))
        for axis in axes[0]:
            axis.set_xlabel("")
        for axis in axes[1]:
            axis.set_xlabel("epoch")
    add_key(figure, [Line2D([], [], label=name, color=QUIET, **line) for name, line in LOSSES.values()])
    return figure


def _draw_powers(
    figure: SubFigure,
    axes: Sequence[Axes],
    gathered: Gathered,
    experiment: Experiment,
    looks: Mapping[str, Look],
    seeds: Mapping[str, int],
) -> None:
    """Power by frequency and epoch, with one scale of colours for all methods."""
    found = {method: powers(gathered, experiment.name, method, seeds.get(method)) for method in looks}
    shares = [share for _, rows in found.values() for share in (rows.max(initial=0.0), 1 / max(1, rows.shape[1]))]
    equal = min((1 / rows.shape[1] for _, rows in found.values() if rows.size), default=1.0)
    low, high = WEAKEST * equal, max([2 * equal, *shares])
    norm = LogNorm(low, high)
    for axis, (method, (epochs, rows)) in zip(axes, found.items(), strict=True):
        title = experiment.methods[method].title if method in experiment.methods else method
        axis.set_title(wrapped(title, 0.8 * WIDTH / (len(axes) + 1)), color=ink(looks[method].colour), fontsize=8)
        if not rows.size:
            note(axis, "not measured" if gathered.of(experiment.name, method) else "not run")
            axis.set(xticks=[], yticks=[])
            continue
        axis.pcolormesh(*_edges(epochs, rows.shape[1]), rows.T, norm=norm, cmap=COLOURS, rasterized=True)
        axis.set_facecolor("0.9")
        _draw_passing(axis, gathered, experiment, method, seeds[method], color="white")
    shown = ", ".join(str(seed) for seed in sorted(set(seeds.values())))
    axes[0].set_ylabel(f"frequency (seed {shown})" if shown else "frequency")
    if any(rows.size for _, rows in found.values()):
        bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=list(axes), pad=0.02, aspect=30, extend="min")
        ticks = [share for share in TICKS if low <= share <= high]
        bar.set_ticks(ticks, labels=[f"{100 * share:g} %" for share in ticks], minor=False)
        bar.ax.minorticks_off()
        bar.set_label("share of the power")


def _seeds(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> dict[str, int]:
    """One seed of each method that was run: the smallest that all have, or else its own smallest."""
    run = gathered.methods_run(experiment.name, methods)
    common = common_seed(gathered, experiment.name, run)
    own = {method: min(each.seed for each in gathered.of(experiment.name, method)) for method in run}
    return own if common is None else dict.fromkeys(run, common)


def _edges(epochs: Array, frequencies: int) -> tuple[Array, Array]:
    """Of the cells: an epoch's reaches to the middle of its neighbours, in the logarithm."""
    logs = np.log(epochs + 1)
    middles = (logs[1:] + logs[:-1]) / 2
    edges: Array = np.exp(np.concatenate([logs[:1], middles, logs[-1:] + LAST])) - 1
    return edges, np.arange(frequencies + 1.0) + 0.5


def _draw_passing(axis: Axes, gathered: Gathered, experiment: Experiment, method: str, seed: int, **line: Any) -> None:
    """An upright line where the seed passes the threshold."""
    for run in gathered.of(experiment.name, method):
        if run.seed == seed and run.outcome.crossed is not None:
            axis.axvline(run.outcome.crossed, **{**LEVEL, **line})


def _draw_losses(axis: Axes, gathered: Gathered, experiment: Experiment, method: str, look: Look) -> None:
    runs = gathered.methods_run(experiment.name, [method])
    for measure, (_, line) in LOSSES.items():
        if runs and measure in gathered.curves:
            draw_band(axis, band(gathered, experiment.name, method, measure), look, edges=line is not TRAINING, **line)
    if not runs:
        note(axis, "not run")
    axis.set_yscale("log")


def _draw_shared(axis: Axes, gathered: Gathered, experiment: Experiment, measure: str, looks: Mapping[str, Look]) -> None:
    shown = gathered.methods_run(experiment.name, list(looks)) if measure in gathered.curves else []
    for method in shown:
        found = band(gathered, experiment.name, method, measure)
        draw_band(axis, found, looks[method])
        if found.known.any():
            mark(axis, float(found.epochs[found.known][-1]), float(found.middle[found.known][-1]), looks[method])
    if not shown:
        note(axis, "not measured")
    axis.set_ylim(0, max(1.06 * axis.get_ylim()[1], 1e-3))
