"""Names that have changed, old to new, in one table.

An old name from a user is refused with the new one. Runs that an older version stored are found and read under the new
names, and keep their ids: an id is a hash of the old spellings.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

Pairs = Mapping[str, str]

VALUES: Mapping[str, Pairs] = {"decay": {"loss": "before", "coupled": "after"}}
"""Of settings, by the setting's name."""
KINDS: Pairs = {"neuron-norm": "row-norm"}
"""Of transforms."""
METHODS: Pairs = {
    "sgd-tuned": "sgd-lr5",
    "egd-inside": "egd-before",
    "egd-outside": "egd-after",
    "column-norm": "row-norm",
    "column-norm-inside": "row-norm-before",
    "column-norm-outside": "row-norm-after",
    "column-norm-after": "row-norm-after",
    "column-norm-adamw": "row-norm-adamw",
    "column-norm-sgd": "row-norm-sgd",
    "column-norm-both": "row-norm-both",
    "column-norm-both-fast": "row-norm-both-fast",
    "column-norm-both-slow": "row-norm-both-slow",
    "column-norm-both-after": "row-norm-both-after",
    "column-norm-both-after-slow": "row-norm-both-after-slow",
}
EXPERIMENTS: Pairs = {"addition-97-decay-outside": "addition-97-decay-after"}
TITLES: Pairs = {
    "column norm": "row norm",
    "decay inside": "decay before",
    "decay outside": "decay after",
}
"""Words in the titles of tuned methods."""


def now(name: str, pairs: Pairs, known: Container[str]) -> str:
    """A stored name as it is now. A name that is known stays: it may be a user's own."""
    new = pairs.get(name, name)
    return new if name not in known and new in known else name


def former(name: str, pairs: Pairs) -> list[str]:
    """The old names of what has this name now."""
    return [old for old, new in pairs.items() if new == name]


def as_hashed(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings in the old spellings, of which run ids are made."""
    return _spelled(method, {key: _reverse(pairs) for key, pairs in VALUES.items()}, _reverse(KINDS))


def as_now(spec: Any) -> Any:
    """A stored spec.json in the new spellings; what is not as the lab writes it is left to whoever reads it."""
    if not isinstance(spec, dict) or not isinstance(spec.get("settings"), dict):
        return spec
    return {**spec, "settings": _spelled(spec["settings"], VALUES, KINDS)}


def change_now(change: str, known: Container[str]) -> str:
    """A stored `key=value` of `--set`: the method's name and the value as they are now."""
    key, equals, value = change.partition("=")
    path = key.strip().split(".")
    if path[0] == "methods" and len(path) > 1:
        path[1] = now(path[1], METHODS, known)
    bare = value.strip().strip("\"'")
    return f"{'.'.join(path)}{equals}{VALUES.get(path[-1], {}).get(bare, value)}"


def title_now(title: str) -> str:
    for old, new in TITLES.items():
        title = title.replace(old, new)
    return title


def _spelled(method: Mapping[str, Any], values: Mapping[str, Pairs], kinds: Pairs) -> dict[str, Any]:
    said = dict(method)
    for key, pairs in values.items():
        if isinstance(said.get(key), str):
            said[key] = pairs.get(said[key], said[key])
    if isinstance(said.get("transform"), list):
        said["transform"] = [_of_kind(link, kinds) for link in said["transform"]]
    return said


def _of_kind(link: Any, kinds: Pairs) -> Any:
    named = isinstance(link, dict) and isinstance(link.get("name"), str)
    return {**link, "name": kinds.get(link["name"], link["name"])} if named else link


def _reverse(pairs: Pairs) -> dict[str, str]:
    return {new: old for old, new in pairs.items()}
