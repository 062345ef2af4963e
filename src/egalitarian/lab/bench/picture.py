"""A benchmark as a picture: time on a logarithmic axis, a line for each group, a marker for each method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.bench.theme import Row, Theme
from egalitarian.lab.report.figures.style import CYCLE, WIDTH, styled

MARKERS = "os^Dv"
UNITS = {"ms": "ms", "seconds": "seconds"}


@styled
def draw(theme: Theme, rows: Sequence[Row], path: Path) -> bool:
    """Filled: as it is; hollow: inside a CUDA graph. False, and no file, where no row has a time."""
    timed = [row for row in rows if row.numbers.get(theme.number)]
    if not timed:
        return False
    groups = list(dict.fromkeys(row.group for row in timed))
    methods = list(dict.fromkeys(row.method for row in timed))
    figure = Figure(figsize=(WIDTH, 1.6 + 0.34 * len(groups) + 0.1 * len(methods)), layout="constrained")
    axis = figure.add_subplot()
    for row in timed:
        _mark(axis, theme, row, groups.index(row.group), methods.index(row.method))
    axis.set(xscale="log", xlabel=UNITS[theme.number], ylim=(len(groups) - 0.5, -0.5))
    axis.set_yticks(range(len(groups)), groups)
    axis.set_title(theme.title)
    handles = [Line2D([], [], ls="", label=name, **_look(place)) for place, name in enumerate(methods)]
    if theme.graph and any(row.numbers.get(theme.graph) for row in timed):
        handles.append(Line2D([], [], ls="", marker="o", color="#888888", mfc="none", label="hollow: in a CUDA graph"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.savefig(path, metadata={"Software": None})
    return True


def _mark(axis: Axes, theme: Theme, row: Row, line: int, place: int) -> None:
    """A method has its own height within its group's line, so that no marker hides another."""
    height = line + 0.05 * (place % 9 - 4)
    axis.plot(row.numbers[theme.number], height, ls="", **_look(place))
    in_graph = row.numbers.get(theme.graph)
    if in_graph:
        axis.plot(in_graph, height, ls="", mfc="none", **_look(place))


def _look(place: int) -> dict[str, Any]:
    return {"color": CYCLE[place % len(CYCLE)], "marker": MARKERS[(place // len(CYCLE) + place) % len(MARKERS)]}
