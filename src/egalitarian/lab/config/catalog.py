"""The experiments there are: the paper's, as TOML files in `paper/`, ours in `beyond/`, and a user's own, by path.

A file may build on another (`extends`), tables merging key by key; `only` names the methods it takes over, all by default.
A file whose name begins with `_` is only built upon.
What a user changes, in a file or with `--set`, is no longer the paper's: its source says so, and the paper's claims go.
Methods take from `[optim]` what they do not set themselves, `hidden` takes from a method's `optim`, and each of
`groups` from `hidden`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import OF_USERS, SpecError, nearest, read
from egalitarian.lab.config.spec import Experiment

OF_METHODS = ("optim", "hidden", "groups", "transform", "targets", "decay", "decayed", "until", "epochs")
OF_EXPERIMENTS = ("task", "model", "training", "measure")
Table = dict[str, Any]
Key = tuple[str, ...]


def names() -> list[str]:
    """The paper's experiments, in the order of the paper."""
    return sorted(
        (name for name in _shipped("paper") if not name.startswith("_") and "task" in _table(name)),
        key=_order_of_the_paper,
    )


def beyond() -> list[str]:
    """Experiments on questions that the paper leaves open."""
    return sorted(_shipped("beyond"))


def load(
    name: str,
    changes: Iterable[str] = (),
    methods: Iterable[str] = (),
    added: Mapping[str, Mapping[str, Any]] | None = None,
) -> Experiment:
    """An experiment by name or by the path of a TOML file, with `key=value` changes: `task.modulus=101`, `optim.lr=0.5`.

    What belongs to methods (`optim`, `hidden`, `transform`, `decay`, `until`, ...) is changed in `methods`, or in all;
    `methods.egd.optim.lr=0.5` changes that one. `added` are methods that the experiment does not have, as they would stand
    in its file.
    """
    table = _table(name)
    if name == "toy":
        raise SpecError("experiment must be one that is trained, got 'toy', which is simulated; use `egalitarian toy`")
    where = Path(name).stem if name.endswith(".toml") else name
    _add(table, added or {}, where)
    changed = [place for change in changes for place in _change(table, change, set(methods))]
    optim = table.pop("optim", {})
    if not isinstance(optim, dict):
        raise SpecError(f"{where}: optim must be a table, got {optim!r}; write [optim] and its keys below")
    for method in _methods(table).values():
        method["optim"] = _over(optim, method.get("optim", {}))
        if "hidden" in method:
            method["hidden"] = _over(method["optim"], method["hidden"])
        if isinstance(method.get("groups"), dict):
            under = method.get("hidden", method["optim"])
            method["groups"] = {module: _over(under, own) for module, own in method["groups"].items()}
    _own(table, changed, "changed with --set")
    if "name" in table:
        raise SpecError(f"{where}: name must be absent, got {table['name']!r}; an experiment has the name of its file")
    task = table.get("task")
    if isinstance(task, dict) and "file" in task:
        own = Path(str(task["file"])).name
        task["code"] = _run_file(task.pop("file"))
        table["sources"] = {**table["sources"], "task.code": f"{own}, a digest"}
    try:
        return read(Experiment, {"name": where, "title": where, "changes": tuple(changes), **table})
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def load_each(several: Iterable[str], changes: Sequence[str] = (), methods: Sequence[str] = ()) -> dict[str, Experiment]:
    """By what each was called by; no two may have one name, under which runs are stored and counted."""
    found: dict[str, Experiment] = {}
    for each in several:
        own = load(each, changes, methods)
        twin = next((other for other, earlier in found.items() if earlier.name == own.name and other != each), None)
        if twin is not None:
            both = f"{twin} and {each}, both {own.name!r}"
            raise SpecError(f"experiments must differ in name, got {both}; rename a file, or name it once")
        found[each] = own
    return found


def _add(table: Table, added: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """More methods; never in place of one that there is."""
    for method, own in added.items():
        if method in _methods(table):
            raise SpecError(f"{where}: an added method must have a name of its own, got {method!r}; choose another")
        table.setdefault("methods", {})[method] = copy.deepcopy(dict(own))


def _own(table: Table, changed: Iterable[Key], source: str) -> None:
    """Says that these settings are a user's, and takes away what the paper claims of what they change."""
    sources, claims = dict(table.get("sources", {})), dict(table.get("claims", {}))
    for key in changed:
        path = ".".join(key)
        sources = {place: said for place, said in sources.items() if not place.startswith(f"{path}.")} | {path: source}
        claims = {method: claim for method, claim in claims.items() if not _bears_on(key, method)}
    table |= {"sources": sources, "claims": claims}


def _bears_on(key: Key, method: str) -> bool:
    """Whether a changed setting makes a claim about a method one about something else; a longer budget does not."""
    return key[1] == method and key[2] != "epochs" if key[0] == "methods" else key != ("measure", "past")


def _methods(table: Table) -> dict[str, Table]:
    methods = table.get("methods", {})
    items = methods.items() if isinstance(methods, dict) else ()
    return {name: method for name, method in items if isinstance(method, dict)}


def _shipped(*folders: str) -> dict[str, Any]:
    """The files that come with the lab, by name."""
    places = [resources.files("egalitarian.lab") / folder for folder in folders or ("paper", "beyond")]
    files = [item for place in places for item in place.iterdir() if item.name.endswith(".toml")]
    return {item.name.removesuffix(".toml"): item for item in files}


def _table(name: str, children: tuple[str, ...] = ()) -> Table:
    """The file's table, over those it extends; `children` are the files that build on it."""
    of_user = name.endswith(".toml")
    if of_user:
        text = _text(Path(name))
    else:
        shipped = _shipped()
        if name not in shipped or (name.startswith("_") and not children):
            hint = nearest(name, names() + beyond(), renamed.EXPERIMENTS) or "see `egalitarian list`"
            raise SpecError(f"experiment must be one of the lab's or a .toml file, got {name!r}; {hint}")
        text = shipped[name].read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name} must be TOML, got a file that is not: {error}; correct it") from None
    if of_user and isinstance(table.get("task"), dict) and isinstance(table["task"].get("file"), str):
        table["task"]["file"] = str(Path(name).parent / table["task"]["file"])
    for part in ("sources", "claims"):
        if not isinstance(table.get(part, {}), dict):
            raise SpecError(f"{part} must be a table, got {table[part]!r} in {name}; write [{part}] and its keys below")
    base, only = table.pop("extends", None), table.pop("only", None)
    if base is None:
        if only is not None:
            raise SpecError(f"only must come with extends, got {only!r} alone in {name}; add extends, or remove only")
        return table
    if not isinstance(base, str):
        raise SpecError(
            f"extends must be the name of an experiment or a file, got {base!r} in {name}; for example 'addition-97'"
        )
    nested = os.path.normpath(Path(name).parent / base) if of_user and base.endswith(".toml") else base
    if nested in (*children, name, os.path.normpath(name)):
        raise SpecError(f"extends must not lead back to the same file, got {base!r} in {name}; remove it")
    under = _table(nested, (*children, name))
    if only is not None:
        under = _with_only(under, only, name)
    if name in beyond():  # the paper claims nothing of it
        under = {**under, "claims": {}}
    if not of_user:
        return _merged(under, table)
    _refuse_old_names(table, _methods(under), name)
    kept = {key: value for key, value in under.items() if key not in ("claims", "about", "title")}
    own = {key: value for key, value in table.items() if key in OF_EXPERIMENTS or key in ("optim", "methods")}
    changed = [_whole(key) for key in _leaves(own)]
    _own(kept, [key for key in changed if key[0] != "optim"], Path(name).name)
    for key in changed:
        if key[0] == "optim":
            _own(kept, [("methods", method, *key) for method in _methods(_merged(kept, table))], Path(name).name)
    return _merged(kept, table)


def _refuse_old_names(table: Table, methods: Mapping[str, Any], name: str) -> None:
    """An old name for one of the methods that are built upon: it would be a new method, and the other left as it was."""
    for part in ("methods", "claims"):
        for method in table.get(part, {}) if isinstance(table.get(part, {}), dict) else ():
            if method not in methods and renamed.METHODS.get(method) in methods:
                hint = nearest(method, methods, renamed.METHODS)
                raise SpecError(f"{part} must have their new names, got {method!r} in {name}; {hint}")


def _with_only(table: Table, only: Any, name: str) -> Table:
    """Of its methods, and what is claimed of them, these alone."""
    methods = _methods(table)
    if not isinstance(only, list) or not all(isinstance(method, str) for method in only):
        raise SpecError(f'only must be a list of methods, got {only!r} in {name}; write only = ["egd"]')
    wrong = [method for method in only if method not in methods]
    if wrong:
        hint = nearest(wrong[0], methods, renamed.METHODS) or f"of {', '.join(methods)}"
        raise SpecError(f"only must name methods of the extended file, got {wrong[0]!r} in {name}; {hint}")
    claims = {method: claim for method, claim in table.get("claims", {}).items() if method in only}
    return {**table, "methods": {method: methods[method] for method in only}, "claims": claims}


def _text(path: Path) -> str:
    if not path.is_file():
        raise SpecError(f"experiment must be a name or an existing file, got {path}; see `egalitarian list`")
    if path.stem in _shipped() or path.stem in renamed.EXPERIMENTS:
        raise SpecError(f"your file must not have the name of one of the lab's, got {path}; rename it")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} must be a text in UTF-8, got a file that cannot be read: {error}; correct it") from None


def _leaves(value: Any, key: Key = ()) -> Iterator[Key]:
    """The key of every single setting."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*key, str(name)))
    else:
        yield key


def _whole(key: Key) -> Key:
    """A transform is one setting with its parts: its chain is replaced, never merged."""
    return key[: key.index("transform") + 1] if "transform" in key else key


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


def _change(table: Table, change: str, chosen: set[str]) -> list[Key]:
    """Makes one change, and says where."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set must be key=value, got {change!r}; for example --set optim.lr=0.5")
    path = _path(key.strip())
    value = _value(text.strip())
    if path[0] in OF_EXPERIMENTS:
        places = [path]
    elif path[0] in OF_METHODS:
        places = [["methods", name, *path] for name in _methods(table) if not chosen or chosen & {name, "all"}]
    elif path[0] == "methods" and len(path) > 2:
        if path[1] not in _methods(table):
            hint = nearest(path[1], _methods(table), renamed.METHODS) or f"one of {', '.join(_methods(table))}"
            raise SpecError(f"--set must name a method of the experiment, got {key!r}; {hint}")
        places = [path]
    elif path[0] == "methods":
        raise SpecError(f"--set must lead to a setting of a method, got {key!r}; for example methods.egd.optim.lr=0.5")
    else:
        parts = (*OF_EXPERIMENTS, *OF_METHODS, "methods")
        hint = nearest(path[0], parts) or f"one of {', '.join(parts)}"
        raise SpecError(f"--set must begin with a part of an experiment, got {key!r}; {hint}")
    for place in places:
        _put(table, place, value, key)
    return [_whole(tuple(place)) for place in places]


def _path(key: str) -> list[str]:
    """The parts of a dotted key; the name of a group's module may have dots itself."""
    path = key.split(".")
    if "groups" not in path or len(path) < path.index("groups") + 4:
        return path
    place = path.index("groups") + 1
    return [*path[:place], ".".join(path[place:-1]), path[-1]]


def _put(table: Table, path: list[str], value: Any, key: str) -> None:
    place: Any = table
    for step in path[:-1]:
        if step == "transform" and isinstance(place, dict) and not place.get(step):
            raise SpecError(
                f"{key} must lead to a setting, got {path[1]}, which has no transform; choose others with --method"
            )
        try:
            place = place[_number(step)] if isinstance(place, list) else place.setdefault(step, {})
        except AttributeError:
            break
        except (ValueError, IndexError):
            raise SpecError(f"{key} must lead to a setting, got nothing at {step!r}; see `egalitarian show`") from None
    if not isinstance(place, dict):
        number = "; a list's parts have numbers, as in transform.0.precision" if isinstance(place, list) else ""
        raise SpecError(f"{key} must lead to a setting, got a value before its end{number}; see `egalitarian show`")
    place[path[-1]] = value


def _number(step: str) -> int:
    if not step.isdecimal():
        raise ValueError(step)
    return int(step)


def _value(text: str) -> Any:
    """As TOML reads it; what is not TOML is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _run_file(name: Any) -> str:
    """Runs a user's file, which registers a task by subclassing `Task`, and returns a digest of it: part of a run's id."""
    path = Path(str(name))
    if not path.is_file():
        raise SpecError(f"task.file must be a Python file in the experiment's folder, got {path}; see docs/lab.md")
    code = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    module_name = f"{OF_USERS}{code}"
    if module_name in sys.modules:
        return code
    found = importlib.util.spec_from_file_location(module_name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module  # where dataclasses and type hints look names up
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"task.file must run, got {type(error).__name__}: {error}; correct {path}") from error
    return code


def _order_of_the_paper(name: str) -> tuple[int, str]:
    kinds = ("addition", "multiplication", "parity", "mnist", "transformer", "cifar")
    place = next((number for number, kind in enumerate(kinds) if name.startswith(kind)), len(kinds))
    return place, "-".join(part.zfill(4) if part.isdigit() else part for part in name.split("-"))
