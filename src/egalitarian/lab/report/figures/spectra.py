"""Singular values of the hidden layer's gradient during training: a fan for each method, and the condition number."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from egalitarian.lab.analysis import Gathered, band, fan
from egalitarian.lab.config import Experiment
from egalitarian.lab.report.figures.style import (
    add_legend,
    draw_band,
    look,
    new_figure,
    note,
    panel_title,
    styled,
    titles_of,
)

MOST = 3
"""Fans in one row."""
FAN = ((0, 6, 0.15), (1, 5, 0.22), (2, 4, 0.3))
"""Lower and upper quantile of each band of a fan, by their indices, and its opacity."""
CAPTION = (
    "Singular values of the hidden layer's gradient on the first batch of an epoch, before any transform. Bands: smallest "
    "to largest, central 80 %, central 50 %. Line: median. Each is the median over seeds. Values within rounding noise are "
    "left out. EGD makes all of them 1 (dashed). Right: the condition number, as the median over seeds still in training, "
    "with the middle half of them as a band."
)


@styled
def draw_spectra(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """One row per experiment: fans of a few methods that were run, and the condition numbers of these."""
    titles = titles_of(gathered, experiments, methods)
    fans = _choose_fans(experiments, list(titles) or methods)
    titles = {method: title for method, title in titles.items() if method in fans}
    figure = new_figure(len(fans) + 1, 0.2 + 2.2 * len(experiments))
    for row, experiment in enumerate(experiments):
        shown = gathered.methods_run(experiment.name, fans)
        first: Axes | None = None
        for column, method in enumerate([*fans, None]):
            position = (len(experiments), len(fans) + 1, row * (len(fans) + 1) + column + 1)
            axis = figure.add_subplot(*position, sharex=first, sharey=first if method else None)
            axis.set(xlabel="epoch", xscale="log", yscale="log")
            if method is None:
                _draw_conditions(axis, gathered, experiment, methods, shown)
            else:
                _draw_spectrum(axis, gathered, experiment, method, methods)
                title = experiment.methods[method].title if method in experiment.methods else method
                axis.set_title(panel_title(title, len(fans) + 1))
            if first is None:
                first = axis
                axis.set_ylabel("singular values of gradient")
    add_legend(figure, titles, methods)
    return figure


def _choose_fans(experiments: Sequence[Experiment], methods: Sequence[str]) -> list[str]:
    """At most `MOST` methods, in order. Those with transforms that no method before them has come first."""
    kinds = {method: _transforms(experiments, method) for method in methods}
    new = [method for index, method in enumerate(methods) if kinds[method] not in [kinds[each] for each in methods[:index]]]
    chosen = [*new, *(method for method in methods if method not in new)][:MOST]
    return [method for method in methods if method in chosen]


def _transforms(experiments: Sequence[Experiment], method: str) -> list[str] | None:
    """The kinds of a method's transforms; None if no experiment has the method."""
    own = next((experiment for experiment in experiments if method in experiment.methods), None)
    return None if own is None else [transform.kind for transform in own.method(method).transform]


def _draw_spectrum(axis: Axes, gathered: Gathered, experiment: Experiment, method: str, methods: Sequence[str]) -> None:
    snapshots = gathered.snapshots(experiment.name, method)
    if not len(snapshots):
        note(axis, "not run")
        return
    epochs, quantiles = fan(snapshots)
    colour = look(method, methods).colour
    for low, high, alpha in FAN:
        axis.fill_between(epochs + 1, quantiles[:, low], quantiles[:, high], color=colour, alpha=alpha, linewidth=0)
    axis.plot(epochs + 1, quantiles[:, 3], color=colour)
    if _transforms([experiment], method) == ["polar"]:
        axis.axhline(1, color="0.25", linewidth=1.0, linestyle="--")
        axis.text(0.97, 1.3, "equalised: all 1", transform=axis.get_yaxis_transform(), ha="right", fontsize=7, color="0.25")
        axis.set_ylim(top=max(5, axis.get_ylim()[1]))


def _draw_conditions(
    axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str], shown: Sequence[str]
) -> None:
    for method in shown:
        draw_band(axis, band(gathered, experiment.name, method, "condition"), look(method, methods).colour)
    if not shown:
        note(axis, "not run")
    axis.set_title("largest over smallest")
    axis.axhline(1, color="0.25", linewidth=1.0, linestyle="--")
