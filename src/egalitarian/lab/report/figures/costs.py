"""Figures of what every seed needed: fresh seeds of the fair comparison, for one family or all, and runs of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import Gathered, MethodCost, Side, estimate, fastest_stock, ratios_to_stock
from egalitarian.lab.config import Experiment, changing
from egalitarian.lab.report.figures.axes import (
    LINEAR,
    MARGIN,
    ROW,
    Row,
    draw_rows,
    mark_failed,
    name_rows,
    note,
    plain_numbers,
)
from egalitarian.lab.report.figures.style import OKABE_ITO, WIDTH, family_colour, literal, styled

COLOURS: dict[Side, str] = {
    "stock": "#595959",
    "rival": OKABE_ITO["blue"],
    "form": OKABE_ITO["vermillion"],
    "ours": OKABE_ITO["vermillion"],
}
SIDE_LABELS: dict[Side, str] = {"stock": "stock optimizer", "rival": "other method", "form": "form of EGD"}
NARROW = 0.18
"""Inches: the height of a row in a figure with a panel for each experiment."""
COSTS = (
    "Every point is a seed, and the bar is the median with its number. Methods are sorted by the median. The value is the "
    "first epoch past the threshold, counted from 0 as in the tables; without a threshold it is the final test accuracy of "
    "full-length runs. Crosses beyond the line are seeds that did not pass within their budget, or diverged."
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers of families, in this order."""


@styled
def draw_costs(title: str, methods: Sequence[MethodCost], unit: str) -> Figure:
    """Draws every fresh seed as a point, methods sorted by their median.

    The band is the range of the fastest stock optimizer. Failed seeds are at the end of the axis, beyond the largest value.
    """
    ordered = sorted(methods, key=lambda each: (each.cost.median, each.cost.failed, each.title), reverse=True)
    figure = Figure(figsize=(WIDTH, MARGIN + ROW * max(len(ordered), 3)), layout="constrained")
    axis = figure.add_subplot()
    rows = [_compared_row(each) for each in ordered]
    end = _spread(axis, rows, [value for row in rows for value in row.values], "log")
    _stock_band(axis, ordered, end)
    axis.set_xlabel(f"{unit} of each fresh seed, and their median (logarithmic)")
    figure.suptitle(literal(title), size=9)
    add_side_key(figure, ordered)
    return figure


def _compared_row(each: MethodCost) -> Row:
    ours = each.side == "ours"
    text = "none" if math.isinf(each.cost.median) else f"{each.cost.median:.4g}"
    text += f", {each.cost.failed} of {len(each.cost.seeds)} failed" if each.cost.failed else ""
    text += " (ours)" if ours else ""
    return Row(each.title, COLOURS[each.side], each.cost.seeds, text, each.cost.median, strong=ours)


def _spread(axis: Axes, rows: Sequence[Row], values: Sequence[float], scale: str, name: str = "failed") -> float:
    """Draws rows on an axis with room for these values. Returns where the region of failed seeds begins."""
    finite, failed = [value for value in values if math.isfinite(value)], any(map(math.isinf, values))
    low, high = min(finite, default=1.0), max(finite, default=10.0)
    step: float = (high / max(low, 1e-9 if scale == "log" else 1.0)) ** 0.06 * 1.1  # the width of a mark, as a factor
    axis.set_xscale(scale, **({"linthresh": 1, "linscale": LINEAR} if scale == "symlog" else {}))
    axis.set_xlim(low / step if low > 0 else -0.2, high * step ** (5 if failed else 2))
    draw_rows(axis, rows, high * step**2)
    plain_numbers(axis)
    if failed:
        mark_failed(axis, high * step, high * step**2, name)
    return high * step


@styled
def draw_needed(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws one panel per experiment: the epoch at which each seed passes, or its accuracy if there is no threshold."""
    waits = all(experiment.measure.has_threshold for experiment in experiments)
    panels = [(epoch_rows if waits else final_rows)(gathered, experiment, methods) for experiment in experiments]
    heights = [max(len(rows), 2) + 1 for rows in panels]
    figure = Figure(figsize=(WIDTH, 0.5 + 0.15 * len(panels) + NARROW * sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    values = [value for rows in panels for row in rows for value in row.values]
    for axis, rows, experiment in zip(axes, panels, experiments, strict=True):
        axis.set_title(literal(experiment.title), loc="left")
        if waits:
            _spread(axis, rows, values, "symlog", "not passed" if axis is axes[0] else "")
        else:
            _line_up(axis, rows, values)
        if not rows:
            note(axis, "not run")
    axes[-1].set_xlabel("epoch that passes the threshold (logarithmic)" if waits else accuracy_label(experiments[0]))
    return figure


def epoch_rows(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> list[Row]:
    """Rows of the epochs at which seeds pass, the slowest method first. A median that is only a bound has no bar."""
    rows = []
    for method in gathered.methods_run(experiment.name, methods):
        seeds = gathered.of(experiment.name, method)
        crossed = tuple(math.inf if seed.outcome.crossed is None else float(seed.outcome.crossed) for seed in seeds)
        found, own = estimate(seeds), experiment.method(method)
        exact = found.median is not None and found.median.is_exact
        text = f"{found.median}{f', {found.passed} of {found.n} pass' if found.failed else ''}"
        middle = found.median.value if found.median is not None and exact else math.inf
        rows.append(Row(own.title, family_colour(own), crossed, text, middle, method=method))
    return sorted(rows, key=lambda row: (row.middle, sum(map(math.isinf, row.values)), row.title), reverse=True)


def final_rows(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> list[Row]:
    """Rows of accuracies in percent, the lowest first. A seed that was not trained to the end is infinite."""
    rows = []
    for method in gathered.methods_run(experiment.name, methods):
        seeds, own = gathered.of(experiment.name, method), experiment.method(method)
        found = [seed.mean_train_accuracy if changing(experiment) else seed.outcome.test_accuracy for seed in seeds]
        kept = [seed.full and value is not None for seed, value in zip(seeds, found, strict=True)]
        values = tuple(100 * (value or 0) if keep else math.inf for value, keep in zip(found, kept, strict=True))
        finite = [value for value in values if math.isfinite(value)]
        middle = statistics.median(finite) if finite else math.inf
        lost = f", {len(values) - len(finite)} of {len(values)} not to the end" if len(finite) < len(values) else ""
        text = f"{middle:.1f} %{lost}" if finite else lost[2:]
        rows.append(Row(own.title, family_colour(own), values, text, middle, method=method))
    return sorted(rows, key=lambda row: (-row.middle if math.isinf(row.middle) else row.middle, row.title))


def _line_up(axis: Axes, rows: Sequence[Row], values: Sequence[float]) -> None:
    """Draws rows of accuracies on a linear axis. Seeds that were not trained to the end are left of the smallest."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=100.0)
    room = 0.05 * max(high - low, 1.0)
    axis.set_xlim(low - 3 * room, high + 4 * room)
    draw_rows(axis, rows, low - 2 * room)


def accuracy_label(experiment: Experiment) -> str:
    return "training accuracy, mean of all epochs, %" if changing(experiment) else "final test accuracy, %"


def add_side_key(figure: Figure, methods: Sequence[MethodCost], *more: Line2D) -> None:
    """Adds a key of colours, and of marks if there are several."""
    order: tuple[Side, ...] = ("stock", "rival", "form")
    sides = [side for side in order if any(_shown(each.side) == side for each in methods)]
    handles = [Line2D([], [], color=COLOURS[side], marker="o", ls="", label=SIDE_LABELS[side]) for side in sides]
    if any(each.side == "stock" for each in methods) and not more:
        handles.append(Line2D([], [], color="0.88", lw=6, label="range of the fastest stock optimizer"))
    figure.legend(handles=[*handles, *more], loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.2)


def _shown(side: Side) -> Side:
    return "form" if side == "ours" else side


def _stock_band(axis: Axes, methods: Sequence[MethodCost], end: float) -> None:
    best = fastest_stock(methods)
    if best is None or best.cost.failed == len(best.cost.seeds):
        return
    low, high = min(best.cost.seeds), min(max(best.cost.seeds), end)
    axis.axvspan(low, high, color="0.88", lw=0, zorder=0)


@styled
def draw_ratios(families: Mapping[str, Sequence[MethodCost]]) -> Figure:
    """Draws the ratio of every method's median to that of the fastest stock optimizer, for each family.

    Methods are sorted by their largest ratio, the smallest on top.
    """
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
    name_rows(axis, [(each.title, COLOURS[each.side], each.side == "ours") for each in ordered])
    plain_numbers(axis)
    if failed:
        mark_failed(axis, high * step, high * step**2)
    axis.set_xlabel("median, relative to the family's fastest stock optimizer")
    figure.suptitle("All families: the method with the smallest worst ratio on top", size=9)
    add_side_key(figure, ordered, *(_family(literal(name), index) for index, name in enumerate(shown)))
    return figure


def _marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def _family(name: str, index: int) -> Line2D:
    return Line2D([], [], color="0.35", marker=_marker(index), ls="", label=name)


def _mean(ratios: Mapping[str, float]) -> float:
    """The geometric mean; infinite if a ratio is."""
    return (
        math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        if all(map(math.isfinite, ratios.values()))
        else math.inf
    )
