"""The tuning plan: frozen settings from a TOML file. Families of experiments, their methods, the grid of each, its cost."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from egalitarian.lab.config import OLD_METHODS, Settings, SpecError, nearest, read, refuse_unknown, setting

SMALLEST_SIZE = 3
"""The smallest side of a window: below it no point is inside."""
LARGEST_SIZE = 99
QUICK_EPOCHS = 20
LARGEST_LOG = 700.0
"""The largest natural logarithm of a setting: beyond it there are no floating-point numbers."""
SUFFIXES = ("-quick", "-changed")
"""Ends of the names of files that do not count as the plan's results."""
START_SECONDS = 0.3
"""Before the first epoch of a run on a GPU: CUDA graphs are captured, the first checkpoint is written."""
FRESH_RATIO = 1.5
"""The time of an epoch of the fresh seeds over that of the tuning seeds: a GPU has room for a few more."""


@dataclass(frozen=True, kw_only=True)
class Axis(Settings):
    """One tuned setting. Its values on the grid are the centre times whole powers of the family's factor."""

    key: str
    """As in `--set`, below the method: optim.lr."""
    centre: float = setting(above=0)
    scales: tuple[str, ...] = ()
    """Other settings that keep their ratio to it."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Settings):
    """A method that is tuned."""

    title: str
    lr: Axis
    decay: Axis
    expected: int = setting(least=1)
    """A guess of the epochs that its best point needs; for the estimate of time only."""
    ms_per_epoch: float = setting(above=0)
    """Milliseconds of an epoch of all tuning seeds as one batch on a GPU; for the estimate of time only."""


@dataclass(frozen=True, kw_only=True)
class Family(Settings):
    """An experiment, its tuned methods, and the rules that all of them share."""

    name: str
    experiment: str
    """Its name, or the path of a TOML file."""
    plain: str
    """The method that is the baseline of all gains."""
    score: Literal["epochs", "train-accuracy"] = "epochs"
    """Epochs until validation accuracy exceeds the threshold, or the mean training accuracy over the epochs."""
    budget: int = setting(least=1)
    """Epochs of a tuning seed that does not pass."""
    size: int = setting(least=SMALLEST_SIZE, hint="a point must have neighbours on all sides to be inside")
    """The window's side: the number of learning rates, and of decays."""
    moves: int = setting(least=0)
    """How often the window may move."""
    lr_factor: float = setting(above=1)
    decay_factor: float = setting(above=1)
    no_decay: bool = False
    """Whether decay 0, which is no power of the factor, is tried with every learning rate, too."""
    cut: float = setting(least=1)
    """The cut-off: a point gets at most so many times the epochs of the best point so far."""
    validation: float = setting(least=0, below=1)
    """The share of the test points that is held out for the choice."""
    tuning_seeds: tuple[int, ...] = setting(least=0)
    fresh_seeds: tuple[int, ...] = setting(least=0)
    methods: Mapping[str, Tuned] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Methods that the experiment lacks, written as in its file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plain not in self.methods:
            raise SpecError(f"plain must be one of the methods, got {self.plain!r}; one of {', '.join(self.methods)}")
        if not self.size % 2:
            raise SpecError(f"size must be odd, got {self.size}; a grid needs a centre, as 3 or 5 have")
        if self.size > LARGEST_SIZE:
            raise SpecError(f"size must be <= {LARGEST_SIZE}, got {self.size}; choose a smaller one")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name) or self.name == "all" or self.name.endswith(SUFFIXES):
            rule = f"letters, digits, - and _, not 'all' and not ending in {' or '.join(SUFFIXES)}"
            raise SpecError(f"a family's name must be {rule}, got {self.name!r}; it names its file")
        if self.score == "epochs" and not self.validation:
            raise SpecError("validation must be > 0 where epochs count, got 0; points are compared on it: for example 0.5")
        self._check_seeds()
        for name, tuned in self.methods.items():
            self._check_method(name, tuned)

    def _check_seeds(self) -> None:
        for name, seeds in (("tuning_seeds", self.tuning_seeds), ("fresh_seeds", self.fresh_seeds)):
            if not seeds:
                raise SpecError(f"{name} must name at least one seed, got none; for example [0]")
            if len(set(seeds)) < len(seeds):
                raise SpecError(f"{name} must name each seed once, got {list(seeds)}; remove the repeated ones")
        if shared := set(self.tuning_seeds) & set(self.fresh_seeds):
            raise SpecError(f"fresh_seeds must be none of the tuning seeds, got {min(shared)} in both; choose others")

    def _check_method(self, name: str, tuned: Tuned) -> None:
        if "." in name:
            raise SpecError(
                f"a tuned method's name must have no dot, got {name!r}; rename it: a dot separates keys in --set"
            )
        if tuned.lr.key == tuned.decay.key:
            raise SpecError(f"{name}: lr and decay must be two settings, got {tuned.lr.key!r} for both; name another")
        steps = self.size // 2 + self.moves
        for axis, factor in ((tuned.lr, self.lr_factor), (tuned.decay, self.decay_factor)):
            if abs(math.log(axis.centre)) + steps * math.log(factor) > LARGEST_LOG:
                rule = f"{name}: {axis.key} must stay a number {steps} steps from its centre"
                raise SpecError(f"{rule}, got a factor of {factor:g}; choose a smaller one")

    def only(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The methods of these names; all of them for no name, or for `all`."""
        if "all" in names:
            return tuple(self.methods)
        for name in names:
            if name not in self.methods:
                hint = nearest(name, self.methods, OLD_METHODS) or f"one of {', '.join(self.methods)}"
                raise SpecError(f"--method must be one that family {self.name!r} tunes, got {name!r}; {hint}")
        return names or tuple(self.methods)


def shrunk(family: Family, size: int | None = None, quick: bool = False) -> Family:
    """The family with another window; quick: so small that it takes seconds and its numbers mean nothing."""
    family = family if size is None else family.replace(size=size)
    if not quick:
        return family
    seeds = {"tuning_seeds": family.tuning_seeds[:1], "fresh_seeds": family.fresh_seeds[:2]}
    return family.replace(size=SMALLEST_SIZE, moves=1, budget=min(QUICK_EPOCHS, family.budget), **seeds)


def load_plan(path: Path | None = None) -> dict[str, Family]:
    """All families of a file, by default of the lab's own; [all] holds what a family does not set itself."""
    where = "_tuning.toml" if path is None else str(path)
    table = _table(where, path)
    refuse_unknown(table, ("all", "families"), where)
    families = table.get("families")
    if not isinstance(families, Mapping) or not families:
        raise SpecError(f"{where}: families must hold at least one, got none; add [families.NAME]")
    shared = table.get("all", {})
    try:
        for name, own in families.items():
            if "name" in own:
                raise SpecError(
                    f"families.{name}: name must be absent, got {own['name']!r}; a family is named by its table"
                )
        found = {name: read(Family, {**shared, **own, "name": name}, f"families.{name}") for name, own in families.items()}
        return {name: family if path is None else _relative(family, path.parent) for name, family in found.items()}
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except TypeError:  # [all] or a family is a plain value
        raise SpecError(f"{where}: all and every family must be tables, got other values; write [all]") from None


def _relative(family: Family, folder: Path) -> Family:
    """With an experiment's file looked up in the plan's folder first, as `extends` looks in the experiment's."""
    path = folder / family.experiment
    return family.replace(experiment=str(path)) if family.experiment.endswith(".toml") and path.is_file() else family


def chosen(plan: Mapping[str, Family], name: str) -> list[Family]:
    """The family of this name; every family for `all`."""
    if name != "all" and name not in plan:
        hint = nearest(name, plan) or f"one of {', '.join(plan)}, or all"
        raise SpecError(f"FAMILY must be one of the plan's, got {name!r}; {hint}")
    return list(plan.values()) if name == "all" else [plan[name]]


def _table(where: str, path: Path | None) -> dict[str, Any]:
    shipped = resources.files("egalitarian.lab") / "paper" / "_tuning.toml"
    try:
        text = shipped.read_text(encoding="utf-8") if path is None else path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(
            f"{where} must be a TOML file, got one that cannot be read: {error}; correct or rename it"
        ) from None


class Forecast(NamedTuple):
    """The estimated cost of tuning one method on a GPU."""

    points: int
    """Without a move."""
    most_points: int
    """With all moves, each to a corner."""
    seconds: float
    """Without a move; every point takes as long as the cut-off allows."""
    most_seconds: float


def estimate(family: Family, tuned: Tuned) -> Forecast:
    """The cost from the time of an epoch and the epochs that the best point is expected to need."""
    column = 1 if family.no_decay else 0
    points = family.size * (family.size + column)
    most = points + family.moves * (2 * family.size - 1 + column)
    whole = family.score != "epochs"
    epochs = family.budget if whole else min(family.budget, family.cut * tuned.expected)
    each = START_SECONDS + epochs * tuned.ms_per_epoch / 1e3
    fresh = START_SECONDS + (family.budget if whole else 1.5 * tuned.expected) * FRESH_RATIO * tuned.ms_per_epoch / 1e3
    return Forecast(points, most, points * each + fresh, most * each + fresh)
