"""Tables of TOML files: merging a file with the one it extends, and changes by dotted key, as `--set` makes them.

A setting that a user changed is recorded with its source, and the paper's claims about it are dropped.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import SpecError, nearest

PARTS = ("task", "model", "training", "measure")
"""Parts of an experiment that all its methods share."""
PARTS_OF_METHODS = (
    *("optim", "hidden", "groups", "transform", "targets", "decay", "decayed", "clip", "orthograd", "until", "epochs"),
)
Table = dict[str, Any]
Key = tuple[str, ...]


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Tables are merged key by key, everything else is replaced. A table with another `name` replaces the whole table."""
    if "name" in over and under.get("name", over["name"]) != over["name"]:
        return dict(over)
    merged = dict(under)
    for key, value in over.items():
        merged[key] = merge_value(merged.get(key), value)
    return merged


def merge_value(under: Any, over: Any) -> Any:
    """Merged if both are tables, else `over`; a value of the wrong type is refused later, by its name."""
    return merge(under, over) if isinstance(under, Mapping) and isinstance(over, Mapping) else over


def merge_user_file(under: Table, table: Table, name: str) -> Table:
    """A user's file over the one it extends, without the paper's claims and title. Its settings get its name as source."""
    _refuse_old_methods(table, methods_of(under), name)
    kept = {key: value for key, value in under.items() if key not in ("claims", "about", "title")}
    own = {key: value for key, value in table.items() if key in (*PARTS, "optim", "methods")}
    keys = [setting_of(key) for key in _leaves(own)]
    mark_changed(kept, [key for key in keys if key[0] != "optim"], Path(name).name)
    for key in keys:
        if key[0] == "optim":
            mark_changed(kept, [("methods", method, *key) for method in methods_of(merge(kept, table))], Path(name).name)
    merged = merge(kept, table)
    methods = methods_of(merged)
    for method in table.get("claims", {}):
        if method not in methods:
            hint = nearest(method, methods) or f"one of {', '.join(methods)}"
            raise SpecError(f"claims must be about methods of the experiment, got {method!r} in {name}; {hint}")
    return merged


def keep_only(table: Table, only: Any, name: str) -> Table:
    """The table with these methods only, and the claims about them."""
    methods = methods_of(table)
    if not isinstance(only, list) or not all(isinstance(method, str) for method in only):
        raise SpecError(f'only must be a list of methods, got {only!r} in {name}; write only = ["egd"]')
    wrong = [method for method in only if method not in methods]
    if wrong:
        hint = nearest(wrong[0], methods, renamed.METHODS) or f"of {', '.join(methods)}"
        raise SpecError(f"only must name methods of the extended file, got {wrong[0]!r} in {name}; {hint}")
    claims = {method: claim for method, claim in table.get("claims", {}).items() if method in only}
    return {**table, "methods": {method: methods[method] for method in only}, "claims": claims}


def add_methods(table: Table, added: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds methods in place. One of an existing name replaces that method, and the claims about it."""
    for method, own in added.items():
        table.setdefault("methods", {})[method] = copy.deepcopy(dict(own))
        table["claims"] = {name: claim for name, claim in table.get("claims", {}).items() if name != method}


def fill_optimizers(table: Table, where: str) -> None:
    """Moves `[optim]` into every method: `hidden` inherits from the method's `optim`, each of `groups` from `hidden`."""
    optim = table.pop("optim", {})
    if not isinstance(optim, dict):
        raise SpecError(f"{where}: optim must be a table, got {optim!r}; write [optim] and its keys below")
    for method in methods_of(table).values():
        method["optim"] = merge_value(optim, method.get("optim", {}))
        if "hidden" in method:
            method["hidden"] = merge_value(method["optim"], method["hidden"])
        if isinstance(method.get("groups"), dict):
            under = method.get("hidden", method["optim"])
            method["groups"] = {module: merge_value(under, own) for module, own in method["groups"].items()}


def mark_changed(table: Table, changed: Iterable[Key], source: str) -> None:
    """Records the source of changed settings, and drops the paper's claims that no longer apply."""
    keys = list(changed)
    paths = dict.fromkeys((".".join(key) for key in keys), source)
    kept = {key: text for key, text in table.get("sources", {}).items() if not _is_below(key, paths)}
    claims = table.get("claims", {}).items()
    table["sources"] = kept | paths
    table["claims"] = {method: claim for method, claim in claims if not any(_voids_claim(key, method) for key in keys)}


def methods_of(table: Table) -> dict[str, Table]:
    methods = table.get("methods", {})
    items = methods.items() if isinstance(methods, dict) else ()
    return {name: method for name, method in items if isinstance(method, dict)}


def setting_of(key: Key) -> Key:
    """The setting a key belongs to: a chain of transforms is one setting, replaced as a whole."""
    return key[: key.index("transform") + 1] if "transform" in key else key


def _voids_claim(key: Key, method: str) -> bool:
    """Whether a claim about a method no longer applies once this setting has changed. A longer budget voids none, nor does
    what is measured besides the threshold."""
    if key[0] == "methods":
        return key[1] == method and key[2] != "epochs"
    return key[0] != "measure" or key[1] == "threshold"


def _is_below(key: str, paths: Container[str]) -> bool:
    """Whether the key of a setting leads into one of these."""
    return any(key[:end] in paths for end, letter in enumerate(key) if letter == ".")


def _leaves(value: Any, key: Key = ()) -> Iterator[Key]:
    """The key of every single setting."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*key, str(name)))
    else:
        yield key


def _refuse_old_methods(table: Table, methods: Mapping[str, Any], name: str) -> None:
    """An old method name would define a new method, and leave the one it once meant unchanged."""
    for part in ("methods", "claims"):
        for method in table.get(part, {}) if isinstance(table.get(part, {}), dict) else ():
            if method not in methods and renamed.METHODS.get(method) in methods:
                hint = nearest(method, methods, renamed.METHODS)
                raise SpecError(f"{part} must have their new names, got {method!r} in {name}; {hint}")


def parse_change(change: str) -> tuple[str, Any]:
    """The dotted key and the value of `key=value`."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"--set must be key=value, got {change!r}; for example --set optim.lr=0.5")
    try:
        return key.strip(), _parse_value(text.strip())
    except ValueError as error:
        raise SpecError(f"--set {key.strip()} {error}") from None


def changed_values(changes: Iterable[str]) -> Table:
    """Values by dotted key from `key=value` texts, in the order of the changes; of equal keys the last one counts."""
    values: Table = {}
    for key, value in map(parse_change, changes):
        values.pop(key, None)
        values[key] = value
    return values


def apply_change(table: Table, key: str, value: Any, chosen: set[str]) -> list[Key]:
    """Sets the value of a dotted key in `table`, and returns the keys of the settings that it changed.

    A part of methods is changed in those that are `chosen`, or in all methods if none is.
    """
    path = _split(key)
    if path[0] in PARTS:
        paths = [path]
    elif path[0] in PARTS_OF_METHODS:
        paths = [["methods", name, *path] for name in methods_of(table) if not chosen or chosen & {name, "all"}]
    elif path[0] == "methods" and len(path) > 2:
        if path[1] not in methods_of(table):
            hint = nearest(path[1], methods_of(table), renamed.METHODS) or f"one of {', '.join(methods_of(table))}"
            raise SpecError(f"--set must name a method of the experiment, got {key!r}; {hint}")
        paths = [path]
    elif path[0] == "methods":
        raise SpecError(f"--set must lead to a setting of a method, got {key!r}; for example methods.egd.optim.lr=0.5")
    else:
        parts = (*PARTS, *PARTS_OF_METHODS, "methods")
        hint = nearest(path[0], parts) or f"one of {', '.join(parts)}"
        raise SpecError(f"--set must begin with a part of an experiment, got {key!r}; {hint}")
    for each in paths:
        _put(table, each, value, key)
    return [setting_of(tuple(each)) for each in paths]


def _split(key: str) -> list[str]:
    """The parts of a dotted key. The module's name in `groups` may have dots itself."""
    path = key.split(".")
    if "groups" not in path or len(path) < path.index("groups") + 4:
        return path
    module = path.index("groups") + 1
    return [*path[:module], ".".join(path[module:-1]), path[-1]]


def _put(table: Table, path: list[str], value: Any, key: str) -> None:
    inner: Any = table
    for part in path[:-1]:
        if part == "transform" and isinstance(inner, dict) and not inner.get(part):
            raise SpecError(
                f"{key} must lead to a setting, got {path[1]}, which has no transform; choose others with --method"
            )
        try:
            inner = inner[_index(part)] if isinstance(inner, list) else inner.setdefault(part, {})
        except AttributeError:
            break
        except (ValueError, IndexError):
            raise SpecError(f"{key} must lead to a setting, got nothing at {part!r}; see `egalitarian show`") from None
    if not isinstance(inner, dict):
        number = "; a list's parts have numbers, as in transform.0.precision" if isinstance(inner, list) else ""
        raise SpecError(f"{key} must lead to a setting, got a value before its end{number}; see `egalitarian show`")
    inner[path[-1]] = copy.deepcopy(value)  # a later change into it is one method's, and not the caller's


def _index(part: str) -> int:
    if not part.isdecimal():
        raise ValueError(part)
    return int(part)


def _parse_value(text: str) -> Any:
    """The text as TOML, or unchanged if it is not TOML. ValueError if it is more than a value, or too long a number."""
    try:
        table = tomllib.loads(f"value = {text}")
        repr(table)  # an integer too long for decimal digits, written in base 16, fails here, too
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    except ValueError:
        raise ValueError(f"must have numbers of fewer digits, got {len(text)} characters; correct the value") from None
    if len(table) > 1:
        raise ValueError(f"must be one value, got {text!r}; repeat --set for another setting")
    return table["value"]
