"""Seeds as a line and a band, methods as colours: what the figures of runs share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from egalitarian.lab.analysis.gather import Gathered, Summary
from egalitarian.lab.analysis.reading import is_kept
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures.style import CYCLE, OKABE_ITO, WIDTH

Array = NDArray[np.float64]
SPARSE = 25
"""Points per decade of a band's edges: bands are not simplified by the SVG writer, lines are."""


LETTER, KEY = 0.05, 0.5
"""Inches, of a legend's average letter, and of the line before it."""


TALL = 8
"""Lines of a legend in one column, beyond which a figure is made wider."""


class Look(NamedTuple):
    """How a method is drawn, in every figure."""

    colour: str
    marker: str


LOOKS = {
    "sgd": Look(OKABE_ITO["black"], "o"),
    "egd": Look(OKABE_ITO["vermillion"], "s"),
    "row-norm": Look(OKABE_ITO["green"], "^"),
    "egd-rsvd-128": Look(OKABE_ITO["blue"], "D"),
    "egd-rsvd-64": Look(OKABE_ITO["sky"], "v"),
    "egd-rsvd-40": Look(OKABE_ITO["blue"], "D"),
    "egd-rsvd-30": Look(OKABE_ITO["sky"], "v"),
    "egd-rsvd-20": Look(OKABE_ITO["purple"], "P"),
    "egd-rsvd-10": Look(OKABE_ITO["orange"], "X"),
    "sgd-lr5": Look("#8C8C8C", "o"),
    "egd-after": Look(OKABE_ITO["orange"], "s"),
    "muon": Look(OKABE_ITO["blue"], "h"),
    "natural": Look("#7A5195", "d"),
    "grokfast-ema": Look(OKABE_ITO["sky"], "<"),
    "grokfast-ma": Look(OKABE_ITO["green"], ">"),
    "egd-grokfast": Look(OKABE_ITO["purple"], "*"),
    "adamw": Look(OKABE_ITO["black"], "o"),
    "adamw-decay": Look("#8C8C8C", "o"),
    "adam": Look(OKABE_ITO["black"], "o"),
    "adam-decay": Look("#8C8C8C", "o"),
    "egd-rsvd-36": Look(OKABE_ITO["blue"], "D"),
    "egd-rsvd-16": Look(OKABE_ITO["blue"], "D"),
    "egd-rsvd-8": Look(OKABE_ITO["purple"], "P"),
    "egd-rsvd-4": Look(OKABE_ITO["orange"], "X"),
    "egd-little-decay": Look(OKABE_ITO["green"], "d"),
    "egd-hidden": Look("#7A5195", "h"),
    "egd-adam": Look("#A05A00", "*"),
    "egd-no-decay": Look(OKABE_ITO["green"], "d"),
    "egd-first": Look(OKABE_ITO["orange"], "s"),
    "egd-rsvd-36-first": Look(OKABE_ITO["purple"], "P"),
    "egd-adamw": Look("#A05A00", "*"),
    "adam-egd": Look(OKABE_ITO["vermillion"], "s"),
    "radam": Look(OKABE_ITO["blue"], "D"),
    "radam-egd": Look(OKABE_ITO["sky"], "v"),
    "rmsprop": Look(OKABE_ITO["green"], "^"),
    "rmsprop-egd": Look(OKABE_ITO["orange"], "X"),
}
"""No two methods that stand in one figure share a colour, and the marker tells them apart without it."""


MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of methods the lab does not know, in turn."""


MANY = tuple(to_hex(colormaps["tab20"](place)) for place in (*range(0, 20, 2), *range(1, 20, 2)))
"""Ten colours, and the same paler."""


def look(method: str, methods: Sequence[str]) -> Look:
    """Of a method among those of a figure.

    Those the lab does not know, or whose colour an earlier one has, take the colours that are left, or, where these are too
    few, others that are not safe for all eyes, or, where even these are, a scale from dark to light.
    """
    known: dict[str, Look] = {}
    for name in methods:
        if name in LOOKS and LOOKS[name].colour not in {other.colour for other in known.values()}:
            known[name] = LOOKS[name]
    if method in known:
        return known[method]
    others = [name for name in methods if name not in known]
    taken = {drawn.colour for drawn in known.values()}
    colours = [colour for colour in CYCLE if colour not in taken]
    if len(colours) < len(others):
        colours = [colour for colour in MANY if all(_apart(colour, other) for other in taken)]
    if len(colours) < len(others):
        colours = [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.12, 0.92, len(others)))]
    place = others.index(method)
    return Look(colours[place], MARKERS[place % len(MARKERS)])


def _apart(colour: str, other: str) -> bool:
    """Whether eyes tell them apart."""
    return float(np.linalg.norm(np.subtract(to_rgb(colour), to_rgb(other)))) > 0.2


class Band(NamedTuple):
    """Median and quartiles over seeds by epoch; NaN where too few seeds have the epoch."""

    epochs: Array
    middle: Array
    low: Array
    high: Array


def band(curves: pd.DataFrame, seeds: Sequence[Summary], measure: str, *, hold: bool = False) -> Band:
    """Over the seeds of one method: the median while half of them are still in training, the quartiles while a quarter is.

    Seeds stop soon after they pass, at different epochs, so that the seeds left over are the slow ones. With `hold`, one
    that has passed counts at its last value from then on: for an accuracy its rank is right, as that lies above the rest.
    """
    ordered = sorted(seeds, key=lambda seed: seed.seed)
    wide = curves.pivot_table(index="seed", columns="epoch", values=measure).reindex([seed.seed for seed in ordered])
    epochs = np.array([epoch for epoch in wide.columns if is_kept(epoch)], dtype=float)
    held = wide.ffill(axis="columns")[epochs.astype(int)].to_numpy(dtype=float)
    training = epochs < np.array([[seed.epochs] for seed in ordered])
    passed = np.array([[hold and seed.crossed is not None] for seed in ordered])
    values = np.where(training | passed, held, np.nan)
    live = training.mean(0)
    low, middle, high = _quartiles(values)
    return Band(
        epochs,
        np.where(live >= 0.5, middle, np.nan),
        np.where(live >= 0.25, low, np.nan),
        np.where(live >= 0.25, high, np.nan),
    )


def _quartiles(values: Array) -> Array:
    """(3, epochs) from (seeds, epochs), of what is finite; NaN where nothing is.

    Each is some seed's value: where half of the seeds have learnt and half have not, nobody is between.
    """
    columns = [column[np.isfinite(column)] for column in values.T]
    rows = [
        np.quantile(column, (0.25, 0.5, 0.75), method="inverted_cdf") if len(column) else np.full(3, np.nan)
        for column in columns
    ]
    return np.array(rows, dtype=float).reshape(-1, 3).T


def draw_band(
    axis: Axes, found: Band, colour: str, *, edges: bool = True, thin: bool = True, per_epoch: int = 1, **line: object
) -> None:
    """The median as a line, the quartiles as a band around it; epochs count from 1 on the axis, for the logarithm.

    With `per_epoch` the axis is of so many steps an epoch. `thin` edges are for an axis of logarithms.
    """
    if not len(found.epochs):
        return  # not one epoch with a number in it
    ends = per_epoch * (found.epochs + 1)
    axis.plot(ends, found.middle, color=colour, **line)  # type: ignore[arg-type]
    if edges:
        keep = sparse(found.epochs) if thin else np.arange(len(ends))
        axis.fill_between(ends[keep], found.low[keep], found.high[keep], color=colour, alpha=0.2, linewidth=0)


def sparse(epochs: Array) -> NDArray[np.intp]:
    """The places of about `SPARSE` epochs per decade, and of the first and last."""
    steps = np.round(SPARSE * np.log10(epochs + 1))
    fresh = np.flatnonzero(np.diff(steps, prepend=-1.0))
    return np.union1d(fresh, [len(epochs) - 1]).astype(np.intp)


def mark(axis: Axes, x: float | Array, y: float | Array, marked: Look) -> None:
    """Where a method passes the threshold, or its line ends."""
    axis.plot(x, y, marked.marker, color=marked.colour, markeredgecolor="white", markersize=5.5, zorder=5)


def note(axis: Axes, text: str) -> None:
    """In the middle of a panel that has nothing to show."""
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="0.4")


def present(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> list[str]:
    """The methods that have runs of the experiment."""
    return [method for method in methods if gathered.of(experiment.name, method)]


def missing(gathered: Gathered, experiment: Experiment, titles: Mapping[str, str]) -> list[str]:
    """What the legend names and the panel lacks, in words, line by line; nothing where nothing at all was run."""
    shown = present(gathered, experiment, list(titles))
    lacking = [title for method, title in titles.items() if method in experiment.methods and method not in shown]
    return ["not run:", *lacking] if shown and lacking else []


def say_below(axes: Sequence[Axes], remarks: Sequence[Sequence[str]], panels: int | None = None) -> None:
    """Remarks on each panel under the name of its epochs, where nothing is drawn. The figure grows by their height.

    Args:
        panels: side by side, where these are not all of `axes`.
    """
    width = round(1.2 * _letters(panels or len(axes)))  # smaller letters than a title's
    lines = [[line for remark in own for line in textwrap.wrap(remark, width)] for own in remarks]
    for axis, own in zip(axes, lines, strict=True):
        axis.set_xlabel("\n".join([axis.get_xlabel(), *own]))
    figure = axes[0].get_figure(root=True)
    if figure is not None:
        figure.set_figheight(figure.get_figheight() + 0.14 * max(map(len, lines)))


def legend(figure: Figure, titles: Mapping[str, str], methods: Sequence[str], *more: Line2D) -> None:
    """Below the panels: the methods that are drawn, then what lines and marks mean. The figure grows by its height."""
    handles = [
        Line2D([], [], color=look(name, methods).colour, marker=look(name, methods).marker, label=title)
        for name, title in titles.items()
    ]
    handles += more
    if not handles:
        return
    lengths = [len(str(handle.get_label())) for handle in handles]
    if len(lengths) > TALL and _columns(lengths, figure.get_figwidth()) == 1:
        figure.set_figwidth(WIDTH)
    for handle in handles:
        handle.set_label(textwrap.fill(str(handle.get_label()), int(0.9 * (figure.get_figwidth() - KEY) / LETTER)))
    columns = _columns(lengths, figure.get_figwidth())
    lines = sum(1 + str(handle.get_label()).count("\n") for handle in handles)
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-lines // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2)


def _columns(lengths: Sequence[int], width: float) -> int:
    """As many columns as fit, for labels of so many letters, filled one column after the other."""
    for columns in range(len(lengths), 1, -1):
        longest = [max(part) for part in np.array_split(lengths, columns)]
        if sum(LETTER * length + KEY for length in longest) <= width:
            return columns
    return 1


def labels(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> dict[str, str]:
    """The methods that have runs of any of the experiments, with their titles, as the first of these says."""
    run = {
        method: literal(experiment.methods[method].title)
        for experiment in reversed(experiments)
        for method in present(gathered, experiment, methods)
    }
    return {method: run[method] for method in methods if method in run}


def new_figure(panels: int, height: float) -> Figure:
    """As wide as so many panels side by side need, at most a page's text; `height` without the legend's."""
    return Figure(figsize=({1: 4.0, 2: 5.4}.get(panels, WIDTH), height), layout="constrained")


def panel_title(title: str, panels: int) -> str:
    """In as many lines as a panel's width needs."""
    return textwrap.fill(literal(title), _letters(panels))


def literal(title: str) -> str:
    """A title as it is: no sign of it begins a formula."""
    return title.replace("$", r"\$")


def _letters(panels: int) -> int:
    """That fit into a panel's width."""
    return {1: 44, 2: 36, 3: 25}.get(panels, 20)
