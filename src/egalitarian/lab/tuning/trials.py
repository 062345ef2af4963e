"""A point of the grid as a run: the experiment with two settings changed, its seeds trained as one, its records read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment, Method, Run
from egalitarian.lab.runs.progress import Listener, Silent, Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.runs.sweep import sweep
from egalitarian.lab.tuning.plan import Axis, Family
from egalitarian.lab.tuning.points import Known, Outcome, Point
from egalitarian.lab.tuning.window import Place, value

UNSEEN = "measure.spectra=snapshots"
"""Nobody looks at a point's spectra, and on a GPU they take most of an epoch's time."""
POINTS = "tuning"
"""The folder below that of the runs for the points of grids: thousands, and none for a report to list."""


class OutOfTime(Exception):  # noqa: N818  # not an error: somebody set a limit
    """The time that was given is over; everything is stored."""


@dataclass(frozen=True)
class Workshop:
    """Where runs are trained and stored, and for how long."""

    store: Store
    device: torch.device
    listener: Listener = field(default_factory=Silent)
    deadline: float | None = None
    """By the monotonic clock: nothing is begun after it."""

    @property
    def points(self) -> Store:
        return Store(self.store.root / POINTS)

    def check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime


@dataclass
class Trials:
    """All runs of one method of one family."""

    family: Family
    method: str
    changes: tuple[str, ...]
    """What a user changed for all methods."""
    workshop: Workshop
    known: Known = field(default_factory=Known)
    seconds: float = 0.0
    """That went into training."""
    taken: int = 0
    """Points that a file knew."""

    def point(self, place: Place, budget: int) -> Point:
        """The tuning seeds at a place of the lattice, `budget` epochs at most; the choice reads the validation split."""
        lr, decay = self.settings(place)
        runs = tuning_runs(self.family, self.method, self.changes, lr, decay)
        known = self.known.point([run.id for run in runs], budget, self.family.budget)
        if known is not None:
            self.taken += 1
        else:
            self.workshop.check_time()
            known = budget, self._until_all_are_seen(runs, budget)
        return Point(place, lr, decay, *known)

    def fresh(self, place: Place) -> tuple[Outcome, ...]:
        """The fresh seeds with the experiment's own budget: test accuracy counts, and nothing is set apart."""
        experiment = self.experiment(place, validation=False)
        runs = [Run(experiment, self.method, seed) for seed in self.family.fresh_seeds]
        seeds = self.known.fresh([run.id for run in runs])
        if seeds is not None:
            return seeds
        self.workshop.check_time()
        stop = Stop.of(experiment, self.method)
        self._sweep(runs, stop, self.workshop.store)
        return _outcomes(runs, self.workshop.store, "test_accuracy", stop.threshold, stop.epochs)

    def settings(self, place: Place) -> tuple[float, float]:
        tuned, family = self.family.methods[self.method], self.family
        lr = value(tuned.lr.centre, family.lr_factor, place[0])
        return lr, value(tuned.decay.centre, family.decay_factor, place[1])

    @cached_property
    def budget(self) -> int:
        """Of a fresh seed: the experiment's."""
        return self._plain.epochs

    def experiment(self, place: Place, validation: bool) -> Experiment:
        """The family's experiment with the two settings of a place."""
        apart = self.family.validation if validation else 0.0
        return with_settings(self.family, self.method, self.changes, *self.settings(place), apart)

    def changed(self, place: Place) -> list[str]:
        """What `--set` would have to be given."""
        return _changed(self.family, self.method, self._plain, *self.settings(place))

    @cached_property
    def _plain(self) -> Method:
        """As it is before it is tuned."""
        return _untuned(self.family, self.method, self.changes)

    def _until_all_are_seen(self, runs: Sequence[Run], budget: int) -> tuple[Outcome, ...]:
        """Trains until every seed has passed on the validation split, too: a sweep ends one by its test accuracy."""
        measure = runs[0].experiment.measure
        reads = "validation_accuracy" if self.family.score == "epochs" else "test_accuracy"
        past = measure.past
        while True:
            self._sweep(runs, Stop(measure.threshold, budget, past), self.workshop.points)
            seeds = _outcomes(runs, self.workshop.points, reads, measure.threshold, budget)
            if all(seed.crossed is not None or seed.diverged or seed.epochs >= budget for seed in seeds):
                return seeds
            past = 2 * past + 1

    def _sweep(self, runs: Sequence[Run], stop: Stop, store: Store) -> None:
        seeds = [run.seed for run in runs]
        workshop, begun = self.workshop, time.monotonic()
        try:
            sweep(runs[0].experiment, self.method, seeds, store, workshop.device, stop=stop, listener=workshop.listener)
        finally:
            self.seconds += time.monotonic() - begun


def tuning_runs(family: Family, method: str, changes: Sequence[str], lr: float, decay: float) -> list[Run]:
    """Of the tuning seeds, with these two settings."""
    experiment = with_settings(family, method, changes, lr, decay, family.validation)
    return [Run(experiment, method, seed) for seed in family.tuning_seeds]


def with_settings(family: Family, method: str, changes: Sequence[str], lr: float, decay: float, apart: float) -> Experiment:
    """The family's experiment with two settings of a method, and a share of the test points set apart."""
    validation = [f"training.validation={apart}"] if apart else []
    tuned = _changed(family, method, _untuned(family, method, changes), lr, decay)
    return catalog.load(family.experiment, [*changes, UNSEEN, *validation, *tuned], added=family.added)


def _untuned(family: Family, method: str, changes: Sequence[str]) -> Method:
    return catalog.load(family.experiment, changes, added=family.added).method(method)


def _changed(family: Family, method: str, plain: Method, lr: float, decay: float) -> list[str]:
    tuned = family.methods[method]
    pairs = ((tuned.lr, lr), (tuned.decay, decay))
    return [f"methods.{method}.{change}" for axis, number in pairs for change in _set(axis, number, plain)]


def _set(axis: Axis, number: float, method: Method) -> Iterable[str]:
    yield f"{axis.key}={number!r}"
    for key in axis.scales:
        here: Any = method
        for part in key.split("."):
            here = getattr(here, part, None)
        if not isinstance(here, float):
            raise SpecError(f"scales must name numbers that the method has, got {key!r}; for example optim.lr")
        yield f"{key}={float(f'{here * number / axis.centre:.3g}')!r}"


def _outcomes(runs: Sequence[Run], store: Store, reads: str, threshold: float, budget: int) -> tuple[Outcome, ...]:
    found = ((run, store.find(run).records()) for run in runs)
    return tuple(Outcome.of(run.seed, run.id, records, reads, threshold, budget) for run, records in found)
