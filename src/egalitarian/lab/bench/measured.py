"""A theme measured: on Ctrl-C what there is so far, then files: a table, the numbers, a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import egalitarian
from egalitarian.lab.bench import clock, experiments, kernels, steps
from egalitarian.lab.bench.picture import draw
from egalitarian.lab.bench.theme import Row, Setup, Theme
from egalitarian.lab.config.schema import SpecError, nearest
from egalitarian.lab.runs.environment import environment

THEMES = {theme.name: theme for theme in (kernels.THEME, steps.THEME, experiments.THEME, clock.THEME)}
LONG = ("clock",)
"""Measured only where it is asked for: the paper's SGD on six tasks."""


@dataclass(frozen=True)
class Measured:
    """What came of a theme, and where and when."""

    theme: Theme
    rows: tuple[Row, ...]
    environment: dict[str, Any]
    quick: bool = False
    complete: bool = True
    """False where it was stopped."""

    @property
    def tables(self) -> list[dict[str, Any]]:
        return self.theme.table(self.rows)

    @property
    def stem(self) -> str:
        """`kernels_nvidia-h200_2026-11-15`; what is quick or stopped never takes the place of what is whole."""
        hardware = "-".join(re.findall(r"[a-z0-9]+", self.environment["hardware"].lower())) or "unknown"
        apart = ("_quick" if self.quick else "") + ("" if self.complete else "_partial")
        return f"{self.theme.name}_{hardware}_{self.environment['when'][:10]}{apart}"

    @property
    def heading(self) -> str:
        where = self.environment
        threads = f"{where['threads']} thread" + ("s" if where["threads"] > 1 else "")
        said = f"{where['hardware']}, {threads}, torch {where['torch']}, Python {where['python']}, {where['when'][:10]}"
        apart = ["--quick: small sizes, the numbers mean nothing"] if self.quick else []
        apart += [] if self.complete else ["stopped before all was measured"]
        return "; ".join([f"{said}; medians of n repeats, egalitarian {egalitarian.__version__}", *apart])

    def cells(self) -> list[list[str]]:
        """The table as it is shown: group, method, numbers, note; a heading first."""
        theme, tables = self.theme, self.tables
        columns = theme.shown(tables)
        head = [theme.groups, "method", *(column.heading for column in columns), "note"]
        return [head] + [
            [row["group"], row["method"], *(column.write(row.get(column.key)) for column in columns), row["note"]]
            for row in tables
        ]

    def write(self, out: Path) -> list[Path]:
        """The Markdown table, the raw numbers, the picture (where there is anything to draw)."""
        out.mkdir(parents=True, exist_ok=True)
        files = [out / f"{self.stem}.{ending}" for ending in ("md", "json", "png")]
        files[0].write_text(self.markdown(files[2].name), encoding="utf-8")
        files[1].write_text(json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return files if draw(self.theme, self.rows, files[2]) else files[:2]

    def markdown(self, picture: str) -> str:
        head, *body = self.cells()
        lines = [f"# {self.theme.title}", "", f"{self.heading}.", "", self.theme.about, ""]
        lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body]
        return "\n".join([*lines, "", f"![time by method]({picture})", ""])

    def plain(self) -> dict[str, Any]:
        theme = self.theme
        return {
            "theme": theme.name,
            "about": theme.about,
            "baseline": theme.baseline,
            "ratio": "baseline over method" if theme.faster else "method over baseline",
            "quick": self.quick,
            "complete": self.complete,
            "environment": self.environment,
            "rows": self.tables,
        }


def chosen(names: Sequence[str]) -> list[Theme]:
    """Those named, each once, or all but the long."""
    for name in names:
        if name not in THEMES:
            hint = nearest(name, THEMES) or "leave it out for the usual ones"
            raise SpecError(f"theme must be one of {', '.join(THEMES)}, got {name!r}; {hint}")
    return [THEMES[name] for name in dict.fromkeys(names or (name for name in THEMES if name not in LONG))]


def measure_theme(theme: Theme, setup: Setup) -> Measured:
    """All rows, or those there are when a user stops it."""
    rows: list[Row] = []
    complete = True
    try:
        for row in theme.rows(setup):
            rows.append(row)
    except KeyboardInterrupt:
        complete = False
    return Measured(theme, tuple(rows), environment(setup.device), setup.quick, complete)
