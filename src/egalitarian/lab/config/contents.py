"""The contents of a report: tables and figures of the paper from `paper/_tables.toml`, and those of users' experiments."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Literal, TypeVar

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import Settings, SpecError, read, setting
from egalitarian.lab.config.spec import Experiment

FigureKind = Literal["curves", "costs", "learning", "shuffles", "spectra", "fourier", "distances", "trajectories", "toy"]
OWN_FIGURES: dict[FigureKind, str] = {
    "costs": "what every seed needed, or reached",
    "curves": "accuracy",
    "spectra": "the hidden gradient's singular values",
    "fourier": "Fourier power by frequency, excluded and restricted loss",
    "distances": "distance from the start, and norm of the weights",
    "trajectories": "the weights' way through training",
}
"""The figures of an experiment that is in none of the paper's tables, with their titles; fourier if it is measured."""
P = TypeVar("P", "TablePlan", "FigurePlan")


@dataclass(frozen=True, kw_only=True)
class Gain(Settings):
    """One row of average gains: a baseline's epochs over a method's, averaged over tasks."""

    name: str
    title: str
    methods: tuple[str, ...]
    """On each task the best of them counts."""
    baseline: str = "sgd"
    leaves_out: tuple[str, ...] = ()
    """Experiments that the definition of the row excludes."""
    epochs: float | None = setting(None, above=0)
    """The paper's average gain in epochs; None: a row of ours."""
    seconds: float | None = setting(None, above=0)


@dataclass(frozen=True, kw_only=True)
class Printed(Settings):
    """The settings that the paper's table prints for one experiment; None: not printed."""

    bits: int | None = None
    fraction: float | None = None
    width: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class TablePlan(Settings):
    """One table: its kind, experiments and methods."""

    kind: Literal["settings", "methods", "epochs", "steps", "means", "finals", "gains", "early"]
    name: str
    """File name without suffix."""
    title: str
    number: str = ""
    """Number in the paper; empty if not in it."""
    experiments: tuple[str, ...]
    methods: tuple[str, ...] = ()
    """The paper's, in its order. The other methods of an experiment are listed below, as ours."""
    baseline: str = "sgd"
    """The method that gains are over."""
    fair: str = ""
    """A baseline of ours: the same optimizer with the weight decay of all other methods."""
    gains: tuple[Gain, ...] = ()
    printed: Mapping[str, Printed] = field(default_factory=dict)
    """By experiment."""

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}" if self.number else self.title

    @property
    def runs(self) -> bool:
        """Whether it has rows of runs of its own."""
        return self.kind in ("epochs", "steps", "means", "finals")


@dataclass(frozen=True, kw_only=True)
class FigurePlan(Settings):
    """One figure: its kind, methods, and experiments, with a panel or a column of panels for each."""

    kind: FigureKind
    """A figure of kind toy is drawn by `egalitarian toy`, and only linked."""
    name: str
    title: str
    number: str = ""
    experiments: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}" if self.number else self.title


@dataclass(frozen=True, kw_only=True)
class Paper(Settings):
    """Facts about all numbers of the paper."""

    hardware: str
    """On which its times were measured."""
    seeds: int = setting(least=2)
    """Verdicts read seeds 0 to `seeds` - 1 of every method, and no others."""


@dataclass(frozen=True, kw_only=True)
class Contents(Settings):
    """The tables and figures of a report."""

    paper: Paper
    tables: tuple[TablePlan, ...]
    figures: tuple[FigurePlan, ...]

    def of(self, experiments: Collection[str]) -> Contents:
        """The contents for these experiments alone. Averages over tasks need all tasks, and the toy figures everything."""
        tables = [table for table in self.tables if table.kind != "gains" or set(table.experiments) <= set(experiments)]
        figures = _narrowed(self.figures, experiments)
        if {name for table in self.tables for name in table.experiments} <= set(experiments):
            figures = self.figures  # with those of no experiment
        return self.replace(tables=_narrowed(tuple(tables), experiments), figures=figures)

    def has(self, experiment: str, *, numbered: bool = False) -> bool:
        """Whether a table has the experiment; with `numbered`, one of the paper's tables."""
        return any(experiment in table.experiments for table in self.tables if table.number or not numbered)

    def without_empty(self, run: Collection[str]) -> Contents:
        """Without experiments of ours that have no runs. The paper's tables and figures stay, with "not run" in them."""
        tables = [
            kept for plan in self.tables for kept in ((plan,) if plan.number or not plan.runs else _narrowed((plan,), run))
        ]
        figures = [kept for plan in self.figures for kept in ((plan,) if plan.number else _narrowed((plan,), run))]
        return self.replace(tables=tuple(tables), figures=tuple(figures))

    def with_own(self, experiments: Collection[Experiment]) -> Contents:
        """With a table and figures for each experiment that has none yet."""
        own = [experiment for experiment in experiments if not self.has(experiment.name)]
        tables = [_own_table(experiment) for experiment in own]
        figures = [figure for experiment in own for figure in _own_figures(experiment)]
        return self.replace(tables=(*self.tables, *tables), figures=(*self.figures, *figures))


def _narrowed(plans: tuple[P, ...], experiments: Collection[str]) -> tuple[P, ...]:
    kept = [(plan, tuple(name for name in plan.experiments if name in experiments)) for plan in plans]
    return tuple(dataclasses.replace(plan, experiments=names) for plan, names in kept if names)


def load_contents() -> Contents:
    """The paper's tables and figures."""
    text = (resources.files("egalitarian.lab") / "paper" / "_tables.toml").read_text(encoding="utf-8")
    return read(Contents, tomllib.loads(text))


def of_table(number: str) -> tuple[str, ...]:
    """The experiments of a table of the paper, by its number, such as 2."""
    tables = {plan.number.removeprefix("Table "): plan.experiments for plan in load_contents().tables if plan.number}
    if number not in tables:
        raise SpecError(f"--table must be one of {', '.join(sorted(tables))}, got {number!r}; choose one of these")
    return tables[number]


@cache
def figures_of(experiment: str, method: str) -> frozenset[FigureKind]:
    """The kinds of the report's figures that show a method of an experiment; old names are known, too."""
    contents, name = load_contents(), renamed.METHODS.get(method, method)
    if not contents.has(current := renamed.current_experiment(experiment)):
        return frozenset(OWN_FIGURES)
    return frozenset(plan.kind for plan in contents.figures if current in plan.experiments and name in plan.methods)


def _own_table(experiment: Experiment) -> TablePlan:
    """A table of epochs; of accuracies if there is no threshold: in training if labels change, else at the end."""
    what = {
        "epochs": "epochs and time to the threshold",
        "means": "mean training accuracy",
        "finals": "final test accuracy",
    }
    kind: Literal["epochs", "means", "finals"] = "means" if changing(experiment) else "finals"
    if experiment.measure.has_threshold:
        kind = "epochs"
    return TablePlan(
        kind=kind,
        name=experiment.name,
        title=f"{experiment.title}: {what[kind]}",
        experiments=(experiment.name,),
        methods=tuple(experiment.claims),
    )


def changing(experiment: Experiment) -> list[int]:
    """The epochs, from 0, before which a task's training labels change."""
    era = getattr(experiment.task, "era", lambda epoch: 0)
    epochs = max(method.epochs for method in experiment.methods.values())
    return [epoch for epoch in range(1, epochs) if era(epoch) != era(epoch - 1)]


def _own_figures(experiment: Experiment) -> list[FigurePlan]:
    methods = tuple(experiment.methods)
    return [
        FigurePlan(
            kind=kind,
            name=f"{experiment.name}-{kind}",
            title=f"{experiment.title}: {what}",
            experiments=(experiment.name,),
            methods=methods,
        )
        for kind, what in OWN_FIGURES.items()
        if kind != "fourier" or experiment.measure.fourier != "off"
    ]
