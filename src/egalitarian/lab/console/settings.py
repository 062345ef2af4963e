"""`egalitarian show`: the settings of an experiment, a column per method; or each setting with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from egalitarian.lab.config import Claim, Experiment, Method, Optim, Settings, everything, load, meaning
from egalitarian.lab.console.options import ChangesOption, ExperimentArgument, MethodsOption, choose_methods, split_methods
from egalitarian.lab.console.tables import put, table

PARTS = ("task", "model", "training", "measure")
CLAIMED = ("epochs", "steps", "seconds", "ms_per_epoch", "ms_per_step", "final_accuracy", "mean_train_accuracy")
ALWAYS = ("optimizer", "lr", "weight_decay")
"""Settings of an optimizer that are listed even at their defaults."""
NONE = "-"
"""The text of an empty cell."""
CHANGED = "changed with --set"
"""The source of a setting that a user changed on the command line."""
ROWS = ("transform", "targets", "optim", "hidden", "groups", "decay", "decayed", "clip", "orthograd", "until", "epochs")
"""Parts of a method, in the order of the table."""
Cells = dict[str, str]
"""The texts of one column, by row."""


def show(
    experiment: ExperimentArgument,
    methods: MethodsOption = None,
    changes: ChangesOption = None,
    sources: Annotated[bool, typer.Option("--sources", help="List each setting with its source.")] = False,
) -> None:
    """Show an experiment's settings and the paper's numbers, by method.

    --sources lists where each comes from: the paper, the authors' code, or us.
    """
    console, names = Console(highlight=False), split_methods(methods)
    chosen = load(experiment, changes or (), names)
    listed = choose_methods(chosen, names)
    for part in describe_sources(chosen, listed) if sources else describe_settings(chosen, listed, console.width):
        put(console, part)


def describe_settings(experiment: Experiment, methods: Sequence[str], width: int) -> Iterator[RenderableType]:
    """What all methods share, then tables with a column per method, as many in a table as fit the terminal's width."""
    yield from _heading(experiment)
    columns = {name: _column(experiment, name) for name in methods}
    rows = sorted({row: None for cells in columns.values() for row in cells}, key=lambda row: ROWS.index(row.split(".")[0]))
    shared = [row for row in rows if len(methods) > 1 and len({cells.get(row) for cells in columns.values()}) == 1]
    yield _shared(experiment, {row: columns[methods[0]][row] for row in shared if columns[methods[0]][row] != NONE})
    claims = {name: _claimed(experiment.claims[name]) for name in methods if name in experiment.claims}
    rows = [row for row in rows if row not in shared] + [row for row in map(_of_paper, CLAIMED) if _any_has(claims, row)]
    cells_of = {name: columns[name] | claims.get(name, {}) for name in methods}
    yield from _blocks(
        {name: {row: cells[row] for row in rows if row in cells} for name, cells in cells_of.items()}, rows, width
    )
    yield from _remarks(experiment, methods)


def describe_sources(experiment: Experiment, methods: Sequence[str]) -> Iterator[RenderableType]:
    """Every setting with its source: what all methods share, then method by method."""
    yield from _heading(experiment)
    made = table("setting", "value", "source")
    for part in PARTS:
        for key, value in leaves(part, everything(getattr(experiment, part))):
            made.add_row(key, format_value(value), escape(experiment.source(key)))
    yield made
    for name in methods:
        method = experiment.method(name)
        made = table("setting", "value", "source", title=f"[bold]{name}[/bold]: {escape(method.title)}")
        for key, value in leaves("", everything(method)):
            if key not in ("title", "by_default") and not _torch_default(key, value):
                made.add_row(key, format_value(value), escape(experiment.source(f"methods.{name}.{key}")))
        yield made


def unchanged_settings(experiment: Experiment, name: str, changes: Sequence[str]) -> Iterator[str]:
    """Notes on optimizer settings that a change does not reach: equalised matrices and modules may have their own."""
    method = experiment.method(name)
    owners = {f"groups.{module}": (own, f"the module {module} keeps") for module, own in method.groups.items()}
    if method.hidden is not None:
        owners = {"hidden": (method.hidden, "the matrices of the hidden layer keep"), **owners}
    keys = [change.split("=")[0].strip().removeprefix(f"methods.{name}.") for change in changes]
    for part, _, setting in (key.partition(".") for key in dict.fromkeys(keys) if key.startswith(("optim.", "hidden."))):
        for where, (own, keeps) in owners.items():
            kept = f"{where}.{setting}"
            if kept not in keys and getattr(own, setting) != getattr(getattr(method, part), setting):
                value = _plain(getattr(own, setting))
                yield f"{experiment.name} {name}: {keeps} {kept} = {value}; --set {kept}=... changes it."


def _heading(experiment: Experiment) -> Iterator[str]:
    yield f"[bold]{experiment.name}[/bold]: {escape(experiment.heading)}"
    if experiment.about:
        yield escape(experiment.about)


def _shared(experiment: Experiment, of_methods: Cells) -> Table:
    """A line for each part of the experiment, and one for the settings that its methods share."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for part in PARTS:
        settings = leaves(part, everything(getattr(experiment, part)))
        pairs = [
            f"{key.removeprefix(f'{part}.')} = {_marked(experiment, key, format_value(value))}" for key, value in settings
        ]
        made.add_row(f"[bold]{part}[/bold]", ", ".join(pairs))
    if of_methods:
        made.add_row("[bold]all methods[/bold]", ", ".join(f"{row} = {cell}" for row, cell in of_methods.items()))
    return made


def _column(experiment: Experiment, name: str) -> Cells:
    method = experiment.method(name)
    return {row: _marked(experiment, f"methods.{name}.{row}", text) for row, text in _settings(method)}


def _settings(method: Method) -> Iterator[tuple[str, str]]:
    """The settings of a method, by the key that `--set` takes; of optimizers, those that differ from the level above."""
    yield "transform", "\nthen ".join(_link(link) for link in method.transform) or NONE
    yield "targets", "\n".join(escape(target) for target in method.targets)
    yield from _options("optim", method.optim, {**everything(Optim()), **dict.fromkeys(ALWAYS)})
    under = everything(method.optim)
    if method.hidden is not None:
        yield from _options("hidden", method.hidden, under)
        under = everything(method.hidden)
    for module, own in method.groups.items():
        yield from _options(f"groups.{module}", own, under)
    if method.clip is not None:
        yield "clip", format_value(method.clip)
    if method.orthograd:
        yield "orthograd", format_value(method.orthograd)
    for key in ("decay", "decayed", "until", "epochs"):
        value = getattr(method, key)
        yield key, NONE if value is None else format_value(value)


def _link(transform: Settings) -> str:
    """A transform with the settings that differ from its defaults."""
    name, *options = meaning(transform).items()
    return "\n".join([format_value(name[1]), *(f"{key} {format_value(value)}" for key, value in options)])


def _options(where: str, optim: Optim, under: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in everything(optim).items():
        if value != under[key]:
            yield f"{where}.{key}", format_value(value)


def _marked(experiment: Experiment, key: str, text: str) -> str:
    return f"{text}*" if experiment.source(key) == CHANGED else text


def _claimed(claim: Claim) -> Cells:
    return {_of_paper(key): str(getattr(claim, key)) for key in CLAIMED if getattr(claim, key) is not None}


def _of_paper(key: str) -> str:
    return f"paper: {key.replace('_', ' ')}"


def _any_has(columns: Mapping[str, Cells], row: str) -> bool:
    return any(row in cells for cells in columns.values())


def _blocks(columns: Mapping[str, Cells], rows: Sequence[str], width: int) -> Iterator[Table]:
    """Tables of as many methods as fit the width, each with the rows that one of its methods has."""
    left, first = dict(columns), max((len(row) for row in rows), default=0)
    while left:
        block: dict[str, Cells] = {}
        room = width - first - 2
        while left and (not block or _width(*next(iter(left.items()))) <= room):
            name = next(iter(left))
            room -= _width(name, left[name])
            block[name] = left.pop(name)
        made = table("setting", *block)
        for column in made.columns:
            column.no_wrap, column.min_width = True, None
        for row in rows:
            if _any_has(block, row):
                made.add_row(row, *(cells.get(row, NONE) for cells in block.values()))
        yield made


def _width(name: str, cells: Cells) -> int:
    lines = [Text.from_markup(line).cell_len for cell in cells.values() for line in cell.split("\n")]
    return max(len(name), *lines) + 2


def _remarks(experiment: Experiment, methods: Sequence[str]) -> Iterator[str]:
    tables = dict.fromkeys(experiment.claims[name].table for name in methods if name in experiment.claims)
    if tables:
        yield f"[dim]paper: the paper's numbers, measured on a Tesla T4 ({escape(', '.join(tables))}).[/dim]"
    if CHANGED in experiment.sources.values():
        yield f"[dim]*: {CHANGED}.[/dim]"
    others = [name for name in experiment.methods if name not in methods]
    if others:
        yield f"[dim]Not shown: {', '.join(others)}; add --method all.[/dim]"
    yield "[dim]What each setting means: docs/lab.md. Where it comes from: add --sources.[/dim]"


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every single setting by its dotted key, as `--set` takes it; absent ones are left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if _is_chain(value) else None
    if inner is None:
        if value is not None and value not in ([], ""):
            yield key, value
        return
    for below, item in inner:
        yield from leaves(f"{key}.{below}" if key else str(below), item)


def _is_chain(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _torch_default(key: str, value: Any) -> bool:
    """Whether an option of an optimizer is at torch's default."""
    _, _, option = key.rpartition(".")
    return key.startswith(("optim.", "hidden.", "groups.")) and option not in ALWAYS and value == _OPTIM[option]


_OPTIM = everything(Optim())


def format_value(value: Any) -> str:
    """A setting as in TOML, escaped for the terminal."""
    return escape(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
