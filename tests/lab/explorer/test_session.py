"""All runs of a server: together or one after the other, never the same one twice, and none left at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egalitarian.lab.config import SpecError
from egalitarian.lab.explorer import session as sessions
from egalitarian.lab.explorer import watched
from egalitarian.lab.explorer.session import WatchedRuns
from egalitarian.lab.runs import Request

OBEYS = """
import json, sys
sys.stdin.readline()
print(json.dumps({"kind": "begins", "epoch": 0, "budget": 1, "threshold": 1, "points": []}), flush=True)
for line in sys.stdin:
    if json.loads(line)["do"] == "stop":
        print(json.dumps({"kind": "state", "state": "stopped"}), flush=True)
        break
"""
STUBBORN = OBEYS.replace("break", "import time; time.sleep(60)")


@pytest.fixture(autouse=True)
def trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "TRAINER", (sys.executable, "-c", OBEYS))


def requests(*methods: str, seed: int = 0) -> list[Request]:
    return [Request("addition-97", method, (seed,), "cpu", 1, Path("runs")) for method in methods]


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_together_all_train_at_once() -> None:
    session = WatchedRuns()
    session.start(requests("egd", "sgd"), together=True)
    wait(lambda: all(run.state == "running" for run in session.runs))
    session.close()
    wait(lambda: all(run.state == "stopped" for run in session.runs))


def test_otherwise_one_waits_for_the_other() -> None:
    session = WatchedRuns()
    session.start(requests("egd", "sgd"), together=False)
    first, second = session.runs
    wait(lambda: first.state == "running")
    assert second.state == "waiting"
    first.stop()
    wait(lambda: second.state == "running")
    session.close()
    wait(lambda: second.ended)


def test_the_same_run_is_not_trained_twice() -> None:
    session = WatchedRuns()
    session.start(requests("egd"), together=True)
    with pytest.raises(SpecError, match="must not be training already"):
        session.start(requests("sgd", "egd"), together=True)
    assert len(session.runs) == 1
    session.start(requests("egd", seed=1), together=True)
    session.close()


def test_a_stopped_run_starts_again_in_its_place() -> None:
    session = WatchedRuns()
    session.start(requests("egd", "sgd"), together=True)
    wait(lambda: all(run.state == "running" for run in session.runs))
    first, second = session.runs
    for run in (first, second):
        run.stop()
        wait(lambda run=run: run.ended)  # type: ignore[misc]
    session.again(first)
    wait(lambda: session.runs[0].state == "running")
    assert session.runs[0].request is first.request
    session.remove(second)
    session.remove(session.runs[0])  # it trains: it stays
    assert len(session.runs) == 1
    session.close()


def test_a_trainer_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "TRAINER", (sys.executable, "-c", STUBBORN))
    monkeypatch.setattr(sessions, "PATIENCE", 0.5)
    session = WatchedRuns()
    session.start(requests("egd", "sgd"), together=True)
    wait(lambda: all(run.state == "running" for run in session.runs))
    began = time.monotonic()
    session.close()
    assert time.monotonic() - began < 5
    assert all(run.wait(0) for run in session.runs)
    session.start(requests("row-norm"), together=False)  # after the end nothing begins
    assert session.runs[-1].state == "waiting"


def test_paths_of_one_start_share_a_plane_that_does_not_flip() -> None:
    session = WatchedRuns()
    session.start(requests("egd", "sgd"), together=True)
    session.start(requests("egd", seed=1), together=True)
    first, second, other = session.runs
    assert session.plane() is None
    random = np.random.default_rng(0)
    ways: dict[Any, Any] = {run: random.standard_normal((40, 8)).cumsum(0) for run in (first, second)}
    before: Any = None
    for step in range(2, 40):
        for run, way in ways.items():
            run.path = list(enumerate(way[:step]))
            run.measured = step
        found = session.plane()
        assert found is not None
        shown, plane = found
        assert shown == [first, second]  # the other one starts elsewhere
        points = plane.trajectories[str(first.key)].points
        if before is not None:
            assert ((points[: len(before)] * before).sum(0) >= 0).all()
        before = points
    other.path = [(0, np.ones(8))]
    assert session.plane() is not None
    session.close()
