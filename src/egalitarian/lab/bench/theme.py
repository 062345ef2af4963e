"""A benchmark as values: a theme, its columns and rows. Times are medians of interleaved repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from egalitarian.lab.training import captured


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
    only: tuple[str, ...] = ()
    """Workloads of the theme `train`; empty: all."""
    out: Path | None = None
    """The folder in which that theme stores every process; None stores nothing."""
    date: str = ""
    """The day in the names of files; empty: today."""
    note: Callable[[str], None] = field(default=lambda text: None)
    """Gets what the user should read afterwards, too."""

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
    graph_key: str
    """The key of the time inside a CUDA graph; empty if there is none."""
    baseline: str
    """The method that others are compared with, in each group."""
    ratio_is_speedup: bool
    """Whether a ratio is a speed-up over the baseline; otherwise it is a multiple of its time."""
    rows: Callable[[Setup], Iterator[BenchRow]]
    legend: Callable[[Sequence[BenchRow], bool], str] = lambda rows, quick: ""
    """What else these rows need, which were measured quickly or not: the meaning of their groups."""

    def table(self, rows: Sequence[BenchRow]) -> list[dict[str, Any]]:
        """The rows as flat tables, with their ratios: the measured ones, or those of the numbers."""
        made: list[dict[str, Any]] = []
        for row in rows:
            base = next((each for each in rows if (each.group, each.method) == (row.group, self.baseline)), None)
            flat = {"group": row.group, "method": row.method, "n": row.n, **row.numbers}
            flat.setdefault("ratio", self._ratio(row, base, self.number))
            if self.graph_key:
                flat["graph_ratio"] = self._ratio(row, base, self.graph_key)
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
        return float(theirs / mine if self.ratio_is_speedup else mine / theirs)


def three_digits(value: Any) -> str:
    """Three significant digits, with an exponent only below 0.001; empty for None."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def scientific(value: Any) -> str:
    """Two significant digits and a power of ten; empty for None."""
    return "" if value is None else f"{value:.1e}"


def times(value: Any) -> str:
    return "" if value is None else f"{three_digits(value)} x"


def text(value: Any) -> str:
    return "" if value is None else str(value)


SECONDS = 2.0
"""Seconds to time each candidate."""
LEAST, MOST = 3, 50
"""Bounds of the number of timed repeats."""
BLOCK_MS = 20.0
"""Milliseconds of a repeat on a CPU: a single short call would be slow after another candidate has filled the caches."""


def nothing() -> None: ...


@dataclass(frozen=True)
class Candidate:
    """Something to time: a kernel, a step."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    """Before every repeat, not timed: restores what `run` changes."""
    captures: bool = True
    """False if it synchronises with the device (SVD, eigh), which a CUDA graph forbids."""


@dataclass(frozen=True)
class Timing:
    """Times of a candidate: medians in milliseconds; None if it did not run."""

    ms: float | None
    n: int
    graph_ms: float | None = None
    note: str = ""


def measure(candidates: Sequence[Candidate], setup: Setup, group: str) -> dict[str, Timing]:
    """The time of each candidate. One that fails gets its error as a note; the others are measured."""
    turns: dict[str, int] = {}
    calls: dict[str, int] = {}
    failed: dict[str, str] = {}
    for candidate in candidates:
        setup.report(f"{group}: {candidate.name}")
        try:
            once(candidate, setup)
            ms = once(candidate, setup)
            turns[candidate.name], calls[candidate.name] = _turns(ms, setup.quick), _calls(candidate, ms, setup)
        except Exception as error:  # of another package, or out of memory: a note in the table
            failed[candidate.name] = f"failed: {message(error)}"
    setup.report(f"{group}: taking turns")
    taken = in_turn([candidate for candidate in candidates if candidate.name in turns], turns, calls, setup)
    done: dict[str, Timing] = {}
    for candidate in candidates:
        if candidate.name in failed:
            done[candidate.name] = Timing(None, 0, note=failed[candidate.name])
            continue
        graph_ms, note = _in_graph(candidate, turns[candidate.name], setup, group)
        done[candidate.name] = Timing(statistics.median(taken[candidate.name]), turns[candidate.name], graph_ms, note)
    return done


def in_turn(
    candidates: Sequence[Candidate], turns: dict[str, int], calls: dict[str, int], setup: Setup
) -> dict[str, list[float]]:
    """Milliseconds of a call in every repeat. The candidates take turns, so that a busy moment affects all alike."""
    taken: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for turn in range(max(turns.values(), default=0)):
        for candidate in candidates:
            if turn < turns[candidate.name]:
                taken[candidate.name].append(once(candidate, setup, calls[candidate.name]))
    return taken


def once(candidate: Candidate, setup: Setup, calls: int = 1) -> float:
    """Milliseconds of a call in one repeat."""
    candidate.prepare()
    if not setup.cuda:
        start = time.perf_counter()
        for _ in range(calls):
            candidate.run()
        return 1e3 * (time.perf_counter() - start) / calls
    torch.cuda.synchronize(setup.device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    candidate.run()
    end.record()
    torch.cuda.synchronize(setup.device)
    return float(begin.elapsed_time(end))


def message(error: Exception) -> str:
    """An error on one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:100]}"


def now(device: torch.device) -> float:
    """Seconds, when all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _in_graph(candidate: Candidate, turns: int, setup: Setup, group: str) -> tuple[float | None, str]:
    if not setup.cuda:
        return None, ""
    if not candidate.captures:
        return None, "no graph"
    setup.report(f"{group}: {candidate.name}, in a graph")
    try:
        replay = Candidate(candidate.name, captured(candidate.run), candidate.prepare)
        once(replay, setup)
        return statistics.median(once(replay, setup) for _ in range(turns)), ""
    except Exception as error:
        torch.cuda.synchronize(setup.device)
        return None, f"no graph: {message(error)}"


def _turns(ms: float, quick: bool) -> int:
    return LEAST if quick else round(min(max(1e3 * SECONDS / max(ms, 1e-3), LEAST), MOST))


def _calls(candidate: Candidate, ms: float, setup: Setup) -> int:
    """Calls in a repeat; one if something must be restored before each."""
    if setup.cuda or setup.quick or candidate.prepare is not nothing:
        return 1
    return max(1, round(BLOCK_MS / max(ms, 1e-3)))
