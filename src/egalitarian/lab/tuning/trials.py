"""Tuning a family's methods: points are trained as the search proposes them, then fresh seeds at the best point."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from egalitarian.lab.config import Record, Run, SpecError
from egalitarian.lab.runs import (
    Listener,
    Outcome,
    Progress,
    Reads,
    Silent,
    Stop,
    Store,
    sweep,
    try_step,
)
from egalitarian.lab.tuning.points import Grid, Known, Point, Position, SeedResult
from egalitarian.lab.tuning.results import Results, rules_of
from egalitarian.lab.tuning.search import Search

POINTS = "tuning"
"""The folder below that of the runs for the points of grids. There are thousands, and reports do not list them."""


SETTLED = 5
"""The first epoch whose seconds count. Before it, steps are eager, and CUDA graphs are captured."""


class OutOfTime(Exception):  # noqa: N818  # a limit of the user, not an error
    """The time limit is reached; everything is stored."""


class PointMessages(Silent):
    """Follows the runs of a search, and passes on one message for each epoch."""

    def __init__(self, show: Callable[[str], object] = lambda text: None) -> None:
        self._show, self._point = show, ""

    def begin(self, text: str) -> None:
        """What is trained from now on."""
        self._point = text
        self._show(text)

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        latest = [own[0] for own in records]
        seen = [record.get("validation_accuracy", record["test_accuracy"]) or 0.0 for record in latest]
        self._show(f"{self._point}; epoch {latest[0]['epoch']}, accuracy {statistics.median(seen):.1%}")

    def note(self, text: str) -> None:
        self._show(text)


@dataclass(frozen=True)
class Session:
    """Where runs are trained and stored, until when, and who follows."""

    store: Store
    device: torch.device
    listener: Listener = field(default_factory=Silent)
    deadline: float | None = None
    """By the monotonic clock: no point begins after it."""
    report: Callable[[str], object] = lambda text: None
    """Takes a message at each point."""

    @property
    def points(self) -> Store:
        return Store(self.store.root / POINTS)

    def check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime


@dataclass
class Trials:
    """Trains one method: the tuning seeds at any position of its grid, and the fresh seeds."""

    grid: Grid
    session: Session
    known: Known = field(default_factory=Known)
    seconds: float = 0.0
    """Spent on training."""
    reused: int = 0
    """Points that a results file had."""

    def point(self, position: Position, budget: int) -> Point:
        """The tuning seeds at a position, trained for at most `budget` epochs and compared on the validation split."""
        runs = self.grid.tuning_runs(position, self.session.device.type)
        known = self.known.point([run.id for run in runs], budget, self.grid.budget(validation=True))
        if known is not None:
            self.reused += 1
        else:
            self.session.check_time()
            known = budget, self._train_point(runs, budget)
        return Point(position, *self.grid.settings(position), *known, self.grid.third(position).title)

    def fresh(self, position: Position, name: str) -> tuple[SeedResult, ...]:
        """The fresh seeds of the experiment of this name at a position, compared on all test points."""
        runs = self.grid.fresh_runs(position, self.session.device.type, name)
        seeds = self.known.fresh([run.id for run in runs])
        if seeds is not None:
            return seeds
        self.session.check_time()
        return self._sweep(runs, Stop.of(runs[0].experiment, self.grid.method), self.session.store, "test_accuracy")

    def seconds_of(self, position: Position, name: str) -> dict[str, Any] | None:
        """Each fresh seed's seconds of training through the epoch that passed, and on what hardware.

        None where its runs are not stored here.
        """
        runs = self.grid.fresh_runs(position, self.session.device.type, name)
        stop, found, machines = Stop.of(runs[0].experiment, self.grid.method), [], set()
        for run in runs:
            stored = self.session.store.find(run)
            machines |= {environment["hardware"] for environment in stored.environments}
            outcome = Outcome.of(stored.epochs(), stop.threshold, budget=stop.epochs)
            each = seconds_of_an_epoch(stored.timings)
            if each is None:
                return None
            found.append(float(f"{each * outcome.epochs_until_passed:.4g}"))
        return {"hardware": ", ".join(sorted(machines)), "seeds": found}

    def _train_point(self, runs: Sequence[Run], budget: int) -> tuple[SeedResult, ...]:
        """Trains until every seed passes on the validation split, diverges, or has the whole budget.

        A sweep ends a seed by its test accuracy. The validation accuracy may pass later, so the epochs past the threshold
        are doubled until it has.
        """
        measure = runs[0].experiment.measure
        reads: Reads = "validation_accuracy" if self.grid.family.score == "epochs" else "test_accuracy"
        past = measure.past
        while True:
            seeds = self._sweep(runs, Stop(measure.threshold, budget, past), self.session.points, reads)
            if all(seed.crossed is not None or seed.diverged or seed.epochs >= budget for seed in seeds):
                return seeds
            past = 2 * past + 1

    def _sweep(self, runs: Sequence[Run], stop: Stop, store: Store, reads: Reads) -> tuple[SeedResult, ...]:
        session, begun = self.session, time.monotonic()
        seeds, experiment = [run.seed for run in runs], runs[0].experiment
        try:
            sweep(experiment, self.grid.method, seeds, store, session.device, stop=stop, listener=session.listener)
        finally:
            self.seconds += time.monotonic() - begun
        return tuple(_seed_result(run, store, stop, reads) for run in runs)


def seconds_of_an_epoch(timings: Sequence[Mapping[str, Any]]) -> float | None:
    """The median of one seed's share, while all seeds are trained and once everything is captured; None without such."""
    seeds = max((timing["seeds"] for timing in timings), default=0)
    steady = [each["training"] / seeds for each in timings if each["seeds"] == seeds and each["epoch"] >= SETTLED]
    return statistics.median(steady) if steady else None


def _seed_result(run: Run, store: Store, stop: Stop, reads: Reads) -> SeedResult:
    outcome = Outcome.of(store.find(run).records(), stop.threshold, reads=reads, budget=stop.epochs)
    return SeedResult.of(run.seed, run.id, outcome, stop.epochs)


def prepare(grids: Sequence[Grid]) -> None:
    """One step of every method, and of every setting of its third knob. An error comes up before anything is trained."""
    for grid in grids:
        _refuse_tuned(grid)
        family, thirds = grid.family, len(grid.family.methods[grid.method].third)
        first = Position(0, 0)
        experiment = grid.experiment(first, validation=True)
        for name in family.experiments.values():
            fresh = grid.experiment(first, name, validation=False)
            _ = fresh.steps_per_epoch  # an error where readings do not divide a pass
        for third in range(1, thirds + 1):
            try_step(grid.experiment(first._replace(third=third), validation=True), grid.method, family.tuning_seeds[0])
        if family.score == "train-accuracy" and experiment.measure.has_threshold:
            threshold = f"{experiment.measure.threshold:g} in {experiment.name}"
            raise SpecError(
                f"score must be 'epochs' where a threshold ends a run, got 'train-accuracy' and {threshold}: "
                "seeds that pass would be averaged over fewer epochs; set measure.threshold to 1"
            )
        try_step(experiment, grid.method, family.tuning_seeds[0])


def _refuse_tuned(grid: Grid) -> None:
    """Refuses a change of a tuned setting. The search would override it, and the table's heading would be wrong."""
    tuned = grid.family.methods[grid.method]
    for change in grid.changes:
        key = change.split("=")[0].strip().removeprefix(f"methods.{grid.method}.")
        scaled = (*tuned.lr.scales, *tuned.decay.scales)
        if key in (tuned.lr.key, tuned.decay.key, *scaled, "epochs", "training.validation", "training.readings"):
            name = f"{grid.method} of {grid.family.name}"
            raise SpecError(f"--set must not change what is tuned, got {change!r} for {name}; change the plan")


def tune(grid: Grid, session: Session, results: Results, environment: dict[str, Any]) -> None:
    """Searches one method and trains its fresh seeds. However it ends, the results file has all that is known."""
    method = grid.method
    if results.up_to_date(method):
        results.put(method, results.methods[method])  # the plan may have changed what the file has of the family
        results.reused += len(results.methods[method]["points"])
        return
    results.refuse_other_runs(method, session.device.type)
    trials, search = Trials(grid, session, Known(results.entry(method))), Search(grid.family, method)
    found = Found(grid, search, environment, grid.tiers(session.device.type))
    try:
        for position, budget in search:
            _report_point(session, search, budget, grid, position)
            if search.add(trials.point(position, budget)):
                results.put(method, found.entry, trials.seconds)
        if not results.fresh_wait:
            _train_fresh(found, trials)
    finally:
        results.put(method, found.entry, trials.seconds)
        results.reused += trials.reused
        results.seconds += trials.seconds


def _train_fresh(found: Found, trials: Trials) -> None:
    """The fresh seeds of all experiments of the family, at the best point."""
    family, best = found.grid.family, found.search.best
    assert best is not None
    third = f", {best.third}" if best.third else ""
    for name, path in family.experiments.items():
        trials.session.report(
            f"best lr {best.lr:g}, decay {best.decay:g}{third}; now {name}, {len(family.fresh_seeds)} seeds"
        )
        found.fresh[name] = trials.fresh(best.position, path)
        seconds = trials.seconds_of(best.position, path) or trials.known.seconds.get(name)
        if seconds is not None:
            found.seconds[name] = seconds


def _report_point(session: Session, search: Search, budget: int, grid: Grid, position: Position) -> None:
    (lr, decay), third = grid.settings(position), grid.third(position).title
    knob = f", {third}" if third else ""
    session.report(
        f"point {len(search.points) + 1}, {search.stage}: lr {lr:g}, decay {decay:g}{knob}, up to {budget} epochs"
    )


@dataclass
class Found:
    """All that is known of a method, as its results file stores it."""

    grid: Grid
    search: Search
    environment: dict[str, Any]
    polar: str
    fresh: dict[str, tuple[SeedResult, ...]] = field(default_factory=dict)
    """By experiment."""
    seconds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the fresh seeds, with the hardware, by experiment."""

    @property
    def entry(self) -> dict[str, Any]:
        grid, search, family = self.grid, self.search, self.grid.family
        best, tuned = search.best, family.methods[grid.method]
        return {
            "title": tuned.title,
            "complete": set(self.fresh) == set(family.experiments),
            "searched": search.done,
            "keys": {"lr": tuned.lr.key, "decay": tuned.decay.key},
            **rules_of(family, grid.method),
            "beyond": search.beyond,
            "inside": search.inside,
            "best": None if best is None else self._best(best),
            "fresh": {name: [seed.to_json() for seed in seeds] for name, seeds in self.fresh.items()},
            "seconds": self.seconds,
            "points": [point.to_json() for point in search.points.values()],
            "polar": self.polar,
            "environment": self.environment,
        }

    def _best(self, point: Point) -> dict[str, Any]:
        """The chosen point; `changes` are what `--set` takes to train it."""
        changes = [f"{key}={_spelled(value)}" for key, value in self.grid.values(point.position).items()]
        settings = {"lr": point.lr, "decay": point.decay, "third": point.third}
        budget = {"budget": self.grid.budget(validation=False)}
        passes = not math.isinf(point.median)
        return {"position": list(point.position), **settings, **budget, "passes": passes, "changes": changes}


def _spelled(value: Any) -> str:
    """As TOML, which `--set` reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str | list) else repr(value)
