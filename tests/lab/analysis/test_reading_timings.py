"""Training time: sessions, platforms, the cost of an epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_records import as_earlier, write_run

from egalitarian.lab.analysis import estimate, gather
from egalitarian.lab.analysis.reading import TrainingSession, busy_seconds, sessions_of
from egalitarian.lab.analysis.statistics import cost_of, seconds_to_threshold
from egalitarian.lab.runs import Store, TimeSpent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_how_the_polar_factor_was_taken_is_read_over_all_sessions(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 29, polar="exact"))
    with (stored.folder / "environment.jsonl").open("a") as file:
        file.write(json.dumps({**stored.environments[0], "polar": "fast", "epoch": 30}) + "\n")
    write_run(store, "addition-97", "egd", 1, 29)
    first, second = gather(store).runs
    assert first.platform is not None
    assert second.platform is not None
    assert (first.platform.polar, second.platform.polar) == ("exact, fast", "")


def test_times_are_one_seeds_share_without_measuring(store: Store) -> None:
    write_run(store, "addition-97", "egd", 0, 29, ms=3.0, together=4)
    runs = gather(store).of("addition-97", "egd")
    assert runs[0].platform is not None
    assert runs[0].platform.ms_per_epoch == pytest.approx(3.0, rel=0.05)
    assert runs[0].platform.measuring_ms_per_epoch == pytest.approx(1.5, rel=0.05)
    cost = cost_of(runs)
    assert cost is not None
    assert cost.platform == "NVIDIA H200, 4 seeds side by side"
    seconds = seconds_to_threshold(estimate(runs), cost)
    assert seconds is not None
    assert seconds.value == pytest.approx(30 * cost.ms_per_epoch / 1000)


def test_times_of_a_run_in_two_sessions_are_those_of_the_longer(store: Store) -> None:
    stored = as_earlier(write_run(store, "addition-97", "egd", 0, 29, ms=3.0))
    about = stored.environments[0]
    later = {**about, "hardware": "a slow one", "device": "cpu", "threads": 2, "epoch": 30, "seeds": 1}
    with (stored.folder / "environment.jsonl").open("a") as file:
        file.write(json.dumps(later) + "\n")
    (run,) = gather(store).runs
    assert run.platform is not None
    assert run.platform.hardware == "NVIDIA H200"


def test_a_run_in_several_sessions_counts_each_from_its_own_start() -> None:
    def at(second: int, epoch: int) -> dict[str, Any]:
        return {"when": f"2026-01-02T03:00:{second:02}+00:00", "device": "cuda", "epoch": epoch}

    def epochs(*numbers: int) -> list[dict[str, Any]]:
        return [{"epoch": number, "training": 0.75, "measuring": 0.25, "seeds": 8} for number in numbers]

    def sessions(environments: list[dict[str, Any]], timings: list[dict[str, Any]]) -> tuple[TrainingSession, ...]:
        return sessions_of(environments, TimeSpent.of(environments, timings))

    def lengths(*sessions: TrainingSession) -> list[tuple[float, float]]:
        return [(session.begin - sessions[0].begin, session.end - session.begin) for session in sessions]

    assert lengths(*sessions([at(0, 0)], epochs(0, 1, 2))) == [(0, 3)]
    again = sessions([at(0, 0), at(20, 2)], epochs(0, 1, 2, 3, 2, 3, 4))  # killed at 4, its checkpoint was of 2
    assert lengths(*again) == [(0, 4), (20, 3)]
    assert lengths(*sessions([at(0, 0), at(20, 3)], epochs(0, 1, 2, 3))) == [(0, 3), (20, 1)]
    assert lengths(*sessions([at(0, 0), at(20, 3), at(30, 3)], epochs(0, 1, 2, 3))) == [(0, 3), (30, 1)]
    assert sessions([at(0, 0)], []) == sessions([], []) == ()


def test_the_time_of_many_is_that_of_their_union() -> None:
    def seconds(*spans: tuple[float, float], device: str = "cuda") -> float:
        return busy_seconds(TrainingSession(device, *span) for span in spans).get(device, 0.0)

    assert seconds() == 0
    assert seconds((0, 3), (5, 6)) == 4
    assert seconds((0, 3), (1, 2), (0, 3), (2, 5)) == 5
    assert seconds((4, 6), (0, 9), (8, 10), (20, 21)) == 11
    assert busy_seconds([TrainingSession("cuda", 0, 3), TrainingSession("cpu", 1, 2)]) == {"cuda": 3, "cpu": 1}
