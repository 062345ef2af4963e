"""One stored run, read once: its outcome, a thinned curve, its sessions, its cost and its platform.

`read_run` returns a `Reading`. `gather` adds names, budget and differences, which gives a `RunSummary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from egalitarian.lab.analysis.counts import Value
from egalitarian.lab.config import KEPT, LEARNING, SPECTRUM_BITS, Coarse, Record, Snapshot, is_kept, single
from egalitarian.lab.runs import Outcome, StoredRun, TimeSpent

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

RunState = Literal["passed", "not passed", "diverged", "unfinished"]


class TrainingSession(NamedTuple):
    """The time from one start of training to its end, with the time between the epochs left out."""

    device: str
    begin: float
    """Unix time, in seconds."""
    end: float


def sessions_of(environments: Sequence[Record], spent: TimeSpent) -> tuple[TrainingSession, ...]:
    """The sessions of a run. Their length is the sum of training and measuring; the start-up is not in it."""
    found = []
    for environment, seconds in zip(environments, spent.sessions, strict=True):
        begin = datetime.fromisoformat(environment["when"]).timestamp()
        if seconds:
            found.append(TrainingSession(environment["device"], begin, begin + seconds))
    return tuple(found)


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


def platform_of(environments: Sequence[Record], spent: TimeSpent) -> Platform | None:
    """The platform of the session with the most epochs."""
    if spent.longest is None:
        return None
    environment = environments[spent.longest]
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
        ms_per_epoch=spent.ms_per_epoch,
        measuring_ms_per_epoch=spent.measuring_ms_per_epoch,
        polar=", ".join(dict.fromkeys(each["polar"] for each in environments if each.get("polar"))),
    )


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
    has_checksums: bool = True
    """Whether settings, environments and times have checksums, as the records do."""
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
    """What `read_run` keeps of a run: numbers, and the curve that figures draw. It does not know the experiment."""

    stored: StoredRun
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

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, as exact as evidence has it. They are large, so each call reads them from disk."""
        return [
            Snapshot(
                epoch,
                None if values is None else single(values, SPECTRUM_BITS).astype(float),
                None if displacement is None else Coarse.of(displacement).vector(),
                None if power is None else single(power, SPECTRUM_BITS).astype(float),
            )
            for epoch, values, displacement, power in self.stored.snapshots()
        ]


def read_run(stored: StoredRun, threshold: float, budget: int) -> Reading:
    """Reads the epochs of a run, those of a stored one up to its newest checkpoint.

    Raises:
        StoreError: records that were cut or edited.
    """
    import pandas as pd  # slow to import, and most commands do not need it

    records = stored.epochs()
    within = Outcome.of(records, threshold, budget=budget)
    outcome = reduce(Outcome.after, (record for record in records if record["epoch"] >= budget), within)
    accuracies = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    end = accuracies[-max(1, len(accuracies) // 10) :]
    kept = [record for record in records if record is records[-1] or is_kept(record["epoch"])]
    columns = [name for name in ("epoch", *LEARNING, *KEPT) if any(name in record for record in kept)]
    curve = pd.DataFrame(kept, columns=columns).astype(float)
    for name in columns:
        if name != "epoch" and not name.endswith("_accuracy"):
            curve[name] = single(curve[name].to_numpy()).astype(float)  # as evidence has it: reports of both are equal
    environments, spent = stored.environments, stored.time_spent
    return Reading(
        stored=stored,
        outcome=outcome,
        mean_train_accuracy=within.mean_train_accuracy,
        end=(min(end), max(end)) if end else None,
        seconds=spent.share,
        sessions=sessions_of(environments, spent),
        platform=platform_of(environments, spent),
        curve=curve.astype({"epoch": int}) if kept else curve,
    )
