"""A tiny tuning plan, a family tuned in a folder, and entries of results files as a tuning would write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small import CPU, GROKS, PARITY

from egalitarian.lab.config import catalog
from egalitarian.lab.runs import Listener, Silent, Store
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Grid, Position, SeedResult
from egalitarian.lab.tuning.results import Results, read_results, rules_of
from egalitarian.lab.tuning.trials import Session, tune

HERE = {"hardware": "a machine", "when": "2026-11-15"}
CHANGES = (*PARITY, *GROKS[:-1], "measure.threshold=0.9", "measure.past=3")
METHODS = ("egd", "sgd")
TINY = """
[all]
lrs = 2
decays = 1
lr_factor = 3.0
decay_factor = 3.0
basins = 1
around = 3
thirds = 2
further = 3
patience = 2.0
validation = 0.5
tuning_seeds = [6, 7]
fresh_seeds = [0, 1]

[families.tiny]
experiment = "parity-2"
stock = ["sgd"]
budget = 9

[families.tiny.methods.egd]
title = "EGD"
lr = { key = "optim.lr", first = 0.1 }
decay = { key = "optim.weight_decay", first = 1e-3 }
third = [{ title = "momentum", change = { "optim.momentum" = 0.5 }, lr = 0.5 }]

[families.tiny.methods.sgd]
title = "SGD"
lr = { key = "optim.lr", first = 0.3 }
decay = { key = "optim.weight_decay", first = 1e-3 }
"""
POINTS = 2 + 3 + 2
"""Of each method of this plan, without those beyond an edge."""


def tuned(
    folder: Path,
    family: Family,
    methods: Sequence[str] = METHODS,
    listener: Listener | None = None,
    deadline: float | None = None,
    replace: bool = False,
    changes: Sequence[str] = CHANGES,
    environment: dict[str, Any] = HERE,
) -> dict[str, Any]:
    """The family's results file after tuning in a folder."""
    experiment = catalog.load(family.experiment, changes, added=family.added)
    results = Results(folder / "results", family, experiment, replace=replace, methods=tuple(methods))
    session = Session(Store(folder / "runs"), CPU, listener or Silent(), deadline)
    for method in methods:
        tune(Grid(family, method, tuple(changes)), session, results, environment)
    return read_results(results.path)


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    """A results file without the seconds spent."""
    timeless = {name: {**entry, "spent": {}, "seconds": {}} for name, entry in found["methods"].items()}
    return {**found, "methods": timeless}


def results_in(
    folder: Path, family: Family, *methods: str, replace: bool = False, changes: Sequence[str] = (), **changed: Any
) -> Results:
    """The results file of a family, with other settings of its experiment."""
    experiment = catalog.load(family.experiment, changes, added=family.added).replace(**changed)
    return Results(folder, family, experiment, replace=replace, methods=methods)


def begun(family: Family, method: str, complete: bool = False, device: str = "cpu", **more: Any) -> dict[str, Any]:
    """A method's entry with one point, and with fresh seeds if it is complete. The ids are those of real runs."""
    tuned, grid, first = family.methods[method], Grid(family, method), Position(0, 0)
    lr, decay = grid.settings(first)
    runs = grid.tuning_runs(first, device)
    seeds = [SeedResult(run.seed, run.id, 9, 3, 1.0, 0.5, False).to_json() for run in runs]
    point = {"position": list(first), "lr": lr, "decay": decay, "third": ""}
    return {
        **rules_of(family, method),
        "title": tuned.title,
        "complete": complete,
        "searched": complete,
        "points": [{**point, "budget": grid.budget(validation=True), "seeds": seeds}],
        "best": {**point, "budget": grid.budget(validation=False), "passes": True},
        "fresh": {name: [{**seeds[0], "seed": 0, "id": "fresh"}] for name in family.experiments} if complete else {},
        "seconds": {},
        "beyond": 0,
        "inside": complete,
        "polar": grid.tiers(device),
        "spent": {"here": 1.0},
        "environment": HERE,
        **more,
    }
