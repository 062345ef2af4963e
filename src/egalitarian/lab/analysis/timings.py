"""Training time of one run: the sessions in which it was trained, and the platform with the cost of an epoch there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from egalitarian.lab.config import Record


class TrainingSession(NamedTuple):
    """The time from one start of training to its end, with the time between the epochs left out."""

    device: str
    begin: float
    """In seconds since the epoch of the clock."""
    end: float


def sessions_of(environments: Sequence[Record], timings: Sequence[Record]) -> tuple[TrainingSession, ...]:
    """The sessions of a run. Their length is the sum of training and measuring; the start-up is not in it."""
    bounds = [*_first_timings(environments, timings), len(timings)]
    found = []
    for environment, (first, last) in zip(environments, pairwise(bounds), strict=True):
        seconds = sum(timing["training"] + timing["measuring"] for timing in timings[first:last])
        begin = datetime.fromisoformat(environment["when"]).timestamp()
        if seconds:
            found.append(TrainingSession(environment["device"], begin, begin + seconds))
    return tuple(found)


def _first_timings(environments: Sequence[Record], timings: Sequence[Record]) -> list[int]:
    """The index of each session's first timing. A session that resumed repeats epochs, so the last line of one counts."""
    indices: list[int] = []
    end = len(timings)
    for environment in reversed(environments):
        found = [index for index in range(end) if timings[index]["epoch"] == environment["epoch"]]
        end = found[-1] if found else end
        indices.append(end)
    return indices[::-1]


def occupied(sessions: Iterable[TrainingSession]) -> dict[str, float]:
    """Seconds in which at least one session ran, by device."""
    seconds: dict[str, float] = {}
    until: dict[str, float] = {}
    for device, begin, end in sorted(sessions, key=lambda session: session.begin):
        begin = max(begin, until.get(device, begin))
        seconds[device] = seconds.get(device, 0.0) + max(0.0, end - begin)
        until[device] = max(end, begin)
    return seconds


class Platform(NamedTuple):
    """Where and with what a run was trained, and what an epoch cost there."""

    hardware: str
    device: str
    threads: int
    seeds: int
    """Seeds that were trained in one batch."""
    processes: int
    """Other processes that trained at the same time."""
    torch: str
    commit: str
    source: str
    when: str
    ms_per_epoch: float | None
    """One seed's share of the training, as the median over epochs."""
    measuring_ms_per_epoch: float | None
    polar: str
    """How the polar factor was computed: "fast", "exact", or both if sessions differ. Empty: not used, or not recorded."""

    @property
    def label(self) -> str:
        """Everything that a time depends on."""
        threads = f", {self.threads} thread{'s' * (self.threads != 1)}" if self.device == "cpu" else ""
        seeds = f"{self.seeds} seeds side by side" if self.seeds > 1 else "one seed alone"
        others = f", with {self.processes} other process{'es' * (self.processes != 1)}" if self.processes else ""
        return f"{self.hardware}{threads}, {seeds}{others}"


def platform_of(environments: Sequence[Record], timings: Sequence[Record]) -> Platform | None:
    """The platform of the session with the most epochs. Of an epoch that was trained twice, the later timing counts."""
    if not environments:
        return None
    by_epoch = {timing["epoch"]: timing for timing in timings}
    starts = [environment["epoch"] for environment in environments]
    ends = [min(starts[index + 1 :], default=len(by_epoch)) for index in range(len(starts))]
    longest = max(range(len(starts)), key=lambda index: (ends[index] - starts[index], index))
    environment = environments[longest]
    own = [timing for epoch, timing in by_epoch.items() if starts[longest] <= epoch < ends[longest]]
    return Platform(
        hardware=environment["hardware"],
        device=environment["device"],
        threads=environment["threads"],
        seeds=environment["seeds"],
        processes=environment.get("beside", 0),
        torch=environment["torch"],
        commit=environment["commit"] or "",
        source=environment["source"],
        when=environment["when"],
        ms_per_epoch=_median_ms(timing["training"] / timing["seeds"] for timing in own),
        measuring_ms_per_epoch=_median_ms(timing["measuring"] / timing["seeds"] for timing in own),
        polar=", ".join(dict.fromkeys(each["polar"] for each in environments if each.get("polar"))),
    )


def _median_ms(seconds: Iterable[float]) -> float | None:
    numbers = list(seconds)
    return 1000 * median(numbers) if numbers else None


def share_of_time(timings: Iterable[Record]) -> float | None:
    """One seed's share of the seconds for training and measuring. Epochs that were trained twice count twice."""
    shares = [(timing["training"] + timing["measuring"]) / timing["seeds"] for timing in timings]
    return sum(shares) if shares else None
