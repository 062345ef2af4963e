"""Table 1: what the tasks are made of, as the experiments have it, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping

from egalitarian.lab.analysis.counts import NOTHING
from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.config.contents import Printed, TablePlan
from egalitarian.lab.config.schema import everything
from egalitarian.lab.config.spec import Experiment, Optim
from egalitarian.lab.report.render import Block, Table, Value

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
"""Settings by their names in records, and as the table has them."""


def settings_table(plan: TablePlan, gathered: Gathered) -> Table:
    """Those that the paper's table lists first, then those of its other experiments."""
    experiments = gathered.named_in(plan.experiments)
    printed = {experiment.name: plan.printed.get(experiment.name) for experiment in experiments}
    listed = [experiment for experiment in experiments if printed[experiment.name]]
    others = [experiment for experiment in experiments if not printed[experiment.name]]
    made = (("in the paper's table", listed), ("not in the paper's table", others))
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("task", *COLUMNS.values()),
        blocks=tuple(
            Block(heading, tuple(_cells(experiment, printed[experiment.name]) for experiment in own))
            for heading, own in made
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
    """The first method's: that of the paper's baseline."""
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
        return _said(ours)
    return f"{_said(ours)} ≠ {_said(paper)}"


def _said(value: Value) -> str:
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _record(experiment: Experiment, printed: Printed | None) -> dict[str, Value]:
    theirs = _theirs(printed)
    ours = _settings(experiment)
    return {"task": experiment.name, **ours, **{f"paper_{key}": theirs.get(key) for key in ours}}
