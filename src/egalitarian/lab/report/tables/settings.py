"""Table 1: the settings of the tasks, as the experiments have them and as the paper prints them."""

from __future__ import annotations

from collections.abc import Mapping

from egalitarian.lab.analysis import NOTHING, Gathered, Value
from egalitarian.lab.config import Contents, Experiment, Optim, Printed, TablePlan, everything
from egalitarian.lab.report.render import Block, Table

COLUMNS = {
    "bits": "input bits",
    "fraction": "data ratio",
    "points": "training points",
    "width": "width",
    "loss": "loss",
    "lr": "lr",
    "weight_decay": "weight decay",
    "batch": "batch",
}
"""From the names of settings in CSV files to those of columns."""


def settings_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """First the experiments of the paper's table, then its others."""
    experiments = gathered.named_in(plan.experiments)
    printed = {experiment.name: plan.printed.get(experiment.name) for experiment in experiments}
    listed = [experiment for experiment in experiments if printed[experiment.name]]
    others = [experiment for experiment in experiments if not printed[experiment.name]]
    groups = (("in the paper's table", listed), ("not in the paper's table", others))
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("task", *COLUMNS.values()),
        blocks=tuple(
            Block(heading, tuple(_cells(experiment, printed[experiment.name]) for experiment in own))
            for heading, own in groups
            if own
        ),
        notes=(
            "≠: the paper prints another value, which follows. What it does not print has no mark",
            "The loss has no mark either. For parity, the paper's text has the hinge loss (docs/errata.md)",
            "Learning rate and weight decay are those of the first method, the paper's baseline. The next table has the "
            "others",
        ),
        records=tuple(_record(experiment, printed[experiment.name]) for experiment in experiments),
    )


def task_optim(experiment: Experiment) -> Optim:
    """The optimizer of the first method, which is the paper's baseline."""
    return next(iter(experiment.methods.values())).optim


def _settings(experiment: Experiment) -> dict[str, Value]:
    task, model = everything(experiment.task), everything(experiment.model)
    widths = model.get("widths") or [model.get("width")]
    optim = task_optim(experiment)
    return {
        "bits": task.get("bits"),
        "fraction": task.get("train_fraction"),
        "points": getattr(experiment.task, "train_size", None),
        "width": widths[0],
        "loss": experiment.training.loss,
        "lr": optim.lr,
        "weight_decay": optim.weight_decay,
        "batch": experiment.training.batch,
    }


def _theirs(printed: Printed | None) -> Mapping[str, Value]:
    return {} if printed is None else everything(printed)


def _cells(experiment: Experiment, printed: Printed | None) -> tuple[str, ...]:
    theirs = _theirs(printed)
    return (experiment.title, *(_cell(ours, theirs.get(key)) for key, ours in _settings(experiment).items()))


def _cell(ours: Value, paper: Value) -> str:
    if paper is None or paper == ours:
        return _text(ours)
    return f"{_text(ours)} ≠ {_text(paper)}"


def _text(value: Value) -> str:
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _record(experiment: Experiment, printed: Printed | None) -> dict[str, Value]:
    theirs = _theirs(printed)
    ours = _settings(experiment)
    return {"task": experiment.name, **ours, **{f"paper_{key}": theirs.get(key) for key in ours}}
