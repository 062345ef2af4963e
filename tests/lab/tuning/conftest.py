"""Families of the tests, and the runs that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tuned_entries import TINY

from egalitarian.lab.runs import Progress, Silent
from egalitarian.lab.tuning import trials
from egalitarian.lab.tuning.plan import Family, load_plan


@pytest.fixture
def family(tmp_path: Path) -> Family:
    (tmp_path / "plan.toml").write_text(TINY)
    return load_plan(tmp_path / "plan.toml")["tiny"]


@pytest.fixture
def addition() -> Family:
    return load_plan()["addition"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of runs that are trained from now on."""
    begun: list[str] = []
    sweep = trials.sweep

    class Notes(Silent):
        def begins(self, runs: Sequence[Progress], stop: Any) -> None:
            begun.extend(run.run.id for run in runs)

    monkeypatch.setattr(trials, "sweep", lambda *args, **more: sweep(*args, **{**more, "listener": Notes()}))
    return begun
