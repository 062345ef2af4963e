"""A tiny tuning plan, a family tuned in a folder, and entries of results files as a tuning would write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small import CPU, GROKS, PARITY

from egalitarian.lab.config import catalog
from egalitarian.lab.runs import Listener, Silent, Store
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Grid, SeedResult
from egalitarian.lab.tuning.results import Results, read_results, rules_of
from egalitarian.lab.tuning.trials import Session, tune

HERE = {"hardware": "a machine", "when": "2026-11-15"}
CHANGES = (*PARITY, *GROKS[:-1], "measure.threshold=0.9", "measure.past=3", "epochs=9")
METHODS = ("egd", "sgd")
TINY = """
[all]
size = 3
moves = 1
lr_factor = 3.0
decay_factor = 3.0
cut = 2.0
validation = 0.5
tuning_seeds = [6, 7]
fresh_seeds = [0, 1]

[families.tiny]
experiment = "parity-2"
plain = "sgd"
budget = 9

[families.tiny.methods.egd]
title = "EGD"
lr = { key = "optim.lr", centre = 0.1 }
decay = { key = "optim.weight_decay", centre = 1e-3 }
expected = 5
ms_per_epoch = 1.0

[families.tiny.methods.sgd]
title = "SGD"
lr = { key = "optim.lr", centre = 0.3 }
decay = { key = "optim.weight_decay", centre = 1e-3 }
expected = 9
ms_per_epoch = 1.0
"""


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
    experiment = catalog.load(family.experiment, changes)
    results = Results(folder / "results", family, experiment, replace=replace, methods=tuple(methods))
    session = Session(Store(folder / "runs"), CPU, listener or Silent(), deadline)
    for method in methods:
        tune(Grid(family, method, tuple(changes)), session, results, environment)
    return read_results(results.path)


def without_time(found: dict[str, Any]) -> dict[str, Any]:
    """A results file without the seconds spent."""
    return {**found, "methods": {name: {**entry, "spent": {}} for name, entry in found["methods"].items()}}


def results_in(folder: Path, family: Family, *methods: str, replace: bool = False, **changed: Any) -> Results:
    """The results file of a family of the lab's plan, with other settings of its experiment."""
    experiment = catalog.load(family.experiment, added=family.added).replace(**changed)
    return Results(folder, family, experiment, replace=replace, methods=methods)


def begun(family: Family, method: str, complete: bool = False, **more: Any) -> dict[str, Any]:
    """A method's entry with one point, and with fresh seeds if it is complete. The ids are those of real runs."""
    tuned, grid = family.methods[method], Grid(family, method)
    lr, decay = tuned.lr.centre, tuned.decay.centre
    runs = grid.tuning_runs(lr, decay, "cpu")
    seeds = [SeedResult(run.seed, run.id, 9, 3, 1.0, 0.5, False).to_json() for run in runs]
    point = {"place": [0, 0], "lr": lr, "decay": decay}
    return {
        **rules_of(family),
        "title": tuned.title,
        "complete": complete,
        "points": [{**point, "budget": family.budget, "seeds": seeds}],
        "best": {**point, "budget": grid.untuned.epochs, "passes": True},
        "fresh": [{**seed, "seed": 0, "id": "fresh"} for seed in seeds] if complete else [],
        "windows": [],
        "inside": True,
        "spent": {"here": 1.0},
        "environment": HERE,
        **more,
    }
