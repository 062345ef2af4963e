"""Tuning a family's methods: points are trained as the search proposes them, then fresh seeds at the best point."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from egalitarian.lab.config import Record, Run, SpecError
from egalitarian.lab.runs import Listener, Outcome, Progress, Reads, Silent, Stop, Store, sweep, try_step
from egalitarian.lab.tuning.points import Grid, Known, Point, Position, Search, SeedResult, Window
from egalitarian.lab.tuning.results import Results, rules_of

CENTRE: Position = (0, 0)
POINTS = "tuning"
"""The folder below that of the runs for the points of grids. There are thousands, and reports do not list them."""


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
        lr, decay = self.grid.settings(position)
        runs = self.grid.tuning_runs(lr, decay, self.session.device.type)
        known = self.known.point([run.id for run in runs], budget, self.grid.family.budget)
        if known is not None:
            self.reused += 1
        else:
            self.session.check_time()
            known = budget, self._train_point(runs, budget)
        return Point(position, lr, decay, *known)

    def fresh(self, position: Position) -> tuple[SeedResult, ...]:
        """The fresh seeds at a position, with the experiment's own budget, compared on all test points."""
        runs = self.grid.fresh_runs(*self.grid.settings(position), self.session.device.type)
        seeds = self.known.fresh([run.id for run in runs])
        if seeds is not None:
            return seeds
        self.session.check_time()
        return self._sweep(runs, Stop.of(runs[0].experiment, self.grid.method), self.session.store, "test_accuracy")

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


def _seed_result(run: Run, store: Store, stop: Stop, reads: Reads) -> SeedResult:
    outcome = Outcome.of(store.find(run).records(), stop.threshold, reads=reads, budget=stop.epochs)
    return SeedResult.of(run.seed, run.id, outcome, stop.epochs)


def prepare(grids: Sequence[Grid]) -> None:
    """One step of every method at the centre of its grid. An error comes up before anything is trained."""
    for grid in grids:
        _refuse_tuned(grid)
        experiment = grid.experiment(*grid.settings(CENTRE), validation=True)
        if grid.family.score == "train-accuracy" and experiment.measure.has_threshold:
            threshold = f"{experiment.measure.threshold:g} in {experiment.name}"
            raise SpecError(
                f"score must be 'epochs' where a threshold ends a run, got 'train-accuracy' and {threshold}: "
                "seeds that pass would be averaged over fewer epochs; set measure.threshold to 1"
            )
        try_step(experiment, grid.method, grid.family.tuning_seeds[0])


def _refuse_tuned(grid: Grid) -> None:
    """Refuses a change of a tuned setting. The search would override it, and the table's heading would be wrong."""
    tuned = grid.family.methods[grid.method]
    for change in grid.changes:
        key = change.split("=")[0].strip().removeprefix(f"methods.{grid.method}.")
        if key in (tuned.lr.key, tuned.decay.key, "training.validation"):
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
    polar = grid.tiers(session.device.type)
    trials, search = Trials(grid, session, Known(results.entry(method))), Search(grid.family)
    fresh: tuple[SeedResult, ...] = ()
    try:
        for position, budget in search:
            _report_point(session, search, budget, *grid.settings(position))
            if search.add(trials.point(position, budget)):
                results.put(method, _entry(grid, search, fresh, environment, polar), trials.seconds)
        best = search.best
        assert best is not None
        session.report(f"best lr {best.lr:g}, decay {best.decay:g}; now {len(grid.family.fresh_seeds)} fresh seeds")
        fresh = trials.fresh(best.position)
    finally:
        results.put(method, _entry(grid, search, fresh, environment, polar), trials.seconds)
        results.reused += trials.reused
        results.seconds += trials.seconds


def _report_point(session: Session, search: Search, budget: int, lr: float, decay: float) -> None:
    move = f", move {search.moves} of at most {search.family.moves}" if search.moves else ""
    session.report(f"point {len(search.points) + 1}{move}: lr {lr:g}, decay {decay:g}, up to {budget} epochs")


def _entry(
    grid: Grid, search: Search, fresh: Sequence[SeedResult], environment: dict[str, Any], polar: str
) -> dict[str, Any]:
    """All that is known of a method, as its results file stores it."""
    best, tuned = search.best, grid.family.methods[grid.method]
    return {
        "title": tuned.title,
        "complete": bool(fresh),
        "keys": {"lr": tuned.lr.key, "decay": tuned.decay.key},
        **rules_of(grid.family),
        "windows": [_ranges(grid, window) for window in search.windows],
        "inside": search.inside,
        "best": None if best is None else _best(grid, best),
        "fresh": [seed.to_json() for seed in fresh],
        "points": [point.to_json() for point in search.points.values()],
        "polar": polar,
        "environment": environment,
    }


def _best(grid: Grid, point: Point) -> dict[str, Any]:
    """The chosen point; `changes` are what `--set` takes to train it."""
    changes = [f"{key}={value!r}" for key, value in grid.values(point.lr, point.decay).items()]
    position = {"place": list(point.position)}  # the key in the files of all versions
    settings = {"lr": point.lr, "decay": point.decay, "budget": grid.untuned.epochs}
    return {**position, **settings, "passes": not math.isinf(point.median), "changes": changes}


def _ranges(grid: Grid, window: Window) -> dict[str, list[float]]:
    """The smallest and the largest learning rate and decay of a window."""
    ends = [grid.settings(corner) for corner in window.corners]
    return {"lr": [lr for lr, _ in ends], "decay": [decay for _, decay in ends]}
