"""A measured theme and its files: a table, the numbers, a picture. Ctrl-C keeps the rows so far."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import egalitarian
from egalitarian.lab.bench import experiments, kernels, steps
from egalitarian.lab.bench.theme import BenchRow, Setup, Theme
from egalitarian.lab.config import SpecError, nearest
from egalitarian.lab.report import Block, markdown_lines
from egalitarian.lab.report.figures import CYCLE, WIDTH, styled
from egalitarian.lab.runs import environment, write_atomically

THEMES = {theme.name: theme for theme in (kernels.THEME, steps.THEME, experiments.THEME, experiments.CLOCK)}
LONG = ("clock",)
"""Measured only if named: the paper's SGD on six tasks takes hours."""
MARKERS = "os^Dv"
UNITS = {"ms": "ms", "seconds": "seconds"}


@dataclass(frozen=True)
class Measured:
    """The rows of a theme, with the environment they were measured in."""

    theme: Theme
    rows: tuple[BenchRow, ...]
    environment: dict[str, Any]
    quick: bool = False
    complete: bool = True
    """False if it was stopped."""

    @property
    def tables(self) -> list[dict[str, Any]]:
        return self.theme.table(self.rows)

    @property
    def stem(self) -> str:
        """File name: `kernels_nvidia-h200_2026-11-15`. A quick or stopped measurement never replaces a complete one."""
        hardware = "-".join(re.findall(r"[a-z0-9]+", self.environment["hardware"].lower())) or "unknown"
        apart = ("_quick" if self.quick else "") + ("" if self.complete else "_partial")
        return f"{self.theme.name}_{hardware}_{self.environment['when'][:10]}{apart}"

    @property
    def heading(self) -> str:
        where = self.environment
        threads = f"{where['threads']} thread" + ("s" if where["threads"] > 1 else "")
        text = f"{where['hardware']}, {threads}, torch {where['torch']}, Python {where['python']}, {where['when'][:10]}"
        apart = ["--quick: small sizes, the numbers mean nothing"] if self.quick else []
        apart += [] if self.complete else ["stopped before all was measured"]
        return "; ".join([f"{text}; medians of n repeats, egalitarian {egalitarian.__version__}", *apart])

    def cells(self) -> list[list[str]]:
        """The table as text: group, method, numbers, note; a heading first."""
        theme, tables = self.theme, self.tables
        columns = theme.shown(tables)
        head = [theme.groups, "method", *(column.heading for column in columns), "note"]
        return [head] + [
            [row["group"], row["method"], *(column.write(row.get(column.key)) for column in columns), row["note"]]
            for row in tables
        ]

    def write(self, out: Path) -> list[Path]:
        """Writes the Markdown table, the raw numbers, and the picture if there is anything to draw."""
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{self.stem}.{ending}" for ending in ("md", "json", "png")]
        picture = draw(self.theme, self.rows)
        write_atomically(files[0], self.markdown(files[2].name))
        write_atomically(files[1], json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n")
        if picture is None:
            return files[:2]
        write_atomically(files[2], picture)
        return files

    def markdown(self, picture: str) -> str:
        head, *body = self.cells()
        lines = [f"# {self.theme.title}", "", f"{self.heading}.", "", self.theme.about, ""]
        lines += markdown_lines(head, [Block("", tuple(map(tuple, body)))], "l" * len(head))
        return "\n".join([*lines, "", f"![time by method]({picture})", ""])

    def plain(self) -> dict[str, Any]:
        theme = self.theme
        return {
            "theme": theme.name,
            "about": theme.about,
            "baseline": theme.baseline,
            "ratio": "baseline over method" if theme.ratio_is_speedup else "method over baseline",
            "quick": self.quick,
            "complete": self.complete,
            "environment": self.environment,
            "rows": self.tables,
        }


def chosen(names: Sequence[str]) -> list[Theme]:
    """The named themes, each once, or all but the long ones."""
    for name in names:
        if name not in THEMES:
            hint = nearest(name, THEMES) or "leave it out for the usual ones"
            raise SpecError(f"theme must be one of {', '.join(THEMES)}, got {name!r}; {hint}")
    return [THEMES[name] for name in dict.fromkeys(names or (name for name in THEMES if name not in LONG))]


def measure_theme(theme: Theme, setup: Setup) -> Measured:
    """All rows, or those before a user stopped it."""
    rows: list[BenchRow] = []
    complete = True
    try:
        for row in theme.rows(setup):
            rows.append(row)
    except KeyboardInterrupt:
        complete = False
    return Measured(theme, tuple(rows), environment(setup.device), setup.quick, complete)


@styled
def draw(theme: Theme, rows: Sequence[BenchRow]) -> bytes | None:
    """A PNG: time on a logarithmic axis, a line for each group, a marker for each method; None if no row has a time.

    A filled marker is the plain time, a hollow one that inside a CUDA graph.
    """
    timed = [row for row in rows if row.numbers.get(theme.number)]
    if not timed:
        return None
    groups = list(dict.fromkeys(row.group for row in timed))
    methods = list(dict.fromkeys(row.method for row in timed))
    figure = Figure(figsize=(WIDTH, 1.6 + 0.34 * len(groups) + 0.1 * len(methods)), layout="constrained")
    axis = figure.add_subplot()
    for row in timed:
        _mark(axis, theme, row, groups.index(row.group), methods.index(row.method))
    axis.set(xscale="log", xlabel=UNITS[theme.number], ylim=(len(groups) - 0.5, -0.5))
    axis.set_yticks(range(len(groups)), groups)
    axis.set_title(theme.title)
    handles = [Line2D([], [], ls="", label=name, **_look(index)) for index, name in enumerate(methods)]
    if theme.graph_key and any(row.numbers.get(theme.graph_key) for row in timed):
        handles.append(Line2D([], [], ls="", marker="o", color="#888888", mfc="none", label="hollow: in a CUDA graph"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    picture = io.BytesIO()
    figure.savefig(picture, metadata={"Software": None})
    return picture.getvalue()


def _mark(axis: Axes, theme: Theme, row: BenchRow, line: int, index: int) -> None:
    """A method has its own height within its group's line, so that no marker hides another."""
    height = line + 0.05 * (index % 9 - 4)
    axis.plot(row.numbers[theme.number], height, ls="", **_look(index))
    in_graph = row.numbers.get(theme.graph_key)
    if in_graph:
        axis.plot(in_graph, height, ls="", mfc="none", **_look(index))


def _look(index: int) -> dict[str, Any]:
    return {"color": CYCLE[index % len(CYCLE)], "marker": MARKERS[(index // len(CYCLE) + index) % len(MARKERS)]}
