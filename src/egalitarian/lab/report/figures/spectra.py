"""The hidden gradient's singular values through training: as a fan for each method, and their condition number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures.lines import (
    Array,
    band,
    draw_band,
    labels,
    legend,
    look,
    new_figure,
    note,
    panel_title,
    present,
)
from egalitarian.lab.report.figures.style import styled
from egalitarian.lab.training.metrics import CUT

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Quantiles of one spectrum: its smallest, ..., its largest singular value."""
MOST = 3
"""Fans beside each other."""
CAPTION = (
    "Singular values of the hidden layer's gradient on the first batch of an epoch, before any transform. Bands: smallest "
    "to largest, central 80 %, central 50 %. Line: median. Each is the median over seeds. Values within rounding noise are "
    "left out. EGD makes all of them 1 (dashed). Right: the condition number, as the median over seeds still in training, "
    "with the middle half of them as a band."
)


@styled
def draw_spectra(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One row per experiment: a fan for each of a few methods that were run, and the condition numbers."""
    titles = labels(gathered, experiments, methods)
    fans = _unlike(experiments, list(titles) or methods)
    titles = {method: title for method, title in titles.items() if method in fans}
    figure = new_figure(len(fans) + 1, 0.2 + 2.2 * len(experiments))
    for row, experiment in enumerate(experiments):
        shown = present(gathered, experiment, fans)
        first: Axes | None = None
        for column, method in enumerate([*fans, None]):
            place = (len(experiments), len(fans) + 1, row * (len(fans) + 1) + column + 1)
            axis = figure.add_subplot(*place, sharex=first, sharey=first if method else None)
            axis.set(xlabel="epoch", xscale="log", yscale="log")
            if method is None:
                _conditions(axis, gathered, experiment, methods, shown)
            else:
                _spectrum(axis, gathered, experiment, method, methods)
                axis.set_title(panel_title(_title(experiment, method), len(fans) + 1))
            if first is None:
                first = axis
                axis.set_ylabel("singular values of gradient")
    legend(figure, titles, methods)
    return figure


def _unlike(experiments: Sequence[Experiment], methods: Sequence[str]) -> list[str]:
    """The first few: before others those that do to the gradient what none before them does. In order."""
    kinds = {method: _transforms(experiments, method) for method in methods}
    new = [method for place, method in enumerate(methods) if kinds[method] not in [kinds[each] for each in methods[:place]]]
    chosen = [*new, *(method for method in methods if method not in new)][:MOST]
    return [method for method in methods if method in chosen]


def _transforms(experiments: Sequence[Experiment], method: str) -> list[str] | None:
    own = next((experiment for experiment in experiments if method in experiment.methods), None)
    return None if own is None else [transform.kind for transform in own.method(method).transform]


def _title(experiment: Experiment, method: str) -> str:
    return experiment.methods[method].title if method in experiment.methods else method


def _spectrum(axis: Axes, gathered: Gathered, experiment: Experiment, method: str, methods: Sequence[str]) -> None:
    snapshots = gathered.snapshots(experiment.name, method)
    if not len(snapshots):
        note(axis, "not run")
        return
    _fan(axis, snapshots, look(method, methods).colour)
    if _transforms([experiment], method) == ["polar"]:
        axis.axhline(1, color="0.25", linewidth=1.0, linestyle="--")
        axis.text(0.97, 1.3, "equalised: all 1", transform=axis.get_yaxis_transform(), ha="right", fontsize=7, color="0.25")
        axis.set_ylim(top=max(5, axis.get_ylim()[1]))


def _fan(axis: Axes, snapshots: pd.DataFrame, colour: str) -> None:
    epochs, quantiles = fan(snapshots)
    for low, high, alpha in ((0, 6, 0.15), (1, 5, 0.22), (2, 4, 0.3)):
        axis.fill_between(epochs + 1, quantiles[:, low], quantiles[:, high], color=colour, alpha=alpha, linewidth=0)
    axis.plot(epochs + 1, quantiles[:, 3], color=colour)


def fan(snapshots: pd.DataFrame) -> tuple[Array, Array]:
    """(epochs, quantiles of the spectrum as the median over seeds), at epochs that half of the seeds or more have."""
    seeds = snapshots.seed.nunique()
    epochs, rows = [], []
    for epoch, group in snapshots.groupby("epoch"):
        spectra = [values[values > CUT * values.max()] for values in group.singular_values]
        spectra = [values for values in spectra if len(values)]
        if len(spectra) >= max(1, seeds / 2):
            epochs.append(epoch)
            rows.append(np.median([np.quantile(values, SHARES) for values in spectra], axis=0))
    return np.array(epochs, dtype=float), np.array(rows, dtype=float).reshape(-1, len(SHARES))


def _conditions(
    axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str], shown: Sequence[str]
) -> None:
    for method in shown:
        own = gathered.curves_of(experiment.name, method)
        own = own.assign(condition=own.sigma_max / own.sigma_min)
        draw_band(axis, band(own, gathered.of(experiment.name, method), "condition"), look(method, methods).colour)
    if not shown:
        note(axis, "not run")
    axis.set_title("largest over smallest")
    axis.axhline(1, color="0.25", linewidth=1.0, linestyle="--")
