"""The tuning plan: frozen settings from a TOML file. Families of experiments, their methods, the rules of the search."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from egalitarian.lab.config import OLD_METHODS, Settings, SpecError, merge, nearest, read, refuse_unknown, setting

FAIR = "paper/_tuning.toml"
"""The fair comparison's plan."""
PLANS = {"spectrum": "beyond/_spectrum.toml"}
"""The lab's other plans, by the name that stands for a file."""
MOST = 99
"""The largest number of values, basins or points in one part of a search."""
QUICK_EPOCHS = 20
LARGEST_LOG = 700.0
"""The largest natural logarithm of a setting: beyond it there are no floating-point numbers."""
SUFFIXES = ("-quick", "-changed")
"""Ends of the names of files that do not count as the plan's results."""
NAMED_TARGETS = ("matrices", "hidden")
"""What `targets` may say in a plan's method instead of names: lists that each family has."""


@dataclass(frozen=True, kw_only=True)
class Axis(Settings):
    """A setting that is searched. The coarse grid has its first value, then each times a factor."""

    key: str
    """As in `--set`, below the method: optim.lr."""
    first: float = setting(above=0)
    """The value next to none at all: the smallest of the coarse grid, or the largest with a factor below 1."""
    factor: float | None = setting(None, above=0)
    """Of neighbouring values on the coarse grid; None is the family's."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Other settings of the method, as multiples of this one."""
    none: Literal["zero", "absent"] = "zero"
    """What no decay means: a value of 0, or a setting that is left out."""


@dataclass(frozen=True, kw_only=True)
class Third(Settings):
    """One setting of a method's third knob, tried at its best learning rate and decay."""

    title: str
    change: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method, by dotted key."""
    lr: float = setting(1.0, above=0)
    """Multiple of the best learning rate."""
    decay: float = setting(1.0, above=0)
    """Multiple of the best decay."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Multiples of settings that keep their ratio to one of the two, by dotted key."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Settings):
    """A method that is tuned."""

    title: str
    lr: Axis
    decay: Axis
    third: tuple[Third, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The method as in an experiment's file, where it is not the experiment's. `targets` may name a list of the family."""


@dataclass(frozen=True, kw_only=True)
class Family(Settings):
    """An experiment, its tuned methods, and the rules that all of them share."""

    name: str
    experiment: str
    """Its name, or the path of a TOML file."""
    also: tuple[str, ...] = ()
    """Experiments that take this one's points: only their fresh seeds are trained."""
    stock: tuple[str, ...]
    """The methods whose best is the baseline of all the others."""
    forms: tuple[str, ...] = ()
    """Forms of one method, of which one is `ours`: it must be named before any fresh seed is trained."""
    ours: str = ""
    score: Literal["epochs", "train-accuracy"] = "epochs"
    """Epochs until validation accuracy exceeds the threshold, or the mean training accuracy over the epochs."""
    budget: int = setting(least=1)
    """Passes over the data of a seed that does not pass the threshold."""
    readings: int = setting(1, least=1)
    """Readings of accuracy in a pass, while searching: the epochs of these runs."""
    fresh_readings: int = setting(1, least=1)
    """The same for the fresh seeds."""
    lrs: int = setting(least=2, most=MOST)
    """Learning rates of the coarse grid."""
    decays: int = setting(least=1, most=MOST)
    """Decays of the coarse grid, none apart."""
    lr_factor: float = setting(above=1)
    decay_factor: float = setting(above=1)
    basins: int = setting(least=1, most=MOST)
    """Best points of the coarse grid that are refined, no two of them neighbours."""
    around: int = setting(least=0, most=MOST)
    """Points around each of them."""
    thirds: int = setting(least=0, most=MOST)
    """Points for the third knob; a method with fewer settings of it has the rest around its best point."""
    further: int = setting(least=0, most=MOST)
    """Points beyond an edge, at most, when the best point is on it."""
    patience: float = setting(least=1)
    """A point gets at most so many times the epochs of the best point so far."""
    validation: float = setting(least=0, below=1)
    """The share of the test points that is held out for the choice."""
    tuning_seeds: tuple[int, ...] = setting(least=0)
    fresh_seeds: tuple[int, ...] = setting(least=0)
    matrices: tuple[str, ...] = ()
    """All matrices of the model, as targets."""
    hidden: tuple[str, ...] = ()
    """Those of them that are hidden layers'."""
    methods: Mapping[str, Tuned] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name) or self.name == "all" or self.name.endswith(SUFFIXES):
            rule = f"letters, digits, - and _, not 'all' and not ending in {' or '.join(SUFFIXES)}"
            raise SpecError(f"a family's name must be {rule}, got {self.name!r}; it names its file")
        if not self.stock:
            raise SpecError('stock must name at least one method, got none; for example stock = ["sgd"]')
        self._check_names("stock", self.stock, self.methods)
        self._check_names("forms", self.forms, self.methods)
        self._check_names("ours", (self.ours,) if self.ours else (), self.forms)
        if not self.decays % 2:
            raise SpecError(f"decays must be odd, got {self.decays}; each learning rate then has as many of them, or none")
        if self.score == "epochs" and not self.validation:
            raise SpecError("validation must be > 0 where epochs count, got 0; points are compared on it: for example 0.5")
        self._check_seeds()
        for name, tuned in self.methods.items():
            self._check_method(name, tuned)
        _ = self.added

    @property
    def experiments(self) -> dict[str, str]:
        """Names or paths of all whose fresh seeds are trained, by name; the one that is searched comes first."""
        return {Path(each).stem if each.endswith(".toml") else each: each for each in (self.experiment, *self.also)}

    @property
    def points(self) -> int:
        """Of each method, without those beyond an edge."""
        return self.lrs * (self.decays + 1) // 2 + self.basins * self.around + self.thirds

    @property
    def added(self) -> dict[str, dict[str, Any]]:
        """The methods that the experiment lacks, as they would stand in its file."""
        return {name: self._method(tuned) for name, tuned in self.methods.items() if tuned.settings}

    def _method(self, tuned: Tuned) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in NAMED_TARGETS}
        targets = tuned.settings.get("targets", "matrices")
        if isinstance(targets, str) and not lists.get(targets):
            raise SpecError(
                f"targets must name a list of family {self.name!r} that is not empty, got {targets!r}; "
                f"one of {', '.join(NAMED_TARGETS)}"
            )
        named = lists[targets] if isinstance(targets, str) else targets
        return {"title": tuned.title, "epochs": self.budget, **tuned.settings, "targets": named}

    def _check_names(self, what: str, names: tuple[str, ...], known: Mapping[str, Any] | tuple[str, ...]) -> None:
        for name in names:
            if name not in known:
                hint = nearest(name, known) or f"one of {', '.join(known)}"
                raise SpecError(f"{what} must name methods of the family, got {name!r}; {hint}")

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
        for axis, shared, values in ((tuned.lr, self.lr_factor, self.lrs), (tuned.decay, self.decay_factor, self.decays)):
            steps, factor = values + self.further + self.around, axis.factor or shared
            if factor == 1:
                raise SpecError(f"{name}: {axis.key}'s factor must not be 1, got 1; the grid would have one value")
            if abs(math.log(axis.first)) + steps * abs(math.log(factor)) > LARGEST_LOG:
                rule = f"{name}: {axis.key} must stay a number {steps} steps from its first value"
                raise SpecError(f"{rule}, got a factor of {factor:g}; choose a smaller one")
        for third in tuned.third:
            for key in third.scales:
                if key not in (*tuned.lr.scales, *tuned.decay.scales):
                    raise SpecError(f"{name}: third.scales must name a setting with a ratio, got {key!r}; use change")

    def only(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The methods of these names; all of them for no name, or for `all`."""
        if "all" in names:
            return tuple(self.methods)
        for name in names:
            if name not in self.methods:
                hint = nearest(name, self.methods, OLD_METHODS) or f"one of {', '.join(self.methods)}"
                raise SpecError(f"--method must be one that family {self.name!r} tunes, got {name!r}; {hint}")
        return names or tuple(self.methods)


def shrunk(family: Family, quick: bool = True) -> Family:
    """Quick: a search so small that it takes seconds and its numbers mean nothing."""
    if not quick:
        return family
    seeds = {"tuning_seeds": family.tuning_seeds[:1], "fresh_seeds": family.fresh_seeds[:2]}
    search = {"lrs": 2, "decays": 1, "basins": 1, "around": 1, "thirds": 1, "further": 0}
    return family.replace(**search, budget=min(QUICK_EPOCHS, family.budget), forms=(), ours="", **seeds)


def load_plan(path: Path | None = None) -> dict[str, Family]:
    """All families of a TOML file, or of a plan of the lab by its name; None is the fair comparison's.

    [all] holds what a family does not set itself, and [methods] the methods of every family.
    """
    where = "_tuning.toml" if path is None else str(path)
    table = _table(where, path)
    refuse_unknown(table, ("all", "methods", "families"), where)
    families = table.get("families")
    if not isinstance(families, Mapping) or not families:
        raise SpecError(f"{where}: families must hold at least one, got none; add [families.NAME]")
    try:
        shared = {**table.get("all", {}), "methods": {**table.get("methods", {})}}
        refuse_unknown(table.get("all", {}), [field.name for field in fields(Family) if field.name != "name"], "all")
        for name, own in families.items():
            if "name" in own:
                raise SpecError(
                    f"families.{name}: name must be absent, got {own['name']!r}; a family is named by its table"
                )
            if "ours" in own:
                raise SpecError(f"families.{name}: ours must be in [all], got {own['ours']!r}; it is one for all families")
        found = {
            name: read(Family, {**merge(shared, own), "name": name}, f"families.{name}") for name, own in families.items()
        }
        return {name: family if path is None else _relative(family, path.parent) for name, family in found.items()}
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except (TypeError, AttributeError):  # [all], [methods] or a family is a plain value
        raise SpecError(f"{where}: all, methods and every family must be tables, got other values; write [all]") from None


def _relative(family: Family, folder: Path) -> Family:
    """With experiments' files looked up in the plan's folder first, as `extends` looks in the experiment's."""

    def found(name: str) -> str:
        path = folder / name
        return str(path) if name.endswith(".toml") and path.is_file() else name

    return family.replace(experiment=found(family.experiment), also=tuple(map(found, family.also)))


def chosen(plan: Mapping[str, Family], name: str) -> list[Family]:
    """The family of this name; every family for `all`."""
    if name != "all" and name not in plan:
        hint = nearest(name, plan) or f"one of {', '.join(plan)}, or all"
        raise SpecError(f"FAMILY must be one of the plan's, got {name!r}; {hint}")
    return list(plan.values()) if name == "all" else [plan[name]]


def _table(where: str, path: Path | None) -> dict[str, Any]:
    try:
        if path is None or str(path) in PLANS:
            shipped = resources.files("egalitarian.lab") / (FAIR if path is None else PLANS[str(path)])
            return tomllib.loads(shipped.read_text(encoding="utf-8"))
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(
            f"{where} must be a TOML file, got one that cannot be read: {error}; correct or rename it, "
            f"or name a plan of the lab: {', '.join(PLANS)}"
        ) from None


class Forecast(NamedTuple):
    """What a family's search costs at most."""

    methods: int
    points: int
    """Of all methods."""
    most_points: int
    """With all points beyond edges."""
    epochs: int
    """Passes over the data, of all tuning seeds as one batch, if no point passes."""


def estimate(family: Family, methods: tuple[str, ...] = ()) -> Forecast:
    """Of these methods, or of all."""
    count = len(family.only(methods))
    most = count * (family.points + family.further)
    return Forecast(count, count * family.points, most, most * family.budget)
