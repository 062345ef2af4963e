"""Runs all jobs of `jobs.py` once, also when several pytest workers ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from jobs import JOBS, all_jobs
from worlds import together

Found = Mapping[int, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all pytest workers of this run share."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if own.name.startswith("popen-") else own) / "ranks"


@pytest.fixture(scope="session")
def found(shared: Path) -> Found:
    """What every rank found, by number of processes, rank and name of the job."""
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "lock"):
        if not (shared / "done").exists():
            for world in JOBS:
                together(all_jobs, shared, world)
            (shared / "done").touch()
    return {
        world: [torch.load(shared / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)] for world in JOBS
    }
