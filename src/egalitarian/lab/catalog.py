"""The experiments there are: the paper's, as TOML files in `paper/`, and a user's own, by path.

A file may build on another (`extends`), tables merging key by key; a file whose name begins with `_` is only built upon.
Methods take from `[optim]` what they do not set themselves, and `hidden` takes from a method's `optim`.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from egalitarian.lab import models, tasks  # noqa: F401  # the kinds that come with the lab register themselves
from egalitarian.lab.settings import SpecError, nearest, read
from egalitarian.lab.spec import Experiment

OF_METHODS = ("optim", "hidden", "transform", "targets", "decay", "until", "epochs")
OF_EXPERIMENTS = ("task", "model", "training", "measure")
Table = dict[str, Any]


def names() -> list[str]:
    """The paper's experiments, in the order of the paper."""
    return sorted(
        (name for name in _shipped() if not name.startswith("_") and "task" in _table(name)), key=_order_of_the_paper
    )


def load(name: str, changes: Iterable[str] = (), methods: Iterable[str] = ()) -> Experiment:
    """An experiment by name or by the path of a TOML file, with `key=value` changes: `task.modulus=31`, `optim.lr=0.5`.

    What belongs to methods (`optim`, `hidden`, `transform`, `decay`, `until`, ...) is changed in `methods`, or in all.
    """
    table = _table(name)
    where = Path(name).stem if name.endswith(".toml") else name
    chosen = set(methods)
    for change in changes:
        _change(table, change, chosen)
    optim = table.pop("optim", {})
    if not isinstance(optim, dict):
        raise SpecError(f"{where}: optim must be a table, got {optim!r}; write [optim] and its keys below")
    for method in _methods(table).values():
        method["optim"] = _over(optim, method.get("optim", {}))
        if "hidden" in method:
            method["hidden"] = _over(method["optim"], method["hidden"])
    task_file = table.get("task", {}).pop("file", None) if isinstance(table.get("task"), dict) else None
    if task_file is not None:
        _run_file(Path(name).parent / task_file)
    try:
        return read(Experiment, {"name": where, **table})
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _methods(table: Table) -> dict[str, Table]:
    methods = table.get("methods", {})
    items = methods.items() if isinstance(methods, dict) else ()
    return {name: method for name, method in items if isinstance(method, dict)}


def _shipped() -> dict[str, Any]:
    folder = resources.files("egalitarian.lab") / "paper"
    return {item.name.removesuffix(".toml"): item for item in folder.iterdir() if item.name.endswith(".toml")}


def _table(name: str, children: tuple[str, ...] = ()) -> Table:
    """The file's table, over those it extends; `children` are the files that build on it."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise SpecError(f"experiment must be a name or an existing file, got {name}; see `egalitarian list`")
        text = path.read_text()
    else:
        shipped = _shipped()
        if name not in shipped or (name.startswith("_") and not children):
            known = [each for each in shipped if not each.startswith("_")]
            hint = nearest(name, known) or "see `egalitarian list`"
            raise SpecError(f"experiment must be one of the lab's or a .toml file, got {name!r}; {hint}")
        text = shipped[name].read_text()
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name} must be TOML, got what cannot be read: {error}; mend it there") from None
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise SpecError(f"extends must be the name of an experiment or a file, got {base!r} in {name}; write it so")
    nested = str(Path(name).parent / base) if name.endswith(".toml") and base.endswith(".toml") else base
    if nested in (*children, name):
        raise SpecError(f"extends must not go round in a circle, got {base!r} in {name}; take it out")
    return _merged(_table(nested, (*children, name)), table)


def _over(under: Any, over: Any) -> Any:
    """Merged where both are tables; what is not one is left to be refused by name."""
    return _merged(under, over) if isinstance(under, Mapping) and isinstance(over, Mapping) else over


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Tables merge, everything else is replaced. A table with a `name` of its own replaces one of another kind."""
    if "name" in over and under.get("name", over["name"]) != over["name"]:
        return dict(over)
    merged = dict(under)
    for key, value in over.items():
        merged[key] = _over(merged.get(key), value)
    return merged


def _change(table: Table, change: str, chosen: set[str]) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"a change must be key=value, got {change!r}; for example --set optim.lr=0.5")
    path = key.strip().split(".")
    value = _value(text.strip())
    if path[0] in OF_EXPERIMENTS:
        _put(table, path, value, key)
    elif path[0] in OF_METHODS:
        for name, method in _methods(table).items():
            if not chosen or name in chosen:
                _put(method, path, value, key)
    else:
        hint = nearest(path[0], (*OF_EXPERIMENTS, *OF_METHODS)) or f"one of {', '.join((*OF_EXPERIMENTS, *OF_METHODS))}"
        raise SpecError(f"a change must begin with a part of an experiment, got {key!r}; {hint}")


def _put(table: Table, path: list[str], value: Any, key: str) -> None:
    place: Any = table
    for step in path[:-1]:
        try:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        except AttributeError:
            break
        except (ValueError, IndexError):
            raise SpecError(f"{key} must lead to a setting, got nothing at {step!r}; see `egalitarian show`") from None
    if not isinstance(place, dict):
        raise SpecError(f"{key} must lead to a setting, got a value on the way; see `egalitarian show`")
    place[path[-1]] = value


def _value(text: str) -> Any:
    """As TOML reads it; what is not TOML is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _run_file(path: Path) -> None:
    """A user's task: the file registers it by subclassing `Task`."""
    if not path.is_file():
        raise SpecError(f"task.file must be a Python file beside the experiment's, got {path}; see docs/lab.md")
    found = importlib.util.spec_from_file_location(f"egalitarian_task_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module  # where dataclasses and type hints look names up
    found.loader.exec_module(module)


def _order_of_the_paper(name: str) -> tuple[int, str]:
    kinds = ("addition", "multiplication", "parity")
    place = next((number for number, kind in enumerate(kinds) if name.startswith(kind)), len(kinds))
    return place, "-".join(part.zfill(4) if part.isdigit() else part for part in name.split("-"))
