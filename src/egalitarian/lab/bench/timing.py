"""Durations: medians of repeats in which the rivals take turns, by CUDA events on a GPU, and again inside a CUDA graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from egalitarian.lab.bench.theme import Setup
from egalitarian.lab.training import captured

SECONDS = 2.0
"""Of timed repeats for each rival."""
LEAST, MOST = 3, 50
"""Bounds of the number of timed repeats."""
BLOCK_MS = 20.0
"""Of calls in a repeat on a CPU: a single short call would be slow after another rival has filled the caches."""


def nothing() -> None: ...


@dataclass(frozen=True)
class Work:
    """One rival."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    """Before every repeat, not timed: restores what `run` changes."""
    captures: bool = True
    """False if it synchronises with the device (SVD, eigh), which a CUDA graph forbids."""


@dataclass(frozen=True)
class Took:
    """Medians in milliseconds; None if it did not run."""

    ms: float | None
    n: int
    graph_ms: float | None = None
    note: str = ""


def measure(works: Sequence[Work], setup: Setup, group: str) -> dict[str, Took]:
    """The time of each rival. One that fails gets its error as a note; the others are measured."""
    turns: dict[str, int] = {}
    calls: dict[str, int] = {}
    failed: dict[str, str] = {}
    for work in works:
        setup.report(f"{group}: {work.name}")
        try:
            once(work, setup)
            ms = once(work, setup)
            turns[work.name], calls[work.name] = _turns(ms, setup.quick), _calls(work, ms, setup)
        except Exception as error:  # of another package, or out of memory: a note in the table
            failed[work.name] = f"failed: {message(error)}"
    setup.report(f"{group}: taking turns")
    taken = in_turn([work for work in works if work.name in turns], turns, calls, setup)
    done: dict[str, Took] = {}
    for work in works:
        if work.name in failed:
            done[work.name] = Took(None, 0, note=failed[work.name])
            continue
        graph_ms, note = _in_graph(work, turns[work.name], setup, group)
        done[work.name] = Took(statistics.median(taken[work.name]), turns[work.name], graph_ms, note)
    return done


def in_turn(works: Sequence[Work], turns: dict[str, int], calls: dict[str, int], setup: Setup) -> dict[str, list[float]]:
    """Milliseconds of a call in every repeat. The rivals take turns, so that a busy moment affects all alike."""
    taken: dict[str, list[float]] = {work.name: [] for work in works}
    for turn in range(max(turns.values(), default=0)):
        for work in works:
            if turn < turns[work.name]:
                taken[work.name].append(once(work, setup, calls[work.name]))
    return taken


def once(work: Work, setup: Setup, calls: int = 1) -> float:
    """Milliseconds of a call in one repeat."""
    work.prepare()
    if not setup.cuda:
        start = time.perf_counter()
        for _ in range(calls):
            work.run()
        return 1e3 * (time.perf_counter() - start) / calls
    torch.cuda.synchronize(setup.device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work.run()
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


def _in_graph(work: Work, turns: int, setup: Setup, group: str) -> tuple[float | None, str]:
    if not setup.cuda:
        return None, ""
    if not work.captures:
        return None, "no graph"
    setup.report(f"{group}: {work.name}, in a graph")
    try:
        replay = Work(work.name, captured(work.run), work.prepare)
        once(replay, setup)
        return statistics.median(once(replay, setup) for _ in range(turns)), ""
    except Exception as error:
        torch.cuda.synchronize(setup.device)
        return None, f"no graph: {message(error)}"


def _turns(ms: float, quick: bool) -> int:
    return LEAST if quick else round(min(max(1e3 * SECONDS / max(ms, 1e-3), LEAST), MOST))


def _calls(work: Work, ms: float, setup: Setup) -> int:
    """Calls in a repeat; one if something must be restored before each."""
    if setup.cuda or setup.quick or work.prepare is not nothing:
        return 1
    return max(1, round(BLOCK_MS / max(ms, 1e-3)))
