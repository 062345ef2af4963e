"""One stored run, read once: its outcome, a thinned curve, its sessions, its cost and its platform.

`read_run` returns a `Reading`. `gather` adds names, budget and differences, which gives a `RunSummary`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, reduce
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from egalitarian.lab.analysis.counts import Value
from egalitarian.lab.config import Record, decode, is_snapshot
from egalitarian.lab.runs import Outcome, Stored, StoreError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

PER_DECADE = 100
"""Kept epochs per decade of (epoch + 1): 400 for a run of ten thousand."""
WHOLE = 100
"""Epochs at the start that are all kept: where labels are shuffled, accuracy changes from one epoch to the next."""

RunState = Literal["passed", "not passed", "diverged", "unfinished"]
T = TypeVar("T")


class TrainingSession(NamedTuple):
    """The time from one start of training to its end, with the time between the epochs left out."""

    device: str
    begin: float
    """Unix time, in seconds."""
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


def busy_seconds(sessions: Iterable[TrainingSession]) -> dict[str, float]:
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
    """What the sessions took for `auto`: "fast", "exact", or both. Empty: no polar factor, or not recorded."""

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
        processes=environment.get("beside", 0),  # the key in the files of all versions
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


def bound_of(outcome: Outcome, budget: int) -> int:
    """The epochs within which a run did not pass. A run that diverged never will, so at least its whole budget counts."""
    return max(budget, outcome.epochs) if outcome.diverged else outcome.epochs


@dataclass(frozen=True)
class RunSummary:
    """The numbers of one run, as tables and statistics use them: those of its `Reading`, with names and budget.

    It has no curve, so that thousands fit into memory and into summary.csv.
    """

    experiment: str
    method: str
    seed: int
    id: str
    outcome: Outcome
    budget: int
    """Epochs."""
    past: int = 0
    """Epochs that a run continues after the one that passed."""
    platform: Platform | None = None
    end: tuple[float, float] | None = None
    """Smallest and largest test accuracy over the last tenth of the epochs."""
    mean_train_accuracy: float | None = None
    """Over the epochs within the budget."""
    seconds: float | None = None
    """One seed's share of the time, training and measuring."""
    sessions: tuple[TrainingSession, ...] = ()
    polar: str = ""
    """The tier of the polar factor, with the version of an older record; empty without a polar factor."""
    old: bool = False
    """Whether version 1 stored it, and another version would train another run."""
    differs: str = ""
    """How a variant differs from the catalogue; empty for a run that counts."""

    @property
    def state(self) -> RunState:
        """Passed wins over diverged: a run may diverge after it passed."""
        if self.outcome.crossed is not None:
            return "passed"
        if self.outcome.diverged:
            return "diverged"
        return "not passed" if self.outcome.epochs >= self.budget else "unfinished"

    @property
    def bound(self) -> int:
        """The epochs within which it did not pass."""
        return bound_of(self.outcome, self.budget)

    @property
    def full(self) -> bool:
        """Whether it was trained for its whole budget and did not diverge."""
        return self.outcome.epochs >= self.budget and not self.outcome.diverged

    @property
    def extended(self) -> bool:
        """Whether it continued for longer than a run does that has passed."""
        crossed = self.outcome.crossed
        return crossed is not None and self.outcome.epochs > crossed + 1 + self.past

    def csv_row(self) -> dict[str, Value]:
        """One row of summary.csv."""
        outcome, platform = self.outcome, self.platform
        return {
            "experiment": self.experiment,
            "method": self.method,
            "seed": self.seed,
            "id": self.id,
            "counts": "no" if self.differs else "yes",
            "state": self.state,
            "crossed": outcome.crossed,
            "epochs": outcome.epochs,
            "train_accuracy": outcome.train_accuracy,
            "test_accuracy": outcome.test_accuracy,
            "best_test_accuracy": outcome.best_test_accuracy,
            "full_length": "yes" if self.full else "no",
            "mean_train_accuracy": self.mean_train_accuracy,
            "seconds": self.seconds,
            "ms_per_epoch": platform and platform.ms_per_epoch,
            "measuring_ms_per_epoch": platform and platform.measuring_ms_per_epoch,
            "hardware": platform and platform.hardware,
            "device": platform and platform.device,
            "threads": platform and platform.threads,
            "seeds_side_by_side": platform and platform.seeds,
            "torch": platform and platform.torch,
            "polar": self.polar or None,
            "source": platform and platform.source,
            "commit": platform and platform.commit,
            "when": platform and platform.when,
            "differs": self.differs,
        }


@dataclass(frozen=True)
class Reading:
    """What `read_run` keeps of a run's files: numbers, and the curve that figures draw. It does not know the experiment."""

    stored: Stored
    outcome: Outcome
    """After all stored epochs."""
    mean_train_accuracy: float | None
    """Over the epochs within the budget."""
    end: tuple[float, float] | None
    """Smallest and largest test accuracy over the last tenth of the epochs."""
    seconds: float | None
    """One seed's share of the time, training and measuring. Epochs that were trained twice count twice."""
    sessions: tuple[TrainingSession, ...]
    platform: Platform | None
    curve: pd.DataFrame = field(repr=False)
    """One row per kept epoch, one column per measure."""

    def snapshots(self) -> list[dict[str, Any]]:
        """Every snapshot: epoch, singular_values, displacement. They are large, so each call reads them from disk."""
        lines = _read_again_on_error(lambda: _lines(self.stored))
        found = [json.loads(line) for line in lines if b'"snapshot"' in line]
        return [
            {
                "epoch": record["epoch"],
                "singular_values": np.array(record["snapshot"]["singular_values"], dtype=float),
                "displacement": np.asarray(decode(record["snapshot"]["displacement"])),
            }
            for record in found
        ]


def read_run(stored: Stored, threshold: float, budget: int) -> Reading:
    """Reads the epochs up to the newest checkpoint.

    Raises:
        StoreError: records that were cut or edited.
    """
    import pandas as pd  # slow to import, and most commands do not need it

    lines = _read_again_on_error(lambda: _lines(stored))
    records = json.loads(b"[" + b",".join(line for line in lines if b'"snapshot"' not in line) + b"]")
    within = Outcome.of(records, threshold, budget=budget)
    outcome = reduce(Outcome.after, (record for record in records if record["epoch"] >= budget), within)
    accuracies = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    end = accuracies[-max(1, len(accuracies) // 10) :]
    kept = [record for record in records if record is records[-1] or is_kept(record["epoch"])]
    curve = pd.DataFrame(kept).drop(columns="active", errors="ignore")
    environments, timings = stored.environments, stored.timings
    return Reading(
        stored=stored,
        outcome=outcome,
        mean_train_accuracy=within.mean_train_accuracy,
        end=(min(end), max(end)) if end else None,
        seconds=share_of_time(timings),
        sessions=sessions_of(environments, timings),
        platform=platform_of(environments, timings),
        curve=curve.astype(float).astype({"epoch": int}) if kept else curve,
    )


@cache
def is_kept(epoch: int) -> bool:
    """Whether a curve keeps the epoch: all at the start, then `PER_DECADE` per decade, evenly in the logarithm.

    Snapshots are kept as well: some runs have spectra at these epochs alone.
    """
    number = epoch + 1
    return (
        number <= WHOLE
        or is_snapshot(epoch)
        or number == round(10 ** (round(PER_DECADE * math.log10(number)) / PER_DECADE))
    )


def _lines(stored: Stored) -> list[bytes]:
    """The records up to the newest checkpoint, whose checksum they have."""
    newest = next(iter(stored.checkpoints()), None)
    return [] if newest is None else stored.verified(newest).splitlines()


def _read_again_on_error(read: Callable[[], T]) -> T:
    """A run in training may replace its checkpoint between two reads. The second attempt then succeeds."""
    try:
        return read()
    except StoreError:
        return read()
