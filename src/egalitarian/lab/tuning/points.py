"""Points of a grid: their settings, runs and results; and the search, a window that follows the best point."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from egalitarian.lab.config import DEVICES, Experiment, Method, Run, SpecError, load
from egalitarian.lab.runs import Outcome
from egalitarian.lab.tuning.plan import QUICK_EPOCHS, Axis, Family

Position = tuple[int, int | None]
"""Powers of the learning rate's and of the decay's factor, from the centre; None is no decay at all."""
NO_SPECTRA = {"measure.spectra": "snapshots"}
"""Nothing reads the spectra of a point, and on a GPU they take most of an epoch's time."""


OLD = "version 1"


def polar_text(run: Run) -> str:
    """The tiers of a run's polar factors, with the version of an older run; empty without a polar factor."""
    tiers = ", ".join(dict.fromkeys(run.method.tiers))
    return f"{tiers} ({OLD})" if run.old else tiers


def grid_value(centre: float, factor: float, power: int | None) -> float:
    """The value of a setting at a position of its axis, to three digits; 0 for None."""
    if power is None:
        return 0.0
    return centre if power == 0 else float(f"{centre * factor**power:.3g}")


@dataclass(frozen=True)
class Grid:
    """The experiments and runs at all positions of one method's grid."""

    family: Family
    method: str
    changes: Sequence[str] = ()
    """What a user changed for all methods, as `--set` takes it."""
    quick: bool = False

    def settings(self, position: Position) -> tuple[float, float]:
        """Learning rate and decay."""
        tuned, family = self.family.methods[self.method], self.family
        lr = grid_value(tuned.lr.centre, family.lr_factor, position[0])
        return lr, grid_value(tuned.decay.centre, family.decay_factor, position[1])

    def values(self, lr: float, decay: float) -> dict[str, float]:
        """Both settings, and those that keep their ratio to them, by dotted key."""
        tuned = self.family.methods[self.method]
        pairs = [pair for axis, number in ((tuned.lr, lr), (tuned.decay, decay)) for pair in self._scaled(axis, number)]
        return {f"methods.{self.method}.{key}": value for key, value in pairs}

    def experiment(self, lr: float, decay: float, *, validation: bool) -> Experiment:
        """The family's experiment with these settings; with `validation`, a share of the test points is held out."""
        held_out = {"training.validation": self.family.validation} if validation and self.family.validation else {}
        return self._load({**NO_SPECTRA, **held_out, **self.values(lr, decay)})

    def tuning_runs(self, lr: float, decay: float, device: str) -> list[Run]:
        """On a device of this type, `cpu` or `cuda`."""
        experiment = self.experiment(lr, decay, validation=True)
        return [Run(experiment, self.method, seed, device) for seed in self.family.tuning_seeds]

    def fresh_runs(self, lr: float, decay: float, device: str) -> list[Run]:
        experiment = self.experiment(lr, decay, validation=False)
        return [Run(experiment, self.method, seed, device) for seed in self.family.fresh_seeds]

    def stored_runs(self, lr: float, decay: float) -> dict[str, list[Run]]:
        """The tuning runs that a file may have of a point: by type of device, and those of version 1."""
        runs = {device: self.tuning_runs(lr, decay, device) for device in DEVICES}
        old = [run.before or run for run in runs[DEVICES[0]]]
        return {**runs, OLD: old}

    def tiers(self, device: str) -> str:
        """The tiers of the method's polar factors on a device of this type; empty without a polar factor."""
        return polar_text(self.tuning_runs(*self.settings((0, 0)), device)[0])

    @cached_property
    def untuned(self) -> Method:
        """The method with the experiment's own settings."""
        return self._load({}).method(self.method)

    def _load(self, values: Mapping[str, Any]) -> Experiment:
        quick = {"epochs": QUICK_EPOCHS} if self.quick else {}
        family = self.family
        return load(family.experiment, self.changes, added=family.added, values={**quick, **values})

    def _scaled(self, axis: Axis, number: float) -> Iterator[tuple[str, float]]:
        yield axis.key, number
        for key in axis.scales:
            untuned: Any = self.untuned
            for part in key.split("."):
                untuned = getattr(untuned, part, None)
            if not isinstance(untuned, float):
                raise SpecError(f"scales must name numbers that the method has, got {key!r}; for example optim.lr")
            yield key, float(f"{untuned * number / axis.centre:.3g}")


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
    """One learning rate and one decay, with the results of the tuning seeds."""

    position: Position
    lr: float
    decay: float
    budget: int
    seeds: tuple[SeedResult, ...]

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
    def accuracy(self) -> float:
        return statistics.fmean(seed.accuracy for seed in self.seeds)

    def rank(self, score: str) -> tuple[float, ...]:
        """Smaller is better: fewer failures, then a smaller median, then fewer epochs, then a higher final accuracy."""
        if score == "train-accuracy":
            return (-self.mean_train_accuracy,)
        passed = [seed.crossed for seed in self.seeds if seed.crossed is not None]
        return self.failed, self.median, statistics.fmean(passed) if passed else math.inf, -self.accuracy

    def to_json(self) -> dict[str, Any]:
        median = None if math.isinf(self.median) else self.median
        scores = {"median": median, "accuracy": self.accuracy, "mean_train_accuracy": self.mean_train_accuracy}
        position = {"place": list(self.position)}  # the key in the files of all versions
        settings = {"lr": self.lr, "decay": self.decay, "budget": self.budget}
        return {**position, **settings, **scores, "seeds": [seed.to_json() for seed in self.seeds]}


class Known:
    """The results that a file's entry has, by run ids. They are not trained again, even if their runs are not here."""

    def __init__(self, entry: Mapping[str, Any] | None = None) -> None:
        entry = entry or {}
        self._points = {point_ids(point): point for part in ("points", "further") for point in entry.get(part, ())}
        self._fresh: Sequence[Mapping[str, Any]] = entry.get("fresh", ())

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
        return _seed_results(self._fresh) if self._fresh and _ids(self._fresh) == tuple(ids) else None


def point_ids(point: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of a stored point's runs. They identify the point in every version of a plan."""
    return _ids(point["seeds"])


def _ids(seeds: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(seed["id"] for seed in seeds)


def _seed_results(seeds: Iterable[Mapping[str, Any]]) -> tuple[SeedResult, ...]:
    return tuple(SeedResult(**seed) for seed in seeds)


@dataclass(frozen=True)
class Window:
    """`size` learning rates times `size` decays; with `no_decay`, also every learning rate without decay."""

    size: int
    no_decay: bool = False
    middle: tuple[int, int] = (0, 0)

    def positions(self) -> list[Position]:
        """From the middle outwards. The most promising come first, so that they set the cut-off of the others."""
        reach = range(-(self.size // 2), self.size // 2 + 1)
        offsets = sorted(((x, y) for x in reach for y in reach), key=_distance)
        lr, decay = self.middle
        found: list[Position] = [(lr + x, decay + y) for x, y in offsets]
        without = sorted(reach, key=abs) if self.no_decay else []
        return found + [(lr + x, None) for x in without]

    @property
    def corners(self) -> tuple[Position, Position]:
        """The position with both settings smallest, and the one with both largest."""
        (lr, decay), half = self.middle, self.size // 2
        return (lr - half, decay - half), (lr + half, decay + half)

    def outward(self, position: Position) -> tuple[int, int]:
        """On each axis, the direction (-1 or 1) of the edge that the position is on; 0 if it is inside.

        No decay is not an edge, since nothing lies beyond it. The smallest positive decay is one.
        """
        lr, decay = position
        return self._side(lr - self.middle[0]), 0 if decay is None else self._side(decay - self.middle[1])

    def moved(self, by: tuple[int, int]) -> Window:
        return replace(self, middle=(self.middle[0] + by[0], self.middle[1] + by[1]))

    def _side(self, offset: int) -> int:
        half = self.size // 2
        return (offset >= half) - (offset <= -half)


def _distance(offset: tuple[int, int]) -> tuple[int, int, int, int]:
    """From the middle; ties go to the smaller setting."""
    x, y = offset
    return max(abs(x), abs(y)), abs(x) + abs(y), x, y


@dataclass
class Search:
    """Proposes positions one after another: `for position, budget in search: search.add(train(position, budget))`.

    A proposal depends on the points that were added before it.
    """

    family: Family
    points: dict[Position, Point] = field(default_factory=dict)
    """Every point so far, in the order of the proposals."""
    windows: list[Window] = field(default_factory=list)
    """Every position of the window, the last one now."""
    done: bool = False

    @property
    def best(self) -> Point | None:
        return min(self.points.values(), key=lambda point: point.rank(self.family.score), default=None)

    @property
    def inside(self) -> bool:
        """Whether all neighbours of the best point were tried."""
        return self.done and self.best is not None and self.windows[-1].outward(self.best.position) == (0, 0)

    @property
    def moves(self) -> int:
        return max(0, len(self.windows) - 1)

    @property
    def budget(self) -> int:
        """The epochs of the next point: at most a multiple of those of the best point.

        A best point with a failed seed sets no cut-off: a slower point that never fails would win.
        """
        best = self.best
        if best is None or self.family.score != "epochs" or best.failed:
            return self.family.budget
        return min(self.family.budget, math.ceil(self.family.cut * (best.median + 1)))

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        """The next position and its budget. The point must be added before the next one is asked for.

        First come all positions of the window. Then the window moves one step towards a best point on its edge, and so on.
        """
        self.windows = [Window(self.family.size, self.family.no_decay)]
        while True:
            for position in self.windows[-1].positions():
                if position not in self.points:
                    yield position, self.budget
                if position not in self.points:  # it was cut short
                    yield position, self.family.budget
            assert self.best is not None
            outward = self.windows[-1].outward(self.best.position)
            if outward == (0, 0) or self.moves == self.family.moves:
                break
            self.windows.append(self.windows[-1].moved(outward))
        self.done = True

    def add(self, point: Point) -> bool:
        """Adds a proposed point; returns False for one that was cut short, which is proposed again with the whole budget.

        Such a point has failed, but its median is as small as the best one's. Without a second chance the order of the
        proposals would decide, since the best point may never have been under this cut-off.
        """
        best = self.best
        if best is not None and point.budget < self.family.budget and point.failed and point.median <= best.median:
            return False
        self.points[point.position] = point
        return True
