"""The experiments: the paper's, as TOML files in `paper/`, ours in `beyond/`, and a user's own, by path.

A file may build on another: `extends` names it, and `only` the methods to keep. A file whose name begins with `_` is no
experiment: it serves as a base, or holds something else, such as a tuning plan. What a user changes, in a file or with
`--set`, is no longer the paper's: its source is recorded, and the paper's claims about it are dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from egalitarian.lab.config import renamed
from egalitarian.lab.config.merging import (
    Table,
    add_methods,
    apply_change,
    changed_values,
    fill_optimizers,
    keep_only,
    mark_changed,
    merge,
    merge_user_file,
)
from egalitarian.lab.config.schema import USER_MODULES, SpecError, nearest, read
from egalitarian.lab.config.spec import Experiment

MOST_FILES = 100
"""Of a chain of `extends`."""


def names() -> list[str]:
    """The paper's experiments, in the order of the paper."""
    return sorted(
        (name for name in _shipped("paper") if not name.startswith("_") and "task" in _table(name)),
        key=_order_of_the_paper,
    )


def beyond() -> list[str]:
    """Experiments on questions that the paper leaves open."""
    return sorted(name for name in _shipped("beyond") if not name.startswith("_"))


def load(
    name: str,
    changes: Iterable[str] = (),
    methods: Iterable[str] = (),
    added: Mapping[str, Mapping[str, Any]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Experiment:
    """An experiment by name or by the path of a TOML file, with `key=value` changes: `task.modulus=101`, `optim.lr=0.5`.

    Settings of methods (`optim`, `hidden`, `transform`, `decay`, `until`, ...) are changed in `methods`, or in all;
    `methods.egd.optim.lr=0.5` changes that one. `added` has further methods, as they would be in the file; one of an
    existing name replaces it. `values` are changes as dotted keys and their values, made after `changes`.
    """
    # Tasks and models register themselves when imported. By name, at the last moment: `config` itself imports no other
    # part of the lab, and no torch.
    importlib.import_module("egalitarian.lab.problems")
    table = _table(name)
    if name == "toy":
        raise SpecError("experiment must be one that is trained, got 'toy', which is simulated; use `egalitarian toy`")
    where = Path(name).stem if name.endswith(".toml") else name
    add_methods(table, added or {})
    pairs = [*changed_values(changes).items(), *(values or {}).items()]
    changed = [setting for key, value in pairs for setting in apply_change(table, key, value, set(methods))]
    fill_optimizers(table, where)
    mark_changed(table, changed, "changed with --set")
    if "name" in table:
        raise SpecError(f"{where}: name must be absent, got {table['name']!r}; an experiment has the name of its file")
    _run_own_task(table)
    try:
        return read(Experiment, {"name": where, "title": where, "changes": tuple(changes), **table})
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def load_each(several: Iterable[str], changes: Sequence[str] = (), methods: Sequence[str] = ()) -> dict[str, Experiment]:
    """Experiments by the name or path that was asked for. No two may share a name, which their runs are stored under."""
    found: dict[str, Experiment] = {}
    for each in several:
        own = load(each, changes, methods)
        twin = next((other for other, earlier in found.items() if earlier.name == own.name and other != each), None)
        if twin is not None:
            both = f"{twin} and {each}, both {own.name!r}"
            raise SpecError(f"experiments must differ in name, got {both}; rename a file, or name it once")
        found[each] = own
    return found


def _run_own_task(table: Table) -> None:
    """Replaces `task.file` by the digest of that Python file, which registers a task by subclassing `Task`."""
    task = table.get("task")
    if isinstance(task, dict) and "file" in task:
        path = Path(str(task.pop("file")))
        task["code"] = _run_task_file(path)
        table["sources"] = {**table["sources"], "task.code": f"{path.name}, a digest"}


def _run_task_file(path: Path) -> str:
    """Executes the file once per process, and returns its digest, which is part of a run's id."""
    if not path.is_file():
        raise SpecError(f"task.file must be a Python file in the experiment's folder, got {path}; see docs/lab.md")
    code = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    name = f"{USER_MODULES}{code}"
    if name not in sys.modules:
        try:
            _execute(name, path)
        except SpecError:
            raise
        except ImportError as error:
            _refuse_old_module(error, path)
            raise _failed(error, path) from error
        except (Exception, SystemExit) as error:
            raise _failed(error, path) from error
    return code


def _execute(name: str, path: Path) -> None:
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise SpecError(f"task.file must end in .py, got {path}; rename it")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and type hints look names up there
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _failed(error: BaseException, path: Path) -> SpecError:
    return SpecError(f"task.file must run, got {type(error).__name__}: {error}; correct {path}")


def _refuse_old_module(error: ImportError, path: Path) -> None:
    """A `SpecError` that names the new module, if the file imports one of the lab's by an old name."""
    name = error.name or ""
    missing = re.match(r"cannot import name '(\w+)'", str(error))  # of `from egalitarian.lab import tasks`
    asked = f"{name}.{missing[1]}" if missing else name
    new = renamed.current_module(asked)
    if new is not None:
        raise SpecError(
            f"task.file must import the lab by its present names, got {asked!r} in {path}; it is now called {new!r}"
        ) from error


def _shipped(*folders: str) -> dict[str, Any]:
    """The TOML files that come with the lab, by name."""
    roots = [resources.files("egalitarian.lab") / folder for folder in folders or ("paper", "beyond")]
    files = [item for root in roots for item in root.iterdir() if item.name.endswith(".toml")]
    return {item.name.removesuffix(".toml"): item for item in files}


def _table(name: str, children: tuple[str, ...] = ()) -> Table:
    """The file's table merged over those it extends; `children` are the files that extend it."""
    table = _read_table(name, _read_text(name, children))
    base, only = table.pop("extends", None), table.pop("only", None)
    if len(children) > MOST_FILES:
        raise SpecError(f"extends must lead through at most {MOST_FILES} files, got more at {name}; join some of them")
    if base is None:
        if only is not None:
            raise SpecError(f"only must come with extends, got {only!r} alone in {name}; add extends, or remove only")
        return table
    if not isinstance(base, str):
        raise SpecError(
            f"extends must be the name of an experiment or a file, got {base!r} in {name}; for example 'addition-97'"
        )
    of_user = name.endswith(".toml")
    nested = os.path.normpath(Path(name).parent / base) if of_user and base.endswith(".toml") else base
    if nested in (*children, name, os.path.normpath(name)):
        raise SpecError(f"extends must not lead back to the same file, got {base!r} in {name}; remove it")
    under = _table(nested, (*children, name))
    if only is not None:
        under = keep_only(under, only, name)
    if name in beyond():  # the paper has no claims about it
        under = {**under, "claims": {}}
    return merge_user_file(under, table, name) if of_user else merge(under, table)


def _read_table(name: str, text: str) -> Table:
    """One file's own table; the path of a user's task file is relative to the file that names it."""
    try:
        table = tomllib.loads(text)
        repr(table)  # an integer that Python refuses to print is refused here
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name} must be TOML, got a file that is not: {error}; correct it") from None
    task = table.get("task")
    if name.endswith(".toml") and isinstance(task, dict) and isinstance(task.get("file"), str):
        task["file"] = str(Path(name).parent / task["file"])
    for part in ("sources", "claims"):
        if not isinstance(table.get(part, {}), dict):
            raise SpecError(f"{part} must be a table, got {table[part]!r} in {name}; write [{part}] and its keys below")
    return table


def _read_text(name: str, children: tuple[str, ...]) -> str:
    if name.endswith(".toml"):
        return _read_user_text(Path(name))
    shipped = _shipped()
    if name not in shipped or (name.startswith("_") and not children):
        hint = nearest(name, names() + beyond(), renamed.EXPERIMENTS) or "see `egalitarian list`"
        raise SpecError(f"experiment must be one of the lab's or a .toml file, got {name!r}; {hint}")
    text: str = shipped[name].read_text(encoding="utf-8")
    return text


def _read_user_text(path: Path) -> str:
    if not path.is_file():
        raise SpecError(f"experiment must be a name or an existing file, got {path}; see `egalitarian list`")
    if path.stem in _shipped() or path.stem in renamed.EXPERIMENTS:
        raise SpecError(f"your file must not have the name of one of the lab's, got {path}; rename it")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} must be a text in UTF-8, got a file that cannot be read: {error}; correct it") from None


def _order_of_the_paper(name: str) -> tuple[int, str]:
    kinds = ("addition", "multiplication", "parity", "mnist", "transformer", "cifar")
    index = next((number for number, kind in enumerate(kinds) if name.startswith(kind)), len(kinds))
    return index, "-".join(part.zfill(4) if part.isdigit() else part for part in name.split("-"))
