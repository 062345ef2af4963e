"""Parts of panels: the axis of epochs, levels with their names, medians and bands, marks, rows of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from egalitarian.lab.analysis import Array, Band
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.style import LETTER, QUIET, SMALL, ink, literal

SPARSE = 25
"""Points per decade on the edges of a band: the SVG writer simplifies lines, but not bands."""
FEW_EPOCHS = 50
"""An axis of no more epochs is linear."""
LINEAR = 0.3
"""Of a decade: what the first epoch takes of a logarithmic axis."""
LEVEL: dict[str, Any] = {"color": "0.55", "linewidth": 0.8, "linestyle": (0, (1, 2))}
"""The line of a level, of which the name stands beside it."""
TRAINING: dict[str, Any] = {"linewidth": 0.9, "linestyle": ":"}
KEY_HEIGHT = 0.17
"""Inches: a line of a key."""
ROW, MARGIN = 0.24, 0.9
"""Inches: a method's row; title and axis."""
DECADES = 10**2.5
"""Axes that span more have ticks at powers of ten alone."""
SPREAD, APART = 0.5, 0.8
"""Of a row, for seeds with the same value; for failed ones, which all have the same place."""


def epoch_axis(axes: Sequence[Axes]) -> None:
    """The horizontal axis of panels that share it, or of each: epochs as tables count them, from 0.

    It is linear up to 1, then logarithmic; linear throughout if the epochs are few.
    """
    ends = [axis.dataLim.x1 for axis in axes if np.isfinite(axis.dataLim.x1)]
    last = max([1.0, *ends])
    axes[-1].set_xlabel("epoch")
    for axis in axes:
        if last > FEW_EPOCHS:
            axis.set_xscale("symlog", linthresh=1, linscale=LINEAR, subs=range(2, 10))
            powers = [10**power for power in range(int(np.log10(last)) + 1)]
            axis.set_xticks([0, *powers], [f"{tick}" for tick in (0, *powers)])
        axis.set_xlim(0, last * (1.1 if last > FEW_EPOCHS else 1.03))


def accuracy_axis(axis: Axes, label: str, low: float = 0.0) -> None:
    """Shares in percent, from `low` to 1, with a little room at both ends."""
    room = 0.04 * (1 - low)
    axis.set_ylim(low - room, 1 + room)
    axis.set_ylabel(label)
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axis.set_yticks([tick for tick in (0, 0.25, 0.5, 0.75, 1) if tick >= low])


def chance(experiment: Experiment) -> float:
    """The accuracy of a guess: one output is a sign, more are classes."""
    return 1 / max(2, getattr(experiment.task, "outputs", 2))


def lowest(experiment: Experiment) -> float:
    """Where an axis of accuracy begins: at chance, or at 0 if that is near."""
    return chance(experiment) if chance(experiment) > 0.2 else 0.0


def draw_levels(axis: Axes, experiment: Experiment) -> None:
    """The threshold and what a guess would reach, each with its name at the right edge."""
    level_line(axis, chance(experiment), f"chance\n{100 * chance(experiment):.2g} %")
    if experiment.measure.has_threshold:
        level_line(axis, experiment.measure.threshold, f"threshold\n{100 * experiment.measure.threshold:g} %")


def level_line(axis: Axes, level: float, name: str) -> None:
    """A dotted line across a panel, and its name at the right edge."""
    axis.axhline(level, zorder=1, **LEVEL)
    place = axis.get_yaxis_transform()
    axis.text(1.01, level, name, transform=place, va="center", color=QUIET, fontsize=SMALL - 0.5, linespacing=1.0)


def draw_band(
    axis: Axes, found: Band, look: Look, *, edges: bool = True, thin: bool = True, per_epoch: int = 0, **line: Any
) -> None:
    """The median as a line, the quartiles as a band.

    Args:
        edges: whether to draw the band.
        thin: whether to leave out points of the band, which is right for a logarithmic axis only.
        per_epoch: steps of an epoch, for an axis of steps; 0 for one of epochs.
        line: options of the line, as in matplotlib.
    """
    if not len(found.epochs):
        return  # no epoch has a value
    x = per_epoch * (found.epochs + 1) if per_epoch else found.epochs
    axis.plot(x, found.middle, **{"color": look.colour, "linestyle": look.line, **line})
    if edges:
        keep = sparse(found.epochs) if thin else np.arange(len(x))
        axis.fill_between(x[keep], found.low[keep], found.high[keep], color=look.colour, alpha=0.2, linewidth=0)


def sparse(epochs: Array) -> NDArray[np.intp]:
    """The indices of about `SPARSE` epochs per decade, with the first and the last."""
    steps = np.round(SPARSE * np.log10(epochs + 1))
    fresh = np.flatnonzero(np.diff(steps, prepend=-1.0))
    return np.union1d(fresh, [len(epochs) - 1]).astype(np.intp)


def mark(axis: Axes, x: float | Array, y: float | Array, drawn: Look) -> None:
    """A method's marker, where it passes the threshold or its line ends."""
    axis.plot(x, y, drawn.marker, color=drawn.colour, markeredgecolor="white", markersize=5.5, zorder=5)


def note(axis: Axes, text: str) -> None:
    """A text in the middle of an empty panel."""
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="0.4")


def grow(figure: Figure, inches: float) -> None:
    """Makes a figure higher."""
    figure.set_figheight(figure.get_figheight() + inches)


def median_key(says: str = "median of the seeds", colour: str = QUIET) -> list[Line2D | Patch]:
    """What a line and its band are."""
    return [
        Line2D([], [], color=colour, label=says),
        Patch(color=colour, alpha=0.2, linewidth=0, label="middle half of the seeds"),
    ]


def training_key() -> Line2D:
    return Line2D([], [], color=QUIET, label="training accuracy", **TRAINING)


def add_key(figure: Figure, handles: Iterable[Line2D | Patch]) -> None:
    """The meaning of lines, bands and marks below the panels. The figure grows by its height."""
    known: Sequence[Line2D | Patch] = list(handles)
    if not known:
        return
    widths = [LETTER * len(str(each.get_label())) + 0.45 for each in known]
    columns = len(known) if sum(widths) <= figure.get_figwidth() else max(1, int(figure.get_figwidth() / max(widths)))
    grow(figure, KEY_HEIGHT * -(-len(known) // columns))
    figure.legend(handles=known, loc="outside lower center", ncols=columns, columnspacing=1.4, handlelength=1.8)


class Row(NamedTuple):
    """A method of a figure, and the value of each of its seeds; infinite where one failed."""

    title: str
    colour: str
    values: tuple[float, ...]
    text: str
    """Behind the points."""
    middle: float
    """Where the median is marked, if it is finite."""
    strong: bool = False


def draw_rows(axis: Axes, rows: Sequence[Row], beyond: float) -> None:
    """Every seed as a point, the median as a bar with its text. Failed seeds are crosses at `beyond`."""
    for place, row in enumerate(rows):
        values = np.array(row.values)
        lost = np.isinf(values)
        heights, apart = (place + share * (_ranks(len(values)) - 0.5) for share in (SPREAD, APART))
        axis.plot(values[~lost], heights[~lost], "o", color=row.colour, ms=3, alpha=0.7, mew=0, ls="")
        axis.plot(np.full(lost.sum(), beyond), apart[lost], "x", color=row.colour, ms=3, mew=0.8, ls="")
        if math.isfinite(row.middle):
            axis.plot([row.middle] * 2, [place - 0.36, place + 0.36], color=row.colour, lw=2, solid_capstyle="butt")
        right = np.where(lost, beyond, values).max(initial=-math.inf)
        axis.annotate(
            row.text, (right, place), (6, 0), textcoords="offset points", va="center", size=SMALL, color=ink(row.colour)
        )
    name_rows(axis, [(row.title, row.colour, row.strong) for row in rows])


def _ranks(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each seed's place in [0, 1] in the order of the seeds, so that equal values do not hide each other."""
    return np.arange(count) / (count - 1) if count > 1 else np.full(count, 0.5)


def name_rows(axis: Axes, names: Sequence[tuple[str, str, bool]]) -> None:
    """One tick for each row, in its colour, in bold letters if it is to stand out."""
    axis.set_ylim(-0.6, len(names) - 0.4 + 0.2)
    axis.set_yticks(range(len(names)), [literal(title) for title, _, _ in names])
    for label, (_, colour, strong) in zip(axis.get_yticklabels(), names, strict=True):
        label.set_color(ink(colour))
        label.set_fontweight("bold" if strong else "normal")
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.spines.left.set_visible(False)


def mark_failed(axis: Axes, left: float, at: float, name: str = "failed") -> None:
    """The place of failed seeds, beyond a line."""
    axis.axvline(left, color="0.7", lw=0.8)
    low = axis.get_xlim()[0]
    for minor in (False, True):
        axis.set_xticks([tick for tick in axis.get_xticks(minor=minor) if low <= tick < left], minor=minor)
    axis.text(at, 1, name, transform=axis.get_xaxis_transform(), ha="center", va="bottom", size=SMALL, color=QUIET)


def plain_numbers(axis: Axes) -> None:
    """Ticks of a logarithmic axis as numbers, not as powers of ten."""
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < DECADES * low else (1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
