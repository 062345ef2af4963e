"""A run as the page sees it: states, ends with a way out, and settings that may change."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from egalitarian.lab.config import SpecError, encode
from egalitarian.lab.explorer import watched
from egalitarian.lab.explorer.watched import Watched
from egalitarian.lab.runs import Request

BEGINS = {"kind": "begins", "epoch": 0, "budget": 30, "threshold": 0.95, "points": []}
SAYS = "import json, sys, time; sys.stdin.readline(); print(json.dumps({line!r}), flush=True); {then}"


def run(**more: Any) -> Watched:
    return Watched(Request("addition-97", "egd", (0,), "cpu", 1, Path("runs"), **more))


def ended(monkeypatch: pytest.MonkeyPatch, then: str, line: dict[str, Any] = BEGINS) -> Watched:
    """A run whose process says one thing, and then does this."""
    monkeypatch.setattr(watched, "TRAINER", (sys.executable, "-c", SAYS.format(line=line, then=then)))
    one = run()
    one.start()
    deadline = time.monotonic() + 20
    while not one.ended and time.monotonic() < deadline:
        time.sleep(0.02)
    return one


def test_a_killed_trainer_is_reported_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ended(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    assert one.state == "killed"
    assert "was killed (SIGKILL); often the machine's memory is full" in one.text
    assert "start again to resume there" in one.text
    other = ended(monkeypatch, f"import os; os.kill(os.getpid(), {int(signal.SIGTERM)})")
    assert "was killed (SIGTERM). Everything up to its last checkpoint" in other.text


def test_a_trainer_that_fails_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ended(monkeypatch, "raise RuntimeError('no luck')")
    assert one.state == "failed"
    assert "ended with status 1: RuntimeError: no luck. Start again" in one.text


def test_a_trainer_that_ends_without_a_word_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ended with status 0: it said nothing" in ended(monkeypatch, "pass").text


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ({"kind": "ends", "text": "passed"}, "finished"),
        ({"kind": "error", "text": "width must be >= 1"}, "failed"),
        ({"kind": "state", "state": "stopped"}, "stopped"),
    ],
)
def test_what_a_trainer_says_of_its_end_counts_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch, message: dict[str, Any], state: str
) -> None:
    one = ended(monkeypatch, "time.sleep(0.2); sys.exit(2)", message)
    assert one.state == state
    assert one.pid is not None
    assert message.get("text", "") in one.text


def test_a_machine_without_room_for_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "TRAINER", ("/nowhere/python",))
    one = run()
    one.start()
    assert one.state == "failed"
    assert "start another process" in one.text


def test_messages_become_states_and_numbers() -> None:
    one = run()
    one.take({**BEGINS, "points": [[0, 0.1, 0.2]]})
    assert (one.state, one.budget, one.threshold) == ("running", 30, 0.95)
    one.take({"kind": "epochs", "points": [[1, 0.3, 0.4], [2, None, 0.5]]})
    assert one.curve.points == [(0, 0.1, 0.2), (1, 0.3, 0.4), (2, None, 0.5)]
    one.take({"kind": "state", "state": "paused"})
    assert one.state == "paused"
    sketch = encode([1.0, 2.0])
    one.take({"kind": "measures", "epoch": 2, "singular_values": [[1, 0.5]], "fourier": None, "sketch": sketch})
    assert (one.singular_values, one.fourier, [epoch for epoch, _ in one.path]) == ([[1, 0.5]], [], [2])
    for epoch in range(3, 500):
        one.take({"kind": "measures", "epoch": epoch, "singular_values": None, "fourier": [0.5, 0.5], "sketch": sketch})
    assert len(one.path) <= watched.MOST_STEPS
    assert one.path[-1][0] == 499


def test_settings_may_change_while_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    one = run(values={"optim.lr": 2.0})
    monkeypatch.setattr(one, "_send", sent.append)
    with pytest.raises(SpecError, match="run must be training"):
        one.change({"optim.lr": 1.0})
    one.take(BEGINS)
    for values, message in (
        ({"optim.lr": -1.0}, "lr must be > 0, got -1"),
        ({"optim.lr": None}, "lr must be a finite number, got None"),
        ({"optim.lr": 2.0}, "must differ from those of now"),
        ({"transform": []}, "until must be absent without a transform"),
    ):
        with pytest.raises(SpecError, match=message):
            one.change(values)
    assert sent == []
    one.change({"transform": [], "until": None})
    assert sent == [{"do": "change", "values": {"transform": [], "until": None}}]
    one.take({"kind": "recording", "path": "a.recording.jsonl", "epoch": 4, "values": sent[0]["values"]})
    assert one.recording == "a.recording.jsonl"
    assert one.method.transform == ()
    assert one.method.optim.lr == 2.0


def test_a_second_stop_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "TRAINER", (sys.executable, "-c", SAYS.format(line=BEGINS, then="time.sleep(60)")))
    one = run()
    one.start()
    deadline = time.monotonic() + 20
    while one.state != "running" and time.monotonic() < deadline:
        time.sleep(0.02)
    one.stop()
    assert one.state == "stopping"
    one.stop()
    assert one.wait(5)
    while not one.ended and time.monotonic() < deadline:
        time.sleep(0.02)
    assert one.state == "stopped"
    assert "resume at its last checkpoint" in one.text
