"""What a benchmark is, as values: a theme, its columns, its rows, and what a ratio is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class Setup:
    """Where and how long to measure."""

    device: torch.device
    quick: bool = False
    """Small sizes and few turns: seconds, to see that it works. Its numbers mean nothing."""
    seeds: tuple[int, ...] = ()
    """How many seeds to train at once, in turn; empty: the theme's own."""
    tell: Callable[[str], None] = field(default=lambda doing: None)
    """Is told what is being measured."""

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Row:
    """One method on one group (a shape, a network): numbers by key, None where there is none."""

    group: str
    method: str
    n: int = 0
    """Timed turns, of which the median is shown."""
    numbers: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class Column(NamedTuple):
    """A number's key, its heading, and how it is written."""

    key: str
    heading: str
    write: Callable[[Any], str]


@dataclass(frozen=True)
class Theme:
    """One table of the benchmark."""

    name: str
    title: str
    about: str
    """How it was measured, and what the columns are."""
    groups: str
    """What a group is, as a heading."""
    columns: tuple[Column, ...]
    number: str
    """The key of the time that is drawn, and that ratios are of."""
    graph: str
    """The key of the same inside a CUDA graph; empty where there is none."""
    baseline: str
    """The method that ratios are to, in each group."""
    faster: bool
    """Whether a ratio is how many times faster than the baseline, or how many times its time."""
    rows: Callable[[Setup], Iterator[Row]]

    def table(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The rows as flat tables, with their ratios."""
        made: list[dict[str, Any]] = []
        for row in rows:
            base = next((each for each in rows if (each.group, each.method) == (row.group, self.baseline)), None)
            flat = {"group": row.group, "method": row.method, "n": row.n, **row.numbers}
            flat["ratio"] = self._ratio(row, base, self.number)
            if self.graph:
                flat["graph_ratio"] = self._ratio(row, base, self.graph)
            made.append({**flat, "note": row.note})
        return made

    def shown(self, tables: Sequence[dict[str, Any]]) -> list[Column]:
        """The columns that have something in them."""
        return [column for column in self.columns if any(row.get(column.key) is not None for row in tables)]

    def _ratio(self, row: Row, base: Row | None, key: str) -> float | None:
        """To the baseline's number of the same key, or where it has none to its plain time."""
        mine = row.numbers.get(key)
        theirs = None if base is None else base.numbers.get(key) or base.numbers.get(self.number)
        if not mine or not theirs:
            return None
        return float(theirs / mine if self.faster else mine / theirs)


def figures(value: Any) -> str:
    """Three significant figures, without an exponent; nothing where there is none."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def power(value: Any) -> str:
    """An error: two figures and a power of ten."""
    return "" if value is None else f"{value:.1e}"


def times(value: Any) -> str:
    return "" if value is None else f"{figures(value)} x"


def text(value: Any) -> str:
    return "" if value is None else str(value)
