"""What is tuned, as frozen settings from a TOML file: families of experiments, their methods, and the grid of each."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import Settings, SpecError, nearest, read, refuse_unknown, setting

SMALLEST = 3
"""A window's side, below which no point is inside."""

LARGEST = 99

QUICK_EPOCHS = 20

FAR = 700.0
"""From 1, in natural logarithms: there are no numbers beyond."""

APART = ("-quick", "-changed")
"""How the files of tables end that are not the real ones."""


@dataclass(frozen=True, kw_only=True)
class Axis(Settings):
    """One setting that is tuned, on a lattice: its centre times whole powers of the family's factor."""

    key: str
    """As `--set` has it, below the method: optim.lr."""
    centre: float = setting(above=0)
    scales: tuple[str, ...] = ()
    """Other settings that grow and shrink along with it."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Settings):
    """A method that takes part."""

    title: str
    lr: Axis
    decay: Axis
    expected: int = setting(least=1)
    """Epochs its best point will need, a guess: for the estimate of time alone."""
    ms_per_epoch: float = setting(above=0)
    """Of the tuning seeds as one on a GPU, for the estimate alone."""


@dataclass(frozen=True, kw_only=True)
class Family(Settings):
    """An experiment, the methods that take part, and the rules that are the same for all of them."""

    name: str
    experiment: str
    """By its name, or the path of a TOML file."""
    plain: str
    """The method that the others' gains are over."""
    score: Literal["epochs", "train-accuracy"] = "epochs"
    """Epochs until validation accuracy is past the threshold; or the mean training accuracy over the epochs."""
    budget: int = setting(least=1)
    """Epochs of a tuning seed that does not pass."""
    size: int = setting(least=SMALLEST, hint="a point must have neighbours on all sides to be inside")
    """The window's side: so many learning rates, so many decays."""
    moves: int = setting(least=0)
    """How often the window may move."""
    lr_factor: float = setting(above=1)
    decay_factor: float = setting(above=1)
    no_decay: bool = False
    """Whether decay 0, which no lattice of powers has, is tried as well, with every learning rate."""
    cut: float = setting(least=1)
    """A point gets at most so many times the epochs of the best before it."""
    validation: float = setting(least=0, below=1)
    """The share of the test points that is set apart for the choice."""
    tuning_seeds: tuple[int, ...] = setting(least=0)
    fresh_seeds: tuple[int, ...] = setting(least=0)
    methods: Mapping[str, Tuned] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Methods that the experiment does not have, as they would stand there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plain not in self.methods:
            raise SpecError(f"plain must be one of the methods, got {self.plain!r}; one of {', '.join(self.methods)}")
        if not self.size % 2:
            raise SpecError(f"size must be odd, got {self.size}; a grid needs a centre, as 3 or 5 have")
        if self.size > LARGEST:
            raise SpecError(f"size must be <= {LARGEST}, got {self.size}; choose a smaller one")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name) or self.name == "all" or self.name.endswith(APART):
            rule = f"letters, digits, - and _, not 'all' and not ending in {' or '.join(APART)}"
            raise SpecError(f"a family's name must be {rule}, got {self.name!r}; it names its file")
        if self.score == "epochs" and not self.validation:
            raise SpecError("validation must be > 0 where epochs count, got 0; points are compared on it: for example 0.5")
        self._check_seeds()
        for name, tuned in self.methods.items():
            self._check_method(name, tuned)

    def _check_seeds(self) -> None:
        for what, seeds in (("tuning_seeds", self.tuning_seeds), ("fresh_seeds", self.fresh_seeds)):
            if not seeds:
                raise SpecError(f"{what} must name at least one seed, got none; for example [0]")
            if len(set(seeds)) < len(seeds):
                raise SpecError(f"{what} must name each seed once, got {list(seeds)}; remove the repeated ones")
        if shared := set(self.tuning_seeds) & set(self.fresh_seeds):
            raise SpecError(f"fresh_seeds must be none of the tuning seeds, got {min(shared)} in both; choose others")

    def _check_method(self, name: str, tuned: Tuned) -> None:
        if "." in name:
            raise SpecError(
                f"a tuned method's name must have no dot, got {name!r}; rename it: a dot separates keys in --set"
            )
        if tuned.lr.key == tuned.decay.key:
            raise SpecError(f"{name}: lr and decay must be two settings, got {tuned.lr.key!r} for both; name another")
        far = self.size // 2 + self.moves
        for axis, factor in ((tuned.lr, self.lr_factor), (tuned.decay, self.decay_factor)):
            if abs(math.log(axis.centre)) + far * math.log(factor) > FAR:
                what = f"{name}: {axis.key} must stay a number {far} steps from its centre"
                raise SpecError(f"{what}, got a factor of {factor:g}; choose a smaller one")

    def only(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The methods of these names; none, or `all`, is all."""
        if "all" in names:
            return tuple(self.methods)
        for name in names:
            if name not in self.methods:
                hint = nearest(name, self.methods, renamed.METHODS) or f"one of {', '.join(self.methods)}"
                raise SpecError(f"--method must be one that family {self.name!r} tunes, got {name!r}; {hint}")
        return names or tuple(self.methods)


def shrunk(family: Family, size: int | None = None, quick: bool = False) -> Family:
    """With another window, or so small that it takes seconds and says nothing."""
    family = family if size is None else family.replace(size=size)
    if not quick:
        return family
    seeds = {"tuning_seeds": family.tuning_seeds[:1], "fresh_seeds": family.fresh_seeds[:2]}
    return family.replace(size=SMALLEST, moves=1, budget=min(QUICK_EPOCHS, family.budget), **seeds)


def load_plan(path: Path | None = None) -> dict[str, Family]:
    """All families of a file, or of the lab's own; what stands under [all] holds for all that do not say otherwise."""
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
        return {name: family if path is None else _beside(family, path.parent) for name, family in found.items()}
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except TypeError:  # [all] or a family that is a plain value
        raise SpecError(f"{where}: all and every family must be tables, got other values; write [all]") from None


def _beside(family: Family, folder: Path) -> Family:
    """With an experiment's file found beside the plan, as `extends` finds one beside an experiment."""
    beside = folder / family.experiment
    return family.replace(experiment=str(beside)) if family.experiment.endswith(".toml") and beside.is_file() else family


def chosen(plan: Mapping[str, Family], name: str) -> list[Family]:
    """The family of this name; `all` is all."""
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
