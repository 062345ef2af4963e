"""Results files of another tier are not continued."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuned_entries import begun, results_in, tuned

from egalitarian.lab.config import Run, SpecError
from egalitarian.lab.tuning.plan import Family, load_plan
from egalitarian.lab.tuning.points import Grid, Position


@pytest.fixture
def addition(addition: Family) -> Family:
    """With a polar factor of precision `auto`, as a user's plan may have it."""
    tuned = addition.methods["egd-sgd"]
    assert tuned.settings is not None
    settings = {**tuned.settings, "transform": [{"name": "polar"}]}
    return addition.replace(methods={**addition.methods, "egd-sgd": tuned.replace(settings=settings)})


def test_an_unfinished_entry_of_another_tier_is_not_continued(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("egd-sgd", begun(addition, "egd-sgd"))
    results_in(tmp_path, addition, "egd-sgd").refuse_other_runs("egd-sgd", "cpu")
    with pytest.raises(SpecError, match="must have egd-sgd's polar factor 'fast', got 'exact'; name another --out"):
        results_in(tmp_path, addition, "egd-sgd").refuse_other_runs("egd-sgd", "cuda")


def test_methods_without_a_polar_factor_are_continued_on_every_device(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", begun(addition, "sgd"))
    for device in ("cpu", "cuda"):
        results_in(tmp_path, addition, "sgd").refuse_other_runs("sgd", device)


def test_an_entry_has_its_tier(tmp_path: Path, family: Family) -> None:
    found = tuned(tmp_path, family)
    assert {name: entry["polar"] for name, entry in found["methods"].items()} == {"egd": "exact", "sgd": ""}


def test_the_fair_comparison_is_continued_on_every_device() -> None:
    for family in load_plan().values():
        for form in family.forms:
            on_cpu, on_gpu = Grid(family, form).stored_runs(Position(0, 0))
            assert [run.id for run in on_cpu] == [run.id for run in on_gpu]
            assert {tier(run) for run in on_cpu} == {"fast"}


def test_the_runs_of_a_grid_are_those_of_the_device(addition: Family) -> None:
    grid = Grid(addition, "egd-sgd")
    stored = grid.stored_runs(Position(0, 0))
    assert [list(map(tier, runs)) for runs in stored] == [["exact"] * 3, ["fast"] * 3]
    assert (grid.tiers("cpu"), grid.tiers("cuda"), Grid(addition, "sgd").tiers("cuda")) == ("exact", "fast", "")


def tier(run: Run) -> str:
    return ", ".join(run.method.tiers)
