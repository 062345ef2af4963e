"""Figures of the singular values of the hidden layer's gradient: bands for each method, and the condition number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from egalitarian.lab.analysis import Gathered, band, fan
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.axes import add_key, draw_band, epoch_axis, note
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.style import QUIET, SMALL, WIDTH, ink, literal, looks_of, styled, wrapped

MOST = 3
"""The largest number of fans in one row. A fan is the bands of one method's singular values."""
FAN = ((0, 6, 0.15, "all singular values"), (1, 5, 0.22, "central 80 %"), (2, 4, 0.3, "central 50 %"))
"""For each band of a fan: the indices of its lower and upper quantile, its opacity, and its label."""
LINE_AT_ONE: dict[str, Any] = {"color": "0.25", "linewidth": 1.0, "linestyle": "--"}
"""The style of the line at 1."""
CAPTION = (
    "Singular values of the hidden layer's gradient on the first batch of an epoch, before any transform. EGD equalises "
    "these gradients: after it all singular values are on the dashed line. Bands hold all singular values, and the "
    "central 80 % and 50 % of them. Each edge is a median over seeds. Values within rounding noise are left out. Right: "
    "the largest divided by the smallest. The line is the median over seeds still in training, the band the middle half "
    "of them."
)


@styled
def draw_spectra(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws one row per experiment: fans of a few methods that were run, and their condition numbers."""
    fans = choose(gathered, experiments, methods, MOST) or list(methods[:MOST])
    looks = looks_of(experiments, methods)
    figure = Figure(figsize=(WIDTH, 0.5 + 2.1 * len(experiments)), layout="constrained")
    parts = figure.subfigures(len(experiments), 1, squeeze=False)[:, 0]
    for part, experiment in zip(parts, experiments, strict=True):
        part.suptitle(literal(experiment.title), x=0.01, ha="left", fontsize=9)
        axes = list(part.subplots(1, len(fans) + 1, squeeze=False, sharex=True)[0])
        for axis in axes:
            axis.set(yscale="log", xlabel="epoch")
        for axis, method in zip(axes, fans, strict=False):
            if axis is not axes[0]:
                axis.sharey(axes[0])
            _draw_spectrum(axis, gathered, experiment, method, looks[method])
            title = experiment.methods[method].title if method in experiment.methods else method
            axis.set_title(wrapped(title, 0.8 * WIDTH / len(axes)), color=ink(looks[method].colour), fontsize=8)
        axes[0].set_ylabel("singular values of the gradient")
        _draw_conditions(axes[-1], gathered, experiment, {method: looks[method] for method in fans})
        epoch_axis(axes)
    bands = zip(FAN, _opacities(), strict=True)
    patches = [Patch(color=QUIET, alpha=alpha, linewidth=0, label=name) for (*_, name), alpha in bands]
    add_key(figure, [*patches, Line2D([], [], color=QUIET, label="median")])
    return figure


def _opacities() -> list[float]:
    """The opacity that each band of a fan appears to have, with the wider bands behind it."""
    found, clear = [], 1.0
    for *_, alpha, _ in FAN:
        clear *= 1 - alpha
        found.append(1 - clear)
    return found


def _draw_spectrum(axis: Axes, gathered: Gathered, experiment: Experiment, method: str, look: Look) -> None:
    snapshots = gathered.snapshots(experiment.name, method)
    if not len(snapshots):
        note(axis, "not run")
        return
    epochs, quantiles = fan(snapshots)
    for low, high, alpha, _ in FAN:
        axis.fill_between(epochs, quantiles[:, low], quantiles[:, high], color=look.colour, alpha=alpha, linewidth=0)
    axis.plot(epochs, quantiles[:, 3], color=look.colour)
    if method in experiment.methods and [link.kind for link in experiment.method(method).transform] == ["polar"]:
        axis.axhline(1, **LINE_AT_ONE)
        place = axis.get_yaxis_transform()
        axis.text(0.97, 1.3, "equalised: all 1", transform=place, ha="right", fontsize=SMALL, color="0.25")
        axis.set_ylim(top=max(5, axis.get_ylim()[1]))


def _draw_conditions(axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look]) -> None:
    shown = gathered.methods_run(experiment.name, list(looks))
    for method in shown:
        draw_band(axis, band(gathered, experiment.name, method, "condition"), looks[method])
    if not shown:
        note(axis, "not run")
    axis.set_ylabel("largest over smallest")
    axis.axhline(1, **LINE_AT_ONE)
