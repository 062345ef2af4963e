"""Entries of tuned files, as a tuning would write them."""

from __future__ import annotations

from typing import Any

from egalitarian.lab.config import catalog
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Outcome
from egalitarian.lab.tuning.results import rules_of
from egalitarian.lab.tuning.trials import tuning_runs

HERE = {"hardware": "a machine", "when": "2026-11-15"}


def begun(family: Family, method: str, complete: bool = False, **more: Any) -> dict[str, Any]:
    """A method's entry with one point, and with the fresh seeds where it is complete: of runs as they would be named."""
    tuned, budget = family.methods[method], catalog.load(family.experiment, added=family.added).method(method).epochs
    lr, decay = tuned.lr.centre, tuned.decay.centre
    seeds = [Outcome(run.seed, run.id, 9, 3, 1.0, 0.5, False).plain() for run in tuning_runs(family, method, (), lr, decay)]
    place = {"place": [0, 0], "lr": lr, "decay": decay}
    return {
        **rules_of(family),
        "title": tuned.title,
        "complete": complete,
        "points": [{**place, "budget": family.budget, "seeds": seeds}],
        "best": {**place, "budget": budget, "passes": True},
        "fresh": [{**seed, "seed": 0, "id": "fresh"} for seed in seeds] if complete else [],
        "windows": [],
        "inside": True,
        "spent": {"here": 1.0},
        "environment": HERE,
        **more,
    }
