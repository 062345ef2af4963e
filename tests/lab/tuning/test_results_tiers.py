"""Results files of another tier, or of version 1: read with a label, and not continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tuned_entries import begun, results_in, tuned

from egalitarian.lab.config import Run, SpecError
from egalitarian.lab.tuning.job import Job
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Grid
from egalitarian.lab.tuning.results import read_results
from egalitarian.lab.tuning.table import about


def of_version_1(family: Family, method: str, complete: bool) -> dict[str, Any]:
    """An entry as version 1 wrote it: other ids, and nothing about the polar factor."""
    entry = begun(family, method, complete)
    (point,) = entry["points"]
    runs = Grid(family, method).stored_runs(point["lr"], point["decay"])["version 1"]
    seeds = [{**seed, "id": run.id} for seed, run in zip(point["seeds"], runs, strict=True)]
    return {**entry, "points": [{**point, "seeds": seeds}]}


def test_a_whole_entry_of_version_1_is_kept_and_nothing_is_left_to_do(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("egd", of_version_1(addition, "egd", complete=True))
    results = results_in(tmp_path, addition, "egd")
    assert results.up_to_date("egd")
    assert results.finished
    before = results.path.read_bytes()
    job = Job([addition], ("egd",), (), tmp_path / "runs", tmp_path, torch.device("cpu"))
    assert job.requests(1, None, None, None) == []
    assert results.path.read_bytes() == before


@pytest.mark.parametrize(("device", "tier"), [("cpu", "exact"), ("cuda", "fast")])
def test_an_unfinished_entry_of_version_1_is_not_continued(
    device: str, tier: str, tmp_path: Path, addition: Family
) -> None:
    results_in(tmp_path, addition).put("egd", of_version_1(addition, "egd", complete=False))
    job = Job([addition], ("egd",), (), tmp_path / "runs", tmp_path, torch.device(device))
    said = rf"must have egd's polar factor '{tier}', got 'auto \(version 1\)'; .* --replace --method egd"
    with pytest.raises(SpecError, match=said):
        job.prepare()
    assert not (tmp_path / "runs").exists()
    Job([addition], ("sgd",), (), tmp_path / "runs", tmp_path, torch.device(device)).prepare()  # not asked for
    results_in(tmp_path, addition, "egd", replace=True).refuse_other_runs("egd", device)


def test_an_unfinished_entry_of_another_tier_is_not_continued(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("egd", begun(addition, "egd"))
    results_in(tmp_path, addition, "egd").refuse_other_runs("egd", "cpu")
    with pytest.raises(SpecError, match="must have egd's polar factor 'fast', got 'exact'; name another --out"):
        results_in(tmp_path, addition, "egd").refuse_other_runs("egd", "cuda")


def test_methods_without_a_polar_factor_are_continued_on_every_device(tmp_path: Path, addition: Family) -> None:
    results_in(tmp_path, addition).put("sgd", of_version_1(addition, "sgd", complete=False))
    for device in ("cpu", "cuda"):
        results_in(tmp_path, addition, "sgd").refuse_other_runs("sgd", device)


def test_an_entry_has_its_tier_and_older_ones_a_label(tmp_path: Path, family: Family) -> None:
    small = family.replace(moves=0)
    found = tuned(tmp_path, small)
    assert {name: entry["polar"] for name, entry in found["methods"].items()} == {"egd": "exact", "sgd": ""}
    assert "version 1" not in about(found)
    (path,) = (tmp_path / "results").glob("*.json")
    del found["methods"]["egd"]["polar"]
    path.write_text(json.dumps(found))
    label = "Tuned by version 1, with polar factors fast to 1e-2 on a GPU"
    assert f"{label}: EGD." in about(read_results(path))
    del found["methods"]["sgd"]["polar"]
    assert f"{label}: all methods." in about(found)


def test_the_runs_of_a_grid_are_those_of_the_device(addition: Family) -> None:
    grid = Grid(addition, "egd")
    stored = grid.stored_runs(*grid.settings((0, 0)))
    assert [list(map(tier, runs)) for runs in stored.values()] == [["exact"] * 3, ["fast"] * 3, ["auto"] * 3]
    assert (grid.tiers("cpu"), grid.tiers("cuda"), Grid(addition, "sgd").tiers("cuda")) == ("exact", "fast", "")


def tier(run: Run) -> str:
    return ", ".join(run.method.tiers)
