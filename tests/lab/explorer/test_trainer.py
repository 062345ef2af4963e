"""The process that trains: it stores what `egalitarian run` stores, obeys, and records changed settings."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from small import CHAINS, small, together

from egalitarian.lab.config import load
from egalitarian.lab.executors import process_environment
from egalitarian.lab.explorer.trainer import LiveMeter, carried
from egalitarian.lab.explorer.watched import TRAINER
from egalitarian.lab.problems import Task
from egalitarian.lab.runs import Request, Store, restore, states_of, train_requests
from egalitarian.lab.runs.outcome import Silent
from egalitarian.lab.training import FullMeter, train

VALUES = {"task.modulus": 7, "model.width": 16, "training.batch": 8, "measure.threshold": 1}


def request(runs: Path, **more: Any) -> Request:
    return Request("addition-97", "egd", (0,), "cpu", 1, runs, **{"values": VALUES, "epochs": 30, **more})


def trained(asked: Request, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a trainer that finds these commands when it begins."""
    lines = [asked.to_json(), *commands]
    done = subprocess.run(
        TRAINER,
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        env=process_environment(0),
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class Collected:
    """An outlet that keeps what it is offered."""

    def __init__(self) -> None:
        self.offered: list[dict[str, Any]] = []

    def offer(self, **measures: Any) -> None:
        self.offered.append(measures)


def records(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.rglob("records.jsonl"))]


def test_a_trainer_without_a_page_stops_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Its input has ended: nobody watches. It stops after an epoch."""
    messages = trained(request(tmp_path, epochs=100_000))
    assert messages[0]["kind"] == "begins"
    assert [each for each in messages if each["kind"] == "state"][-1]["state"] == "stopped"
    assert len(list(tmp_path.glob("addition-97/egd/seed-0-*"))) == 1


def test_a_stop_is_stored_and_resumed_with_the_same_bytes(tmp_path: Path) -> None:
    trained(request(tmp_path / "live"), {"do": "stop"})
    train_requests([request(tmp_path / "live")], Silent())
    train_requests([request(tmp_path / "plain")], Silent())
    assert records(tmp_path / "live") == records(tmp_path / "plain")


def test_a_mistake_is_a_message_with_the_labs_words(tmp_path: Path) -> None:
    (message,) = trained(request(tmp_path, values={**VALUES, "training.batch": 1000}))
    assert message["kind"] == "error"
    assert "training.batch must be at most" in message["text"]


def test_a_look_at_the_weights_changes_no_record() -> None:
    found = []
    collected: Any = Collected()
    for live in (False, True):
        experiment = small()
        ensemble, stepper = together(experiment, "egd", [0])
        meter: Any = FullMeter(ensemble, stepper, "snapshots")
        assert isinstance(experiment.task, Task)
        if live:
            meter = LiveMeter(meter, ensemble, collected, experiment.task)
            meter._next = -1e9
        rows = []
        for epoch in train(ensemble, stepper, meter=meter):
            if live:
                meter._next = -1e9  # at every epoch
            rows.append(epoch.records)
            if epoch.number == 12:
                break
        found.append(rows)
    assert json.dumps(found[0]) == json.dumps(found[1])
    assert [each["epoch"] for each in collected.offered] == list(range(13))
    assert all(len(each["fourier"]) == 3 for each in collected.offered)
    assert all(abs(sum(each["fourier"]) - 1) < 1e-2 for each in collected.offered)
    values = [value for _, value in collected.offered[-1]["singular_values"]]
    assert values == sorted(values, reverse=True)


def test_looks_are_rarer_where_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a fiftieth of the time goes into them."""
    ensemble, stepper = together(small(), "egd", [0])
    task: Any = small().task
    collected: Any = Collected()
    meter = LiveMeter(FullMeter(ensemble, stepper), ensemble, collected, task)
    now = 100.0
    clock = iter(float(number) for number in range(1000))
    monkeypatch.setattr("egalitarian.lab.explorer.trainer.time.monotonic", lambda: now)
    monkeypatch.setattr("egalitarian.lab.explorer.trainer.time.perf_counter", lambda: next(clock))
    assert meter.wants_gradient(0)
    ensemble.backward(ensemble.epoch(0)[0])
    meter.take_gradient(stepper.gradient)
    meter.measure(0)
    assert len(collected.offered) == 1
    now += 99  # two looks took two of these seconds
    meter.wants_gradient(1)
    meter.measure(1)
    assert len(collected.offered) == 1
    now += 2
    meter.wants_gradient(2)
    meter.measure(2)
    assert len(collected.offered) == 2


CHANGES: list[dict[str, Any]] = [
    {"optim.lr": 0.01},
    {"optim.weight_decay": 0.5},
    {"transform": [], "until": None},
    {"optim.optimizer": "adam"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("first", [{}, {"optim.momentum": 0.9}, *({"chain": name} for name in CHAINS)], ids=str)
def test_a_state_goes_on_under_changed_settings(change: dict[str, Any], first: dict[str, Any]) -> None:
    """Weights and the count stay. What belongs to a kind that changed begins anew, and training goes on."""
    added = [CHAINS[first["chain"]]] if "chain" in first else [f"{key}={value}" for key, value in first.items()]
    experiment = small("addition-97", *added, methods=("egd",))
    ensemble, stepper = together(experiment, "egd", [0])
    for epoch in train(ensemble, stepper):
        if epoch.number == 3:
            break
    saved = states_of(ensemble, stepper)[0]
    values = {**VALUES, "task.modulus": 7, **({} if "optim.optimizer" not in change else {"optim.momentum": 0.0}), **change}
    for text in added:
        key, _, _ = text.partition("=")
        if key == "transform" and "transform" not in change:
            values["transform"] = tomllib.loads(text)["transform"]
            for link in values["transform"]:
                link.update({"rank": 5} if link["name"] == "lowrank-polar" else {})
        elif key != "transform" and "optim.optimizer" not in change:
            values[key] = value_of(text)
    changed = load("addition-97", methods=["egd"], values=values)
    again, other = together(changed, "egd", [0])
    restore(again, other, [carried(saved, other.states()[0], experiment.method("egd"), changed.method("egd"))])
    assert other.count == stepper.count
    assert all(torch.equal(again.parameters[name], tensor) for name, tensor in ensemble.parameters.items())
    before = {name: tensor.detach().clone() for name, tensor in again.parameters.items()}
    for epoch in train(again, other, 4):
        if epoch.number == 5:
            break
    assert any(not torch.equal(again.parameters[name], tensor) for name, tensor in before.items())


def value_of(text: str) -> Any:
    return next(iter(tomllib.loads(text.replace(".", "_", 1)).values()))


def test_without_a_change_the_state_is_the_same() -> None:
    ensemble, stepper = together(small(), "egd", [0])
    for _ in train(ensemble, stepper):
        break
    saved, method = states_of(ensemble, stepper)[0], small().method("egd")
    assert carried(saved, {}, method, method).keys() == saved.keys()


def test_a_change_makes_a_recording_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    changes = [{"do": "change", "values": {"optim.lr": 0.01}}, {"do": "change", "values": {"transform": [], "until": None}}]
    messages = trained(request(tmp_path, epochs=100_000), *changes)
    begun = [message for message in messages if message["kind"] == "recording"]
    assert [message["values"] for message in begun] == [change["values"] for change in changes]
    (path,) = (tmp_path / "recordings").glob("*.recording.jsonl")
    assert str(path) == begun[0]["path"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["method"] == "egd"
    epochs = [line["epoch"] for line in lines[1:] if "change" not in line]
    assert epochs == list(range(len(epochs)))
    changed = [(line["epoch"], line["change"]) for line in lines if "change" in line]
    assert changed == [(message["epoch"], message["values"]) for message in begun]
    (stored,) = Store(tmp_path).all()
    assert [record["epoch"] for record in stored.epochs()] == list(range(begun[0]["epoch"]))
    train_requests([request(tmp_path)], Silent())  # the run itself goes on with its own settings
    train_requests([request(tmp_path / "plain")], Silent())
    assert records(tmp_path / "addition-97") == records(tmp_path / "plain")
