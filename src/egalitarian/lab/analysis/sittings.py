"""When a run was in training, and how long at least one of several was: what a table took, however it was trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from egalitarian.lab.runs.store import Record


class Sitting(NamedTuple):
    """From one start of a process to its end, or to that of its seeds."""

    device: str
    begin: float
    """In seconds, as of any clock."""
    end: float


def sittings_of(environments: Sequence[Record], timings: Sequence[Record]) -> tuple[Sitting, ...]:
    """Training and measuring, as the times of the epochs add up; what a start itself takes is not in it."""
    places = [*_beginnings(environments, timings), len(timings)]
    found = []
    for about, (first, last) in zip(environments, pairwise(places), strict=True):
        took = sum(timing["training"] + timing["measuring"] for timing in timings[first:last])
        begin = datetime.fromisoformat(about["when"]).timestamp()
        if took:
            found.append(Sitting(about["device"], begin, begin + took))
    return tuple(found)


def _beginnings(environments: Sequence[Record], timings: Sequence[Record]) -> list[int]:
    """Where among the times each start's begin: the last time that its first epoch was trained, as later starts follow."""
    places: list[int] = []
    last = len(timings)
    for about in reversed(environments):
        found = [place for place in range(last) if timings[place]["epoch"] == about["epoch"]]
        last = found[-1] if found else last
        places.append(last)
    return places[::-1]


def occupied(sittings: Iterable[Sitting]) -> dict[str, float]:
    """Seconds by device in which at least one was at work."""
    seconds: dict[str, float] = {}
    until: dict[str, float] = {}
    for device, begin, end in sorted(sittings, key=lambda sitting: sitting.begin):
        begin = max(begin, until.get(device, begin))
        seconds[device] = seconds.get(device, 0.0) + max(0.0, end - begin)
        until[device] = max(end, begin)
    return seconds
