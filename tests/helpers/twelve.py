"""The twelve methods of the fair comparison, as tables of a TOML file, and small models to train with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from small import CIFAR, MNIST, MODULAR, PARITY, TRANSFORMER

from egalitarian.lab.config import Experiment, catalog

POINT = {"lr": 0.01, "weight_decay": 0.1}
"""Where a search would have its values."""
POLAR = {"name": "polar", "precision": "exact"}
BEFORE = {"name": "momentum", "beta": 0.9, "on": "targets"}
ALL = ["*"]
"""Every parameter of two dimensions or more, as a matrix (out, rest)."""

SGD = {"optimizer": "sgd", **POINT}
ADAMW = {"optimizer": "adamw", "betas": [0.9, 0.999], **POINT}
LION = {"optimizer": "lion", "betas": [0.9, 0.99], **POINT}


def twelve(hidden: list[str]) -> dict[str, dict[str, Any]]:
    """By name. `hidden` are a family's hidden matrices."""
    stock = {"decayed": "all", "targets": hidden}
    decoupled = {**stock, "decay": "decoupled"}
    every = {"targets": ALL, "decay": "after", "optim": SGD}
    return {
        "sgd": {**stock, "decay": "after", "optim": SGD},
        "sgd-momentum": {**stock, "decay": "after", "optim": {**SGD, "momentum": 0.9}},
        "adam": {**stock, "decay": "after", "optim": {**ADAMW, "optimizer": "adam"}},
        "adamw": {**decoupled, "optim": ADAMW},
        "lion": {**decoupled, "optim": LION},
        "lion-clip": {**decoupled, "clip": 2.0, "optim": {**LION, "betas": [0.9, 0.97], "weight_decay": 0.0}},
        "grokfast-ema": {
            **decoupled,
            "transform": [{"name": "grokfast-ema", "alpha": 0.98, "lamb": 2.0}],
            "optim": ADAMW,
        },
        "muon": {
            "targets": ALL,
            "decay": "decoupled",
            "decayed": "all",
            "hidden": {"optimizer": "muon", **POINT, "momentum": 0.95, "nesterov": True},
            "optim": ADAMW,
        },
        "row-norm": {**every, "transform": [BEFORE, {"name": "row-norm", "floor": 1e-8}]},
        "egd-a": {**every, "transform": [BEFORE, POLAR]},
        "egd-b": {"targets": ALL, "decay": "decoupled", "decayed": "all", "transform": [POLAR], "optim": ADAMW},
        "egd-c": {**decoupled, "transform": [BEFORE, POLAR], "hidden": SGD, "optim": ADAMW},
    }


MODELS: Mapping[str, tuple[str, tuple[str, ...], list[str]]] = {
    "mlp": ("addition-97", MODULAR, ["hidden.weight"]),
    "mlp of parity": ("parity-3", PARITY, ["hidden.weight"]),
    "layers": ("mnist", MNIST, ["layers.0.weight", "layers.1.weight"]),
    "transformer": ("transformer", TRANSFORMER, ["blocks.*.weight"]),
    "cnn": ("cifar-shuffle-1", CIFAR, ["conv.*.weight", "hidden.weight"]),
}
"""Of the five families: the experiment, what makes it small, and its hidden matrices."""


def fair(model: str, *changes: str) -> Experiment:
    """A small model of this kind with the twelve methods alone, by their names with `fair-` before them."""
    experiment, smaller, hidden = MODELS[model]
    tables = {f"fair-{name}": {"title": name, "epochs": 50, **table} for name, table in twelve(hidden).items()}
    loaded = catalog.load(experiment, [*smaller, *changes], added=tables)
    return loaded.replace(methods={name: loaded.method(f"fair-{name}") for name in twelve(hidden)})
