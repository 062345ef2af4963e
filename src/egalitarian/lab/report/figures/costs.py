"""The fair comparison in pictures: what every fresh seed needed, method by method; and all families in one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from egalitarian.lab.analysis import MethodCost, Side, fastest_stock, ratios_to_stock
from egalitarian.lab.report.figures.style import OKABE_ITO, WIDTH, literal, styled

COLOURS: dict[Side, str] = {
    "stock": "#595959",
    "rival": OKABE_ITO["blue"],
    "form": OKABE_ITO["vermillion"],
    "ours": OKABE_ITO["vermillion"],
}
SAYS: dict[Side, str] = {"stock": "stock optimizer", "rival": "other method", "form": "form of EGD"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ROW, MARGIN = 0.24, 0.9
"""Inches: a method's row; title and axis."""
DECADES = 10**2.5
"""Axes that span more have ticks at powers of ten alone."""
SPREAD = 0.5
"""Of a row, for seeds with the same value."""


@styled
def draw_costs(title: str, methods: Sequence[MethodCost], unit: str) -> Figure:
    """Every fresh seed as a point, methods sorted by their median. The band is the range of the fastest stock optimizer.

    Failed seeds stand beyond the largest value, at the axis' end.
    """
    ordered = sorted(methods, key=lambda each: (each.cost.median, each.cost.failed, each.title), reverse=True)
    figure = Figure(figsize=(WIDTH, MARGIN + ROW * max(len(ordered), 3)), layout="constrained")
    axis = figure.add_subplot()
    values = [value for each in ordered for value in each.cost.seeds if math.isfinite(value)]
    failed = any(each.cost.failed for each in ordered)
    low, high = min(values, default=1.0), max(values, default=10.0)
    step = (high / low) ** 0.06 * 1.1  # what a mark takes of the axis
    axis.set_xscale("log")
    axis.set_xlim(low / step, high * step ** (5 if failed else 2))
    beyond = high * step**2 if failed else high
    _stock_band(axis, ordered, high * step)
    for row, each in enumerate(ordered):
        _seeds(axis, row, each, beyond)
    _rows(axis, ordered)
    _plain_numbers(axis)
    if failed:
        _failed(axis, high * step, beyond)
    axis.set_xlabel(f"{unit} of each fresh seed, and their median (logarithmic)")
    figure.suptitle(literal(title), size=9)
    _key(figure, ordered)
    return figure


def _failed(axis: Axes, left: float, at: float) -> None:
    """The place of failed seeds, beyond a line."""
    axis.axvline(left, color="0.7", lw=0.8)
    low = axis.get_xlim()[0]
    for minor in (False, True):
        axis.set_xticks([tick for tick in axis.get_xticks(minor=minor) if low <= tick < left], minor=minor)
    axis.text(at, 1, "failed", transform=axis.get_xaxis_transform(), ha="center", va="bottom", size=7, color="0.35")


def _key(figure: Figure, methods: Sequence[MethodCost], *more: Line2D) -> None:
    """The meaning of colours, and of marks if there are several."""
    order: tuple[Side, ...] = ("stock", "rival", "form")
    sides = [side for side in order if any(_shown(each.side) == side for each in methods)]
    handles = [Line2D([], [], color=COLOURS[side], marker="o", ls="", label=SAYS[side]) for side in sides]
    if any(each.side == "stock" for each in methods) and not more:
        handles.append(Line2D([], [], color="0.88", lw=6, label="range of the fastest stock optimizer"))
    figure.legend(handles=[*handles, *more], loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.2)


def _shown(side: Side) -> Side:
    return "form" if side == "ours" else side


def _seeds(axis: Axes, row: int, each: MethodCost, beyond: float) -> None:
    """A row of points, the median's bar and its number."""
    colour = COLOURS[each.side]
    heights = row + SPREAD * (_ranks(each.cost.seeds) - 0.5)
    shown = np.array([value if math.isfinite(value) else beyond for value in each.cost.seeds])
    lost = np.isinf(each.cost.seeds)
    axis.plot(shown[~lost], heights[~lost], "o", color=colour, ms=3, alpha=0.7, mew=0, ls="")
    axis.plot(shown[lost], heights[lost], "x", color=colour, ms=3, ls="")
    if math.isfinite(each.cost.median):
        axis.plot([each.cost.median] * 2, [row - 0.36, row + 0.36], color=colour, lw=2, solid_capstyle="butt")
    right = max(shown)
    text = "none" if math.isinf(each.cost.median) else f"{each.cost.median:.4g}"
    text += f", {each.cost.failed} of {len(lost)} failed" if each.cost.failed else ""
    text += " (ours)" if each.side == "ours" else ""
    axis.annotate(text, (right, row), (6, 0), textcoords="offset points", va="center", size=7, color=colour)


def _ranks(seeds: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each seed's place in [0, 1] in the order of the seeds, so that equal values do not hide each other."""
    return np.arange(len(seeds)) / max(len(seeds) - 1, 1) if len(seeds) > 1 else np.array([0.5])


def _stock_band(axis: Axes, methods: Sequence[MethodCost], end: float) -> None:
    best = fastest_stock(methods)
    if best is None or best.cost.failed == len(best.cost.seeds):
        return
    low, high = min(best.cost.seeds), min(max(best.cost.seeds), end)
    axis.axvspan(low, high, color="0.88", lw=0, zorder=0)


def _rows(axis: Axes, methods: Sequence[MethodCost]) -> None:
    """One tick for each method, in the colour of its side."""
    axis.set_ylim(-0.6, len(methods) - 0.4 + 0.2)
    axis.set_yticks(range(len(methods)), [literal(each.title) for each in methods])
    for label, each in zip(axis.get_yticklabels(), methods, strict=True):
        label.set_color(COLOURS[each.side])
        label.set_fontweight("bold" if each.side == "ours" else "normal")
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.spines.left.set_visible(False)


def _plain_numbers(axis: Axes) -> None:
    """Ticks as numbers, not as powers of ten."""
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < DECADES * low else (1.0,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


@styled
def draw_ratios(families: Mapping[str, Sequence[MethodCost]]) -> Figure:
    """Every method's median over that of the fastest stock optimizer, family by family; sorted by the largest ratio."""
    ratios = ratios_to_stock(families)
    known = {each.method: each for methods in families.values() for each in methods if each.method in ratios}
    worst = {method: max(found.values()) for method, found in ratios.items()}
    ordered = [known[method] for method in sorted(known, key=lambda method: (-worst[method], -_mean(ratios[method])))]
    figure = Figure(figsize=(WIDTH, MARGIN + 0.3 + ROW * max(len(ordered), 3)), layout="constrained")
    axis = figure.add_subplot()
    finite = [value for found in ratios.values() for value in found.values() if math.isfinite(value)]
    low, high = min([*finite, 0.8]), max([*finite, 1.25])
    failed, step = len(finite) < sum(map(len, ratios.values())), (high / low) ** 0.06 * 1.1
    axis.set_xscale("log")
    axis.set_xlim(low / step, high * step ** (3 if failed else 1))
    shown = [name for name in families if any(name in found for found in ratios.values())]
    for row, each in enumerate(ordered):
        here = {name: min(value, high * step**2) for name, value in ratios[each.method].items()}
        axis.plot([min(here.values()), max(here.values())], [row, row], color="0.85", lw=1, zorder=1)
        for name, value in here.items():
            axis.plot(value, row, _marker(shown.index(name)), color=COLOURS[each.side], mec="white", mew=0.4, ms=5.5)
    axis.axvline(1, color="0.35", lw=1)
    _rows(axis, ordered)
    _plain_numbers(axis)
    if failed:
        _failed(axis, high * step, high * step**2)
    axis.set_xlabel("median, relative to the family's fastest stock optimizer")
    figure.suptitle("All families: the method with the smallest worst ratio on top", size=9)
    _key(figure, ordered, *(_family(literal(name), index) for index, name in enumerate(shown)))
    return figure


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def _family(name: str, index: int) -> Line2D:
    return Line2D([], [], color="0.35", marker=_marker(index), ls="", label=name)


def _mean(ratios: Mapping[str, float]) -> float:
    """Geometric."""
    return (
        math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        if all(map(math.isfinite, ratios.values()))
        else math.inf
    )
