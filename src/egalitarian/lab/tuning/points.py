"""Points of a search: their settings, their runs, and the results of their seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from egalitarian.lab.config import DEVICES, Experiment, Run, SpecError, load, nearest
from egalitarian.lab.runs import Outcome
from egalitarian.lab.tuning.plan import Axis, Family, Third

NO_SPECTRA = {"measure.spectra": "snapshots"}
"""Nothing reads the spectra of a point, and on a GPU they take most of an epoch's time."""


class Position(NamedTuple):
    """Where a point is. Neighbours on the coarse grid are two steps apart, so that one step is half a factor."""

    lr: int
    """Half factors above the first learning rate."""
    decay: int | None
    """Half factors above the first decay; None is no decay at all."""
    third: int = 0
    """The number of a setting of the third knob, from 1; 0 is the method as it is."""


def polar_text(run: Run) -> str:
    """The tiers of a run's polar factors; empty without a polar factor."""
    return ", ".join(dict.fromkeys(run.method.tiers))


def grid_value(first: float, factor: float, halves: int | None) -> float:
    """The value of a setting so many half factors above its first; 0 for None."""
    return 0.0 if halves is None else rounded(first * factor ** (halves / 2))


def rounded(value: float) -> float:
    """To three digits: searched settings have no more."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class Grid:
    """The experiments and runs at all positions of one method."""

    family: Family
    method: str
    changes: Sequence[str] = ()
    """What a user changed for all methods, as `--set` takes it."""

    def settings(self, position: Position) -> tuple[float, float]:
        """Learning rate and decay."""
        tuned, family, third = self.family.methods[self.method], self.family, self.third(position)
        lr = grid_value(tuned.lr.first, tuned.lr.factor or family.lr_factor, position.lr)
        decay = grid_value(tuned.decay.first, tuned.decay.factor or family.decay_factor, position.decay)
        return rounded(lr * third.lr), rounded(decay * third.decay)

    def third(self, position: Position) -> Third:
        """The setting of the third knob; one that changes nothing for number 0."""
        return self.family.methods[self.method].third[position.third - 1] if position.third else Third(title="")

    def values(self, position: Position) -> dict[str, Any]:
        """Everything that the position decides, by dotted key."""
        tuned, third = self.family.methods[self.method], self.third(position)
        both = zip((tuned.lr, tuned.decay), self.settings(position), strict=True)
        pairs = [pair for axis, number in both for pair in _scaled(axis, number, third)]
        return {f"methods.{self.method}.{key}": value for key, value in [*pairs, *third.change.items()]}

    def experiment(self, position: Position, name: str | None = None, *, validation: bool) -> Experiment:
        """The family's experiment, or the one of this name, as it is trained at a position.

        With `validation` a share of the test points is held out, and accuracy is read as the search does.
        """
        family = self.family
        held_out = {"training.validation": family.validation} if validation and family.validation else {}
        readings = family.readings if validation else family.fresh_readings
        read = {"training.readings": readings} if readings > 1 else {}
        budget = {f"methods.{self.method}.epochs": self.budget(validation=validation)}
        return self._load({**NO_SPECTRA, **held_out, **read, **budget, **self.values(position)}, name)

    def budget(self, *, validation: bool) -> int:
        """Epochs of a seed that does not pass: readings of accuracy."""
        return self.family.budget * (self.family.readings if validation else self.family.fresh_readings)

    def tuning_runs(self, position: Position, device: str) -> list[Run]:
        """On a device of this type, `cpu` or `cuda`."""
        experiment = self.experiment(position, validation=True)
        return [Run(experiment, self.method, seed, device) for seed in self.family.tuning_seeds]

    def fresh_runs(self, position: Position, device: str, name: str | None = None) -> list[Run]:
        """Of the family's experiment, or of the one of this name that takes its points."""
        experiment = self.experiment(position, name, validation=False)
        return [Run(experiment, self.method, seed, device) for seed in self.family.fresh_seeds]

    def stored_runs(self, position: Position) -> list[list[Run]]:
        """The tuning runs that a file may have of a point, by type of device."""
        return [self.tuning_runs(position, device) for device in DEVICES]

    def tiers(self, device: str) -> str:
        """The tiers of the method's polar factors on a device of this type; empty without a polar factor."""
        return polar_text(self.tuning_runs(Position(0, None), device)[0])

    @cached_property
    def untuned(self) -> Experiment:
        """The experiment with the method's own settings."""
        return self._load({}, None)

    def _load(self, values: Mapping[str, Any], name: str | None) -> Experiment:
        family = self.family
        added = {method: own for method, own in family.added.items() if method == self.method}
        return load(name or family.experiment, self.changes, added=added, values=values)


def load_family(family: Family, changes: Sequence[str] = ()) -> Experiment:
    """The family's experiment with the plan's methods. An error names a method that neither of them has."""
    experiment = load(family.experiment, changes, added=family.added)
    for method in family.methods:
        if method not in experiment.methods:
            hint = nearest(method, experiment.methods) or f"one of {', '.join(experiment.methods)}"
            where = f"families.{family.name}.methods.{method}"
            raise SpecError(f"{where} must be a method of {experiment.name} or have settings, got neither; {hint}")
    return experiment


def _scaled(axis: Axis, number: float, third: Third) -> Iterator[tuple[str, float]]:
    if number or axis.none == "zero":
        yield axis.key, number
    for key, multiple in axis.scales.items():
        yield key, rounded(number * multiple * third.scales.get(key, 1.0))


@dataclass(frozen=True)
class SeedResult:
    """What a tuned file stores of one seed: its outcome within a budget of epochs."""

    seed: int
    id: str
    """The id of its run."""
    epochs: int
    """Epochs that were trained, at most the budget."""
    crossed: int | None
    """The first epoch, counted from 0, whose accuracy exceeds the threshold."""
    accuracy: float
    """After the last of these epochs."""
    mean_train_accuracy: float
    """Over these epochs. A diverged seed has it over the budget: the epochs that it lacks count as 0."""
    diverged: bool

    @staticmethod
    def of(seed: int, run_id: str, outcome: Outcome, budget: int) -> SeedResult:
        """`outcome` must be of the epochs within the budget."""
        epochs = budget if outcome.diverged or not outcome.epochs else outcome.epochs
        mean = outcome.total_train_accuracy / epochs
        return SeedResult(seed, run_id, outcome.epochs, outcome.crossed, outcome.accuracy or 0.0, mean, outcome.diverged)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """One position, with the results of the tuning seeds."""

    position: Position
    lr: float
    decay: float
    budget: int
    seeds: tuple[SeedResult, ...]
    third: str = ""
    """The title of the setting of the third knob."""

    @property
    def median(self) -> float:
        """Epochs to the threshold; a seed that did not pass counts as infinity."""
        return statistics.median(math.inf if seed.crossed is None else seed.crossed for seed in self.seeds)

    @property
    def failed(self) -> int:
        """The number of seeds that did not pass."""
        return sum(seed.crossed is None for seed in self.seeds)

    @property
    def mean_train_accuracy(self) -> float:
        return statistics.fmean(seed.mean_train_accuracy for seed in self.seeds)

    @property
    def diverged(self) -> int:
        """The number of seeds that diverged: no budget lets them pass."""
        return sum(seed.diverged for seed in self.seeds)

    @property
    def accuracy(self) -> float:
        return statistics.fmean(seed.accuracy for seed in self.seeds)

    def within(self, budget: int) -> Point:
        """The point as it would be with a smaller budget: a slower seed fails."""
        cut = [replace(seed, crossed=None) if (seed.crossed or 0) >= budget else seed for seed in self.seeds]
        return replace(self, seeds=tuple(cut))

    def rank(self, score: str) -> tuple[float, ...]:
        """Smaller is better: fewer failures, a smaller median, fewer epochs, fewer diverged seeds, a higher final accuracy.

        Divergence counts before accuracy: NaN outputs name the first class, which is right more often than a network that
        memorises.
        """
        if score == "train-accuracy":
            return (-self.mean_train_accuracy,)
        passed = [seed.crossed for seed in self.seeds if seed.crossed is not None]
        mean = statistics.fmean(passed) if passed else math.inf
        return self.failed, self.median, mean, self.diverged, -self.accuracy

    def to_json(self) -> dict[str, Any]:
        median = None if math.isinf(self.median) else self.median
        scores = {"median": median, "accuracy": self.accuracy, "mean_train_accuracy": self.mean_train_accuracy}
        position = {"position": list(self.position)}
        settings = {"lr": self.lr, "decay": self.decay, "third": self.third, "budget": self.budget}
        return {**position, **settings, **scores, "seeds": [seed.to_json() for seed in self.seeds]}


class Known:
    """The results that a file's entry has, by run ids. They are not trained again, even if their runs are not here."""

    def __init__(self, entry: Mapping[str, Any] | None = None) -> None:
        entry = entry or {}
        self._points = {point_ids(point): point for point in entry.get("points", ())}
        self._fresh = {_ids(seeds): seeds for seeds in entry.get("fresh", {}).values()}
        self.seconds: Mapping[str, dict[str, Any]] = entry.get("seconds", {})
        """Of the fresh seeds, with the hardware, by experiment."""

    def point(self, ids: Sequence[str], budget: int, most: int) -> tuple[int, tuple[SeedResult, ...]] | None:
        """The budget and the results of the runs with these ids, or None where they do not answer the question.

        They do if all seeds passed within `budget`, or if their own budget is between `budget` and `most`.
        """
        found = self._points.get(tuple(ids))
        if found is None:
            return None
        passed = all(seed["crossed"] is not None and seed["crossed"] < budget for seed in found["seeds"])
        if not passed and not budget <= found["budget"] <= most:
            return None
        return budget if passed else found["budget"], _seed_results(found["seeds"])

    def fresh(self, ids: Sequence[str]) -> tuple[SeedResult, ...] | None:
        """The results of the fresh seeds, if they are of the runs with these ids."""
        found = self._fresh.get(tuple(ids))
        return None if found is None else _seed_results(found)


def point_ids(point: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of a stored point's runs. They identify the point in every version of a plan."""
    return _ids(point["seeds"])


def _ids(seeds: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(seed["id"] for seed in seeds)


def _seed_results(seeds: Iterable[Mapping[str, Any]]) -> tuple[SeedResult, ...]:
    return tuple(SeedResult(**seed) for seed in seeds)
