"""One stored run, read once: its crossing, its best and last epoch, a curve thin enough to draw, what it cost and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from egalitarian.lab.analysis.sittings import Sitting, sittings_of
from egalitarian.lab.runs.store import Record, Stored, StoreError
from egalitarian.lab.training.metrics import decode, is_snapshot

PER_DECADE = 100
"""Kept epochs per decade of (epoch + 1): 400 for a run of ten thousand."""
WHOLE = 100
"""Epochs of which all are kept: labels that are shuffled make an accuracy fall from one to the next."""
T = TypeVar("T")


class Platform(NamedTuple):
    """Where and with what a run was made, and what an epoch cost there."""

    hardware: str
    device: str
    threads: int
    together: int
    """Seeds that were trained side by side."""
    beside: int
    """Other processes that trained at the same time."""
    torch: str
    commit: str
    source: str
    when: str
    ms_per_epoch: float | None
    """Of one seed: training alone, the median over epochs, over the seeds trained side by side."""
    measuring_ms_per_epoch: float | None
    polar: str
    """How the polar factor was taken, "fast" or "exact", or both, where sittings differ; empty: not at all, or not said."""

    @property
    def place(self) -> str:
        """All that a time depends on, in words."""
        threads = f", {self.threads} thread{'s' * (self.threads != 1)}" if self.device == "cpu" else ""
        company = f"{self.together} seeds side by side" if self.together > 1 else "one seed alone"
        others = f", with {self.beside} other process{'es' * (self.beside != 1)}" if self.beside else ""
        return f"{self.hardware}{threads}, {company}{others}"


@dataclass(frozen=True)
class Reading:
    """What is kept of a run's records."""

    stored: Stored
    epochs: int
    crossed: int | None
    diverged: bool
    last: Record | None
    best_test_accuracy: float | None
    end: tuple[float, float] | None
    """Smallest and largest test accuracy over the last tenth of the epochs."""
    mean_train_accuracy: float | None
    """Over all epochs."""
    seconds: float | None
    """One seed's share of all the time it took, training and measuring; epochs that were trained twice count twice."""
    sittings: tuple[Sitting, ...]
    curve: pd.DataFrame = field(repr=False)
    """One row per kept epoch."""
    platform: Platform | None

    def snapshots(self) -> list[dict[str, Any]]:
        """Every snapshot: epoch, singular_values, displacement. Not kept, as they are large."""
        lines = _patiently(lambda: _vouched(self.stored))
        found = [json.loads(line) for line in lines if b'"snapshot"' in line]
        return [
            {
                "epoch": record["epoch"],
                "singular_values": np.array(record["snapshot"]["singular_values"], dtype=float),
                "displacement": decode(record["snapshot"]["displacement"]),
            }
            for record in found
        ]


def read_run(stored: Stored, threshold: float, budget: int) -> Reading:
    """A mean is over the budget's epochs, however long somebody went on. Raises StoreError for what was cut or edited."""
    lines = _patiently(lambda: _vouched(stored))
    records = json.loads(b"[" + b",".join(line for line in lines if b'"snapshot"' not in line) + b"]")
    accuracies = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    within = [record for record in records if record["epoch"] < budget]
    learnt = [record["train_accuracy"] for record in within if record["train_accuracy"] is not None]
    end = accuracies[-max(1, len(accuracies) // 10) :]
    past = (record["epoch"] for record in records if (record["test_accuracy"] or 0) > threshold)
    last = records[-1] if records else None
    kept = [record for record in records if record is last or is_kept(record["epoch"])]
    environments, timings = stored.environments, stored.timings
    curve = pd.DataFrame(kept).drop(columns="active", errors="ignore")
    return Reading(
        stored=stored,
        epochs=0 if last is None else last["epoch"] + 1,
        crossed=next(past, None),
        diverged=last is not None and last["train_loss"] is None,
        last=last,
        best_test_accuracy=max(accuracies, default=None),
        end=(min(end), max(end)) if end else None,
        mean_train_accuracy=sum(learnt) / len(learnt) if learnt else None,
        seconds=_share(timings),
        sittings=sittings_of(environments, timings),
        curve=curve.astype(float).astype({"epoch": int}) if kept else curve,
        platform=_platform(environments, timings),
    )


@cache
def is_kept(epoch: int) -> bool:
    """Whether epoch + 1 is small, or one of `PER_DECADE` whole numbers per decade, evenly in the logarithm; and snapshots,
    which are all that some runs have spectra of."""
    number = epoch + 1
    return (
        number <= WHOLE
        or is_snapshot(epoch)
        or bool(number == round(10 ** (round(PER_DECADE * np.log10(number)) / PER_DECADE)))
    )


def _vouched(stored: Stored) -> list[bytes]:
    newest = next(iter(stored.checkpoints()), None)
    return [] if newest is None else stored.vouched(newest).splitlines()


def _patiently(look: Callable[[], T]) -> T:
    """A run may be in training: its checkpoint can be replaced between two looks. A second look then succeeds."""
    try:
        return look()
    except StoreError:
        return look()


def _platform(environments: list[Record], timings: list[Record]) -> Platform | None:
    """Of the sitting that trained the most epochs, where there were several; later lines replace repeated epochs."""
    if not environments:
        return None
    by_epoch = {timing["epoch"]: timing for timing in timings}
    starts = [environment["epoch"] for environment in environments]
    ends = [min((start for start in starts[place + 1 :]), default=len(by_epoch)) for place in range(len(starts))]
    longest = max(range(len(starts)), key=lambda place: (ends[place] - starts[place], place))
    about = environments[longest]
    sitting = [timing for epoch, timing in by_epoch.items() if starts[longest] <= epoch < ends[longest]]
    return Platform(
        hardware=about["hardware"],
        device=about["device"],
        threads=about["threads"],
        together=about["seeds"],
        beside=about.get("beside", 0),
        torch=about["torch"],
        commit=about["commit"] or "",
        source=about["source"],
        when=about["when"],
        ms_per_epoch=_median_ms(timing["training"] / timing["seeds"] for timing in sitting),
        measuring_ms_per_epoch=_median_ms(timing["measuring"] / timing["seeds"] for timing in sitting),
        polar=", ".join(dict.fromkeys(each["polar"] for each in environments if each.get("polar"))),
    )


def _share(timings: list[Record]) -> float | None:
    return sum((timing["training"] + timing["measuring"]) / timing["seeds"] for timing in timings) if timings else None


def _median_ms(seconds: Iterable[float]) -> float | None:
    numbers = list(seconds)
    return 1000 * float(np.median(numbers)) if numbers else None
