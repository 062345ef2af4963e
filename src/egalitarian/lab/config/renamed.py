"""Names that have changed, old to new, in one table.

An old name from a user is an error that gives the new one. Runs that an older version stored are found and read under the
new names, and keep their ids: an id is a hash of the old spellings.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

Pairs = Mapping[str, str]

VALUES: Mapping[str, Pairs] = {"decay": {"loss": "before", "coupled": "after"}}
"""Values of settings, by the setting's name."""
KINDS: Pairs = {"neuron-norm": "row-norm"}
"""Kinds of transforms."""
METHODS: Pairs = {
    "sgd-tuned": "sgd-lr5",
    "egd-outside": "egd-after",
    "column-norm": "row-norm",
    "column-norm-outside": "row-norm-after",
    "column-norm-after": "row-norm-after",
    "column-norm-both": "row-norm-both",
    "column-norm-both-fast": "row-norm-both-fast",
    "column-norm-both-slow": "row-norm-both-slow",
    "column-norm-both-after": "row-norm-both-after",
    "column-norm-both-after-slow": "row-norm-both-after-slow",
}
EXPERIMENTS: Pairs = {"addition-97-decay-outside": "addition-97-decay-after"}
_MODULES: Mapping[str, str] = {
    "config": "catalog renamed settings spec",
    "problems": "datasets models tasks",
    "training": "ensemble measure methods steps train",
    "runs": "environment order progress store sweep",
    "executors": "jobs",
    "console": "choices cli durations grok help_layout listeners picture shelf shows shows_reports shows_settings textplot",
}
MODULES: Pairs = {
    f"egalitarian.lab.{old}": f"egalitarian.lab.{new}" for new, several in _MODULES.items() for old in several.split()
}
"""Modules of the lab, which a user's task file may import."""


def current_method(name: str, known: Container[str]) -> str:
    """The present name of a stored method. A known name stays as it is, since it may be a user's own."""
    new = METHODS.get(name, name)
    return new if name not in known and new in known else name


def current_experiment(name: str) -> str:
    """The present name of a stored experiment."""
    return EXPERIMENTS.get(name, name)


def former_methods(name: str) -> list[str]:
    """The old names of a method."""
    return [old for old, new in METHODS.items() if new == name]


def former_experiments(name: str) -> list[str]:
    """The old names of an experiment."""
    return [old for old, new in EXPERIMENTS.items() if new == name]


def current_module(name: str) -> str | None:
    """The package that now has the contents of an old module of the lab, or of a module inside it."""
    old = next((old for old in MODULES if name == old or name.startswith(f"{old}.")), None)
    return None if old is None else MODULES[old]


def as_hashed(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's settings in the old spellings, which run ids are made of."""
    return _respell(method, {key: _reverse(pairs) for key, pairs in VALUES.items()}, _reverse(KINDS))


def current_spec(spec: Any) -> Any:
    """A stored spec.json in the new spellings. Anything the lab did not write is returned unchanged."""
    if not isinstance(spec, dict) or not isinstance(spec.get("settings"), dict):
        return spec
    return {**spec, "settings": _respell(spec["settings"], VALUES, KINDS)}


def _respell(method: Mapping[str, Any], values: Mapping[str, Pairs], kinds: Pairs) -> dict[str, Any]:
    respelled = dict(method)
    for key, pairs in values.items():
        if isinstance(respelled.get(key), str):
            respelled[key] = pairs.get(respelled[key], respelled[key])
    if isinstance(respelled.get("transform"), list):
        respelled["transform"] = [_respell_kind(link, kinds) for link in respelled["transform"]]
    return respelled


def _respell_kind(link: Any, kinds: Pairs) -> Any:
    named = isinstance(link, dict) and isinstance(link.get("name"), str)
    return {**link, "name": kinds.get(link["name"], link["name"])} if named else link


def _reverse(pairs: Pairs) -> dict[str, str]:
    return {new: old for old, new in pairs.items()}
