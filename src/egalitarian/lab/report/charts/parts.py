"""Parts of an interactive figure, and their JSON: panels of lines, bands, marks and rows, thinned to a number of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.analysis import Array, Band, Cost, Gathered, cost_of
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.style import on_dark

Unit = Literal["epoch", "step", "seconds"]
DIGITS = 4
"""Significant digits of a value."""
UNITS: dict[Unit, str] = {"epoch": "Epochs", "step": "Steps", "seconds": "Seconds"}


class Detail(NamedTuple):
    """How many points a page keeps of each line. Fewer make it smaller."""

    points: int
    """Of a median, and of its band."""
    seed_points: int
    """Of a single seed's line; 0: no such lines."""


class Strip(NamedTuple):
    """A band of a line, with its opacity."""

    low: Array
    high: Array
    opacity: float


@dataclass(frozen=True)
class ChartLine:
    """A line of one method."""

    method: str
    role: Literal["median", "training", "seed", "rest", "steps", "path"]
    x: Array
    """Epochs, except of a path."""
    y: Array
    strips: tuple[Strip, ...] = ()
    seed: int | None = None
    epochs: Array | None = None
    """Of a path."""
    keep: tuple[float, ...] = ()
    """Epochs, the nearest points to which are never left out: where the method or the seed passes."""


class Spot(NamedTuple):
    """A marker with a text."""

    method: str
    x: float
    y: float
    text: str
    star: bool = False


class RowPoint(NamedTuple):
    """A point of a row. Infinite: it failed."""

    method: str
    x: float
    text: str


class ChartRow(NamedTuple):
    """One row: points, a bar at their median, and a text behind them."""

    title: str
    method: str
    """Empty: the points are of several methods."""
    points: tuple[RowPoint, ...]
    middle: float
    text: str
    span: tuple[float, float] | None = None
    """A line between two values."""


class YAxis(NamedTuple):
    """The vertical axis of a panel; of rows, its label says what the horizontal one has."""

    label: str
    percent: bool = False
    low: float | None = None
    high: float | None = None
    log: bool | None = False
    """At first; None: it can only be linear."""
    shared: bool = False
    """Whether panels with the same label have the same range."""


@dataclass(frozen=True)
class ChartPanel:
    """One pair of axes."""

    title: str
    kind: Literal["time", "plane", "rows"]
    y: YAxis
    lines: tuple[ChartLine, ...] = ()
    spots: tuple[Spot, ...] = ()
    rows: tuple[ChartRow, ...] = ()
    levels: tuple[tuple[float, str], ...] = ()
    """Horizontal lines with their names."""
    rules: tuple[float, ...] = ()
    """Epochs with a vertical line."""
    view: str = ""
    """The reader chooses between the views of a figure; empty: of all views."""
    x_label: str = ""
    """Of a plane, and of rows that are no times."""
    clock: Mapping[str, Cost] = field(default_factory=dict)
    """What an epoch of a method costs, where it is known."""
    steps: int | None = None
    """Of an epoch."""


@dataclass(frozen=True)
class Chart:
    """An interactive figure. It has the numbers, colours and line styles of the static one."""

    panels: tuple[ChartPanel, ...]
    titles: Mapping[str, str]
    """Of the methods, by name."""
    looks: Mapping[str, Look]
    shown: tuple[str, ...]
    """Methods that are to be seen at first."""
    unit: Unit = "epoch"
    """At first."""
    log_x: bool | None = True
    """At first; None: it can only be linear."""
    views: tuple[str, ...] = ()
    view: str = ""
    key: Mapping[str, str] = field(default_factory=dict)
    """What colours mean, where they are not of one method each: from names to colours."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Those that a reader can choose."""
        if not any(panel.kind == "time" or (panel.kind == "rows" and not panel.x_label) for panel in self.panels):
            return ()
        steps: tuple[Unit, ...] = ("step",) if self.unit == "step" else ()
        seconds: tuple[Unit, ...] = ("seconds",) if any(panel.clock for panel in self.panels) else ()
        return (*steps, "epoch", *seconds)

    @property
    def clock_note(self) -> str:
        """What seconds are, on which platform, and which methods have none."""
        if "seconds" not in self.units:
            return ""
        platforms: dict[str, dict[str, None]] = {}
        lacking: dict[str, None] = {}
        for panel in self.panels:
            for method in dict.fromkeys([*(line.method for line in panel.lines), *(row.method for row in panel.rows)]):
                if cost := panel.clock.get(method):
                    platforms.setdefault(cost.platform, {})[self.titles.get(method, method)] = None
                elif method:
                    lacking[self.titles.get(method, method)] = None
        start = "Seconds are training without measuring, one seed's share, at the median cost of an epoch"
        if len(platforms) == 1:
            text = f"{start}, on {next(iter(platforms))}."
        else:
            each = "; ".join(f"{platform}: {', '.join(titles)}" for platform, titles in platforms.items())
            text = f"{start}. They are of several platforms and cannot be compared between them. {each}."
        return text + (f" Without stored times, so not drawn in seconds: {', '.join(lacking)}." if lacking else "")


def clock_of(gathered: Gathered, experiment: Experiment, methods: Iterable[str]) -> dict[str, Cost]:
    """What an epoch costs, of the methods with stored times."""
    costs = {method: cost_of(gathered.of(experiment.name, method)) for method in methods}
    return {method: cost for method, cost in costs.items() if cost is not None}


def median_line(method: str, found: Band, role: Literal["median", "training"] = "median", keep: float | None = None,
                *, edges: bool = True) -> ChartLine:  # fmt: skip
    """A band of analysis as a line with its strip."""
    strips = (Strip(found.low, found.high, 0.2),) if edges else ()
    return ChartLine(method, role, found.epochs, found.middle, strips, keep=() if keep is None else (keep,))


def seed_lines(gathered: Gathered, experiment: str, method: str, measure: str) -> list[ChartLine]:
    """Every seed by itself, at the epochs that curves keep."""
    curves = gathered.curves_of(experiment, method)
    if measure not in curves:
        return []
    lines = []
    for run in gathered.of(experiment, method):
        own = curves[curves.seed == run.seed]
        keep = () if run.outcome.crossed is None else (float(run.outcome.crossed),)
        epochs, values = own.epoch.to_numpy(dtype=float), own[measure].to_numpy(dtype=float)
        lines.append(ChartLine(method, "seed", epochs, values, seed=run.seed, keep=keep))
    return lines


def thin(epochs: Array, most: int, keep: Sequence[float] = ()) -> NDArray[np.intp]:
    """The indices of about `most` points, evenly in the logarithm of the epoch, with the first, the last and those to keep.

    Each epoch to keep keeps the first point that is not before it, and the point before that one.
    """
    if len(epochs) <= most:
        return np.arange(len(epochs), dtype=np.intp)
    logs = np.log(epochs - epochs.min() + 1)
    wanted = np.searchsorted(logs, np.linspace(logs[0], logs[-1], most)).clip(0, len(epochs) - 1)
    crossings = np.searchsorted(epochs, np.array(keep, dtype=float)).clip(0, len(epochs) - 1)
    ends = [0, len(epochs) - 1]
    return np.unique(np.concatenate([wanted, crossings, (crossings - 1).clip(0), ends])).astype(np.intp)


class Arrays:
    """Arrays of numbers, each once: figures share curves and epochs."""

    def __init__(self) -> None:
        self.arrays: list[list[float | int | None]] = []
        self._known: dict[tuple[float | int | None, ...], int] = {}

    def add(self, values: Array) -> int:
        """The place of an array. What is not a number becomes null, where the line is interrupted."""
        plain = tuple(map(rounded, values.tolist()))
        if plain not in self._known:
            self._known[plain] = len(self.arrays)
            self.arrays.append(list(plain))
        return self._known[plain]


def rounded(value: float) -> float | int | None:
    """To a few digits; whole numbers stay; None if it is not finite."""
    if not math.isfinite(value):
        return None
    if value == round(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def chart_json(chart: Chart, pool: Arrays, detail: Detail) -> dict[str, Any]:
    """A chart for the page's script. Arrays are places in the pool, methods places in the list of methods."""
    order = {method: place for place, method in enumerate(chart.titles)}
    methods = [_method_json(chart, method) for method in chart.titles]
    panels = [_panel_json(panel, order, pool, detail) for panel in chart.panels]
    seeds = sorted({line.seed for panel in chart.panels for line in panel.lines if line.seed is not None})
    return {
        "methods": methods,
        "panels": panels,
        "seeds": seeds if detail.seed_points else [],
        "units": [[unit, UNITS[unit]] for unit in chart.units],
        "unit": chart.unit,
        "logX": chart.log_x,
        "views": list(chart.views),
        "view": chart.view,
        "key": [[name, colour, on_dark(colour)] for name, colour in chart.key.items()],
    }


def _method_json(chart: Chart, method: str) -> dict[str, Any]:
    look = chart.looks[method]
    return {
        "title": chart.titles[method],
        "colour": look.colour,
        "dark": on_dark(look.colour),
        "line": look.line,
        "on": method in chart.shown,
    }


def _panel_json(panel: ChartPanel, order: Mapping[str, int], pool: Arrays, detail: Detail) -> dict[str, Any]:
    lines = [_line_json(line, order, pool, detail) for line in panel.lines if line.seed is None or detail.seed_points]
    rows = [
        {
            "t": row.title,
            "m": order.get(row.method, -1),
            "p": [[order[point.method], rounded(point.x), point.text] for point in row.points],
            "mid": rounded(row.middle),
            "text": row.text,
            "span": None if row.span is None else [rounded(end) for end in row.span],
        }
        for row in panel.rows
    ]
    y = panel.y
    return {
        "title": panel.title,
        "kind": panel.kind,
        "y": {"label": y.label, "percent": y.percent, "low": y.low, "high": y.high, "log": y.log, "shared": y.shared},
        "xLabel": panel.x_label,
        "view": panel.view,
        "lines": lines,
        "spots": [[order[each.method], rounded(each.x), rounded(each.y), each.text, each.star] for each in panel.spots],
        "rows": rows,
        "levels": [[rounded(level), name] for level, name in panel.levels],
        "rules": [rounded(rule) for rule in panel.rules],
        "ms": {order[method]: rounded(cost.ms_per_epoch) for method, cost in panel.clock.items() if method in order},
        "steps": panel.steps,
    }


def _line_json(line: ChartLine, order: Mapping[str, int], pool: Arrays, detail: Detail) -> dict[str, Any]:
    along = line.x if line.epochs is None else line.epochs
    known = np.flatnonzero(np.isfinite(line.y))
    kept = np.arange(known[0], known[-1] + 1) if len(known) else np.arange(0)
    for strip in line.strips if len(known) else ():
        wide = np.flatnonzero(np.isfinite(line.y) | np.isfinite(strip.low))
        kept = np.arange(wide[0], wide[-1] + 1)
    most = detail.seed_points if line.seed is not None else detail.points
    if line.role != "steps" and len(kept):
        kept = kept[thin(along[kept], most, line.keep)]
    made: dict[str, Any] = {
        "m": order[line.method],
        "r": line.role,
        "x": pool.add(line.x[kept]),
        "y": pool.add(line.y[kept]),
    }
    if line.strips:
        made["b"] = [[pool.add(each.low[kept]), pool.add(each.high[kept]), each.opacity] for each in line.strips]
    if line.seed is not None:
        made["s"] = line.seed
    if line.epochs is not None:
        made["e"] = pool.add(line.epochs[kept])
    return made
