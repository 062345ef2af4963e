"""Durations in `egalitarian list`: they are those of the stored runs, and every name is an experiment's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from egalitarian.lab import config
from egalitarian.lab.console.tables import about, load_durations

ROOT = Path(__file__).parents[3]
NAMES = (*config.names(), *config.beyond())


def test_the_gpus_seconds_are_those_of_the_stored_runs() -> None:
    found = importlib.util.spec_from_file_location("durations_script", ROOT / "benchmarks" / "durations.py")
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    durations = load_durations()
    assert set(durations.seconds) <= set(NAMES)
    assert {name: durations.of(name).gpu for name in NAMES} == {name: script.on_gpu(config.load(name)) for name in NAMES}


def test_what_is_measured_is_measured_on_a_cpu_too() -> None:
    durations = load_durations()
    assert all(took.cpu is not None for took in durations.seconds.values())
    assert durations.cpu.hardware
    assert durations.cpu.date


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"),
        (4.4, "4 s"),
        (44, "40 s"),
        (58, "1 min"),
        (116, "2 min"),
        (2100, "40 min"),
        (3400, "1 h"),
        (3900, "1 h"),
        (36000, "10 h"),
        (180000, "2 days"),
    ],
)
def test_a_duration_is_told_to_one_digit(seconds: float | None, said: str) -> None:
    assert about(seconds) == said
