"""The twelve methods of the fair comparison, as the tuning plan has them, on small models of its five families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from small import CIFAR, MNIST, MODULAR, PARITY, TRANSFORMER

from egalitarian.lab.config import Experiment, catalog
from egalitarian.lab.tuning.plan import load_plan
from egalitarian.lab.tuning.points import Grid, Position

PLAN = load_plan()
FAMILIES = tuple(PLAN)
METHODS = tuple(PLAN["addition"].methods)
SMALLER = {"addition": MODULAR, "parity": PARITY, "mnist": MNIST, "transformer": TRANSFORMER, "cifar": CIFAR}
INSIDE = Position(lr=6, decay=4)
"""A point inside the coarse grids."""


def fair(family: str, *changes: str, values: Mapping[str, Any] | None = None) -> Experiment:
    """A family's experiment, small, with the twelve methods alone, at a point of their grids. `values` are set last."""
    plan = PLAN[family]
    point: dict[str, Any] = {}
    for method in METHODS:
        point |= Grid(plan, method).values(INSIDE)
    loaded = catalog.load(
        plan.experiment, [*SMALLER[family], *changes], added=plan.added, values={**point, **(values or {})}
    )
    return loaded.replace(methods={method: loaded.method(method) for method in METHODS})
