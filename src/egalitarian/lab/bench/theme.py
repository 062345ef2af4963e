"""A benchmark as values: themes, their columns and rows, and ratios to a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class Setup:
    """The device, and how long to measure."""

    device: torch.device
    quick: bool = False
    """Small sizes and few repeats: seconds, to see that it works. Its numbers mean nothing."""
    seeds: tuple[int, ...] = ()
    """Numbers of seeds to train as one batch, one after another; empty: the theme's own."""
    report: Callable[[str], None] = field(default=lambda doing: None)
    """Gets a message about what is being measured."""

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


@dataclass(frozen=True)
class BenchRow:
    """One method in one group (a shape, a network): numbers by key, None if there is none."""

    group: str
    method: str
    n: int = 0
    """Timed repeats; numbers are their medians."""
    numbers: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class Column(NamedTuple):
    """A number's key, its heading, and its format."""

    key: str
    heading: str
    write: Callable[[Any], str]


@dataclass(frozen=True)
class Theme:
    """One table of the benchmark."""

    name: str
    title: str
    about: str
    """How it was measured, and the meaning of the columns."""
    groups: str
    """The heading of the groups."""
    columns: tuple[Column, ...]
    number: str
    """The key of the time in the picture and in the ratios."""
    graph: str
    """The key of the time inside a CUDA graph; empty if there is none."""
    baseline: str
    """The method that others are compared with, in each group."""
    faster: bool
    """Whether a ratio is a speed-up over the baseline; otherwise it is a multiple of its time."""
    rows: Callable[[Setup], Iterator[BenchRow]]

    def table(self, rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
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
        """The columns that are not empty."""
        return [column for column in self.columns if any(row.get(column.key) is not None for row in tables)]

    def _ratio(self, row: BenchRow, base: BenchRow | None, key: str) -> float | None:
        """To the baseline's number of the same key, or to its plain time if it has none."""
        mine = row.numbers.get(key)
        theirs = None if base is None else base.numbers.get(key) or base.numbers.get(self.number)
        if not mine or not theirs:
            return None
        return float(theirs / mine if self.faster else mine / theirs)


def figures(value: Any) -> str:
    """Three significant figures, without an exponent; empty for None."""
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
