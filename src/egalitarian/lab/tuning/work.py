"""A family's methods one after another: searched, measured on fresh seeds, written down after every point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.runs.sweep import rehearse
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Known, Outcome, Point
from egalitarian.lab.tuning.results import Results, rules_of
from egalitarian.lab.tuning.search import Search
from egalitarian.lab.tuning.trials import Trials, Workshop
from egalitarian.lab.tuning.window import Place, Window

CENTRE: Place = (0, 0)
Tell = Callable[[str], object]


@dataclass
class Work:
    """One method as it stands."""

    trials: Trials
    search: Search
    environment: dict[str, Any]
    fresh: tuple[Outcome, ...] = ()

    def entry(self) -> dict[str, Any]:
        """All there is to know, as plain values."""
        family, best = self.trials.family, self.search.best
        tuned = family.methods[self.trials.method]
        return {
            "title": tuned.title,
            "complete": bool(self.fresh),
            "keys": {"lr": tuned.lr.key, "decay": tuned.decay.key},
            **rules_of(family),
            "windows": [self._corners(window) for window in self.search.path],
            "inside": self.search.inside,
            "best": None if best is None else self._best(best),
            "fresh": [seed.plain() for seed in self.fresh],
            "points": [point.plain() for point in self.search.points.values()],
            "environment": self.environment,
        }

    def _best(self, point: Point) -> dict[str, Any]:
        place = {"place": list(point.place), "lr": point.lr, "decay": point.decay, "budget": self.trials.budget}
        return {**place, "passes": not math.isinf(point.median), "changes": self.trials.changed(point.place)}

    def _corners(self, window: Window) -> dict[str, list[float]]:
        """The smallest and the largest of its learning rates and decays."""
        ends = [self.trials.settings(corner) for corner in window.corners]
        return {"lr": [lr for lr, _ in ends], "decay": [decay for _, decay in ends]}


def prepare(family: Family, methods: Sequence[str], changes: Sequence[str], workshop: Workshop) -> None:
    """One step of every method at its grid's centre: what cannot work is told before anything is trained."""
    for method in methods:
        _refuse_idle(family, method, changes)
        experiment = Trials(family, method, tuple(changes), workshop).experiment(CENTRE, validation=True)
        if family.score == "train-accuracy" and experiment.measure.waits:
            threshold = f"{experiment.measure.threshold:g} in {experiment.name}"
            raise SpecError(
                f"score must be 'epochs' where a threshold ends a run, got 'train-accuracy' and {threshold}: "
                "seeds that pass would be averaged over fewer epochs; set measure.threshold to 1"
            )
        rehearse(experiment, method, family.tuning_seeds[0])


def _refuse_idle(family: Family, method: str, changes: Sequence[str]) -> None:
    """A change that the tuning itself would undo: it would stand in the table's heading and not be true."""
    tuned = family.methods[method]
    for change in changes:
        key = change.split("=")[0].strip().removeprefix(f"methods.{method}.")
        if key in (tuned.lr.key, tuned.decay.key, "training.validation"):
            raise SpecError(
                f"--set must not change what is tuned, got {change!r} for {method} of {family.name}; change the plan"
            )


def tune(
    family: Family,
    methods: Sequence[str],
    changes: Sequence[str],
    workshop: Workshop,
    results: Results,
    environment: dict[str, Any],
    tell: Tell = lambda text: None,
) -> None:
    """Every method in turn. Whatever ends it, the results hold all that is known, and say whether that is all."""
    for method in methods:
        if results.whole(method):
            results.put(method, results.methods[method])  # what the plan says of the family may be new
            results.taken += len(results.methods[method]["points"])
            continue
        trials = Trials(family, method, tuple(changes), workshop, Known(results.known(method)))
        work = Work(trials, Search(family), environment)
        try:
            _tune_method(work, results, tell)
        finally:
            results.put(method, work.entry(), trials.seconds)
            results.taken += trials.taken
            results.seconds += trials.seconds


def _tune_method(work: Work, results: Results, tell: Tell) -> None:
    method, family = work.trials.method, work.trials.family

    def trial(place: Place, budget: int) -> Point:
        lr, decay = work.trials.settings(place)
        tell(f"{method}, point {len(work.search.points) + 1}: lr {lr:g}, decay {decay:g}, up to {budget} epochs")
        return work.trials.point(place, budget)

    work.search.run(
        trial, lambda text: tell(f"{method}: {text}"), lambda: results.put(method, work.entry(), work.trials.seconds)
    )
    best = work.search.best
    assert best is not None
    tell(f"{method}: best lr {best.lr:g}, decay {best.decay:g}; now {len(family.fresh_seeds)} fresh seeds")
    work.fresh = work.trials.fresh(best.place)
