"""Tables over all tasks: settings of tasks (Table 1) and methods, average gains (Table 5), what early spectra predict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from egalitarian.lab.analysis import (
    CHANCE,
    FEWEST_POINTS,
    NOTHING,
    AverageGain,
    Cell,
    Gathered,
    Value,
    average_gain,
    early_rows,
    times,
)
from egalitarian.lab.config import (
    Contents,
    Experiment,
    Method,
    Optim,
    Printed,
    TablePlan,
    TransformSettings,
    everything,
    meaning,
)
from egalitarian.lab.report.render import Block, Table

SETTINGS = {
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
EARLY_MEASURES = {"condition": "condition number", "effective_rank": "effective rank"}
EARLY_NOTES = (
    "Spearman's rank correlation with the epoch at which test accuracy passes the threshold. Only runs that passed later "
    "than the epoch of the spectrum count.",
    "Each entry is the median over groups (smallest to largest), and how many groups are beyond chance "
    f"(p < {CHANCE:g}, each by itself).",
    "A group is the seeds of one method on one task, or the methods of one task, each by the medians of its seeds. It has "
    f"{FEWEST_POINTS} members or more.",
    "Methods differ in much else, so the last column says nothing about a cause.",
)


def settings_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """Table 1: first the experiments of the paper's table, then its others."""
    experiments = gathered.named_in(plan.experiments)
    printed = {experiment.name: plan.printed.get(experiment.name) for experiment in experiments}
    listed = [experiment for experiment in experiments if printed[experiment.name]]
    others = [experiment for experiment in experiments if not printed[experiment.name]]
    groups = (("in the paper's table", listed), ("not in the paper's table", others))
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=("task", *SETTINGS.values()),
        blocks=tuple(
            Block(heading, tuple(_settings_cells(experiment, printed[experiment.name]) for experiment in members))
            for heading, members in groups
            if members
        ),
        notes=(
            "≠: the paper prints another value, which follows. What it does not print has no mark",
            "The loss has no mark either. For parity, the paper's text has the hinge loss (docs/errata.md)",
            "Learning rate and weight decay are those of the first method, the paper's baseline. The next table has the "
            "others",
        ),
        records=tuple(_settings_record(experiment, printed[experiment.name]) for experiment in experiments),
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


def _settings_cells(experiment: Experiment, printed: Printed | None) -> tuple[str, ...]:
    theirs = _theirs(printed)
    return (experiment.title, *(_cell(ours, theirs.get(key)) for key, ours in _settings(experiment).items()))


def _cell(ours: Value, paper: Value) -> str:
    if paper is None or paper == ours:
        return _text(ours)
    return f"{_text(ours)} ≠ {_text(paper)}"


def _text(value: Value) -> str:
    return NOTHING if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _settings_record(experiment: Experiment, printed: Printed | None) -> dict[str, Value]:
    theirs, ours = _theirs(printed), _settings(experiment)
    return {"task": experiment.name, **ours, **{f"paper_{key}": theirs.get(key) for key in ours}}


def methods_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """The settings of every method, once for all experiments that share them; the paper's methods first."""
    experiments = gathered.named_in(plan.experiments)
    names = dict.fromkeys([*plan.methods, *(name for experiment in experiments for name in experiment.methods)])
    grouped: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        for experiment in experiments:
            if name in experiment.methods:
                whose = "paper" if name in experiment.claims else "ours"
                settings = _method_settings(experiment.methods[name], task_optim(experiment))
                grouped.setdefault((whose, name, *settings), []).append(experiment.name)
    keys = ("whose", "method", "lr", "weight decay", "decay enters", "transform", "off past")
    all_names = [experiment.name for experiment in experiments]
    records = [{**dict(zip(keys, key, strict=True)), "on": _families(on, all_names)} for key, on in grouped.items()]
    columns = ("method", "on", "lr", "weight decay", "decay enters", "transform", "off past")
    blocks = [
        Block(heading, tuple(tuple(record[key] for key in columns) for record in records if record["whose"] == whose))
        for whose, heading in (("paper", "in the paper"), ("ours", "not in the paper, ours"))
    ]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=columns,
        blocks=tuple(block for block in blocks if block.rows),
        notes=(
            "Decay enters before the transform, in the gradient; after it, by the optimizer; or decoupled",
            '"The task\'s" value is in Table 1. A second value is for the hidden matrix',
        ),
        records=tuple(records),
    )


def _method_settings(method: Method, task: Optim) -> tuple[str, str, str, str, str]:
    """As texts. `task` has the values of Table 1."""
    hidden = method.hidden or method.optim
    steps = [_transform(transform) for transform in method.transform]
    if hidden.optimizer != "sgd":
        steps.append(_optimizer(hidden))
    if method.clip is not None:
        steps.append(f"rows clipped to {method.clip:g}")
    return (
        _both(method.optim.lr, hidden.lr, task.lr),
        _both(method.optim.weight_decay, hidden.weight_decay, task.weight_decay),
        method.decay,
        ", then ".join(steps) or NOTHING,
        NOTHING if method.until is None else f"{100 * method.until:g} %",
    )


def _both(everywhere: float, hidden: float, task: float) -> str:
    texts = ["the task's" if value == task else f"{value:g}" for value in (everywhere, hidden)]
    return texts[0] if everywhere == hidden else "; ".join(texts)


def _transform(transform: TransformSettings) -> str:
    settings = meaning(transform)
    name = settings.pop("name")
    settings.pop("precision", None)  # of the computation, not of the method
    texts = [f"{key} {value if isinstance(value, str) else f'{value:g}'}" for key, value in settings.items()]
    return " ".join([name, *texts])


def _optimizer(optim: Optim) -> str:
    return f"{optim.optimizer}{f' momentum {optim.momentum:g}' if optim.momentum else ''}"


def _families(names: Sequence[str], all_names: Iterable[str]) -> str:
    """Names of experiments, with `addition` for addition-79, addition-97 and addition-127 together."""
    if set(names) == set(all_names):
        return "all"
    families: dict[str, list[str]] = {}
    for name in all_names:
        families.setdefault(name.rpartition("-")[0] or name, []).append(name)
    short: list[str] = []
    for family, members in families.items():
        listed = [name for name in members if name in names]
        short += [family] if listed == members else listed
    return ", ".join(short)


def gains_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """Table 5: the mean over tasks of the ratio of medians, the paper's rows first."""
    judged = gathered.first(contents.paper.seeds)
    gains = [average_gain(judged, gain, plan.experiments) for gain in plan.gains]
    blocks = [
        Block(
            "",
            tuple(_gain_cells(gain, plan) for gain in gains if gain.plan.epochs),
            tuple({3: Cell("average", gain.plan.name, "gain in epochs")} for gain in gains if gain.plan.epochs),
        ),
        Block("not in the paper, ours", tuple(_gain_cells(gain, plan) for gain in gains if not gain.plan.epochs)),
    ]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "method",
            "epochs, paper",
            "paper, our tasks",
            "epochs, ours",
            "95 % of single seeds",
            "tasks",
            "time, paper",
            "time, ours",
        ),
        blocks=tuple(block for block in blocks if block.rows),
        notes=(
            "A gain is the baseline's epochs over the method's, averaged over tasks. The paper has one run per cell. Ours "
            f"are medians of seeds 0 to {contents.paper.seeds - 1}, over the tasks where method and baseline pass. Of "
            "several ranks the best on each task counts",
            "Paper, our tasks: the average of the paper's own cells over the tasks that count in ours",
            "95 % of single seeds: the same average made from one seed drawn per cell, as the paper's is, where all pass",
            f"The paper's times are from a {contents.paper.hardware}. Ours are of the tasks where method and baseline were "
            "timed on the same platform; these are named where they are not all",
            *(note for gain in gains if (note := _left_out(gain))),
        ),
        records=tuple(_gain_record(gain, plan) for gain in gains),
    )


def _gain_cells(gain: AverageGain, plan: TablePlan) -> tuple[str, ...]:
    low_high = "–".join(f"{end:.1f}" for end in gain.spread) + "×" if gain.spread else NOTHING
    asked = [name for name in plan.experiments if name not in gain.plan.leaves_out]
    return (
        gain.plan.title,
        times(gain.plan.epochs) if gain.plan.epochs else NOTHING,
        times(gain.paper) if gain.plan.epochs and gain.paper else NOTHING,
        _gain_in_epochs(gain),
        low_high,
        f"{len(gain.counted)}/{len(asked)}",
        times(gain.plan.seconds) if gain.plan.seconds else NOTHING,
        _gain_in_seconds(gain, plan),
    )


def _gain_in_seconds(gain: AverageGain, plan: TablePlan) -> str:
    """With its tasks, if they are not those of the gain in epochs."""
    if gain.seconds is None:
        return NOTHING
    of_all = len(gain.timed) == len(gain.counted)
    return times(gain.seconds) + ("" if of_all else f" ({_families(gain.timed, plan.experiments)})")


def _gain_in_epochs(gain: AverageGain) -> str:
    if gain.epochs is None:
        return "unfinished" if gain.unfinished else "not run" if not gain.n else NOTHING
    return times(gain.epochs) + (", unfinished" if gain.unfinished else "")


def _left_out(gain: AverageGain) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in gain.left_out.items():
        reasons.setdefault(reason, []).append(name)
    tasks = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return f"{gain.plan.title}, left out: {tasks}" if tasks else ""


def _gain_record(gain: AverageGain, plan: TablePlan) -> dict[str, Value]:
    low, high = gain.spread or (None, None)
    return {
        "gain": gain.plan.name,
        "baseline": gain.plan.baseline,
        "ours": "no" if gain.plan.epochs else "yes",
        "paper_epochs": gain.plan.epochs,
        "paper_epochs_our_tasks": gain.paper,
        "epochs": gain.epochs and gain.epochs.plain,
        "low": low,
        "high": high,
        "n": gain.n,
        "tasks": len(gain.counted),
        "left_out": " ".join(gain.left_out),
        "paper_seconds": gain.plan.seconds,
        "seconds": gain.seconds and gain.seconds.plain,
        "timed": " ".join(gain.timed),
    }


def early_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """One row for each measure and epoch."""
    rows = early_rows(gathered, plan.experiments)
    cells = [(EARLY_MEASURES[row.measure], f"{row.epoch}", f"{row.runs}", str(row.seeds), str(row.methods)) for row in rows]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "of the first batch's gradient",
            "epoch",
            "runs",
            "between seeds of a method",
            "between methods of a task",
        ),
        blocks=(Block("", tuple(cells)),),
        notes=EARLY_NOTES,
        records=tuple(row.csv_row() for row in rows),
    )
