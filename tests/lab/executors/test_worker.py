"""Requests as JSON: a worker gets equal values, and carries out what it reads, without the command line."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law, small

from egalitarian.lab.config import Run, SpecError, changed_values
from egalitarian.lab.executors import STOPPED, WORKER, Lines, request_json, worker
from egalitarian.lab.runs import Interrupted, Outcome, Progress, Request, Stop
from egalitarian.lab.runs.files import Held, acquire

VALUES = {"task.modulus": 7, "model.width": 8, "training.batch": 8, "optim.lr": 0.1 + 0.2, "training.drop_last": True}
SMALL = Request("addition-97", "sgd", (0, 1), "cpu", 1, Path("runs"), values=VALUES, epochs=2)
texts = st.text(max_size=20)
plain = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), texts, st.lists(st.floats(allow_nan=False)))


def there_and_back(request: Request) -> Any:
    return worker.read_request(json.loads(request_json(request)))


@law
@given(
    experiment=texts,
    seeds=st.lists(st.integers(0, 10**9), min_size=1),
    values=st.dictionaries(texts, plain),
    epochs=st.none() | st.integers(1),
    final=st.booleans(),
    data=st.none() | st.just(Path("data sets")),
)
def test_what_is_sent_arrives(experiment: str, seeds: list[int], values: dict[str, Any], **more: Any) -> None:
    request = Request(experiment, "egd", tuple(seeds), "cuda:1", 2, Path("a b/runs"), values=values, **more)
    assert there_and_back(request) == request


def test_numbers_are_sent_as_numbers() -> None:
    arrived = there_and_back(SMALL).values
    assert arrived == VALUES
    assert [type(value) for value in arrived.values()] == [type(value) for value in VALUES.values()]


def test_a_request_loads_what_the_command_line_would() -> None:
    changes = ["task.modulus=7", "optim.lr=0.25", "methods.sgd.optim.lr=0.5", "model.width=8", "optim.lr=0.75"]
    request = Request("addition-97", "sgd", (0,), "cpu", 1, Path("runs"), values=changed_values(changes))
    assert list(request.values) == ["task.modulus", "methods.sgd.optim.lr", "model.width", "optim.lr"]
    method = request.loaded.method("sgd")
    assert method.optim.lr == 0.75  # the last change counts
    assert (request.loaded.task.modulus, request.name) == (7, "addition-97 sgd")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", worker.KINDS)
def test_every_kind_is_a_class_that_names_itself(kind: str) -> None:
    module, _, name = worker.KINDS[kind].partition(":")
    found = getattr(importlib.import_module(module), name)
    assert found.kind == kind
    assert all(callable(getattr(found, method)) for method in ("to_json", "from_json", "carry_out"))


def run_worker(folder: Path) -> subprocess.CompletedProcess[str]:
    request = dataclasses.replace(SMALL, runs=folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(WORKER, input=request_json(request), capture_output=True, text=True, env=environment)


def test_a_worker_carries_out_what_it_reads(tmp_path: Path) -> None:
    done = run_worker(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("addition-97 sgd: 2 seeds, up to 2 epochs\n")
    assert len(list(tmp_path.rglob("records.jsonl"))) == 2
    again = run_worker(tmp_path)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "addition-97 sgd: 2 seeds already stored")


PARENT = """
import os, signal, subprocess, sys
with open("request") as request:
    worker = subprocess.Popen(sys.argv[1:], stdin=request, stdout=subprocess.PIPE, start_new_session=True)
worker.stdout.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_stops_when_its_parent_was_killed(tmp_path: Path) -> None:
    request = dataclasses.replace(SMALL, runs=tmp_path, seeds=(0,), epochs=10**9)
    (tmp_path / "request").write_text(request_json(request))
    command = [sys.executable, "-c", PARENT, *WORKER]
    started = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert started.returncode == -signal.SIGKILL
    (lock,) = tmp_path.rglob("lock")
    deadline = time.monotonic() + 4  # an epoch takes milliseconds; without a reader, its next line is 5 s away
    while True:
        try:
            acquire(lock).release()
            break
        except Held:
            assert time.monotonic() < deadline, "the worker still trains"
            time.sleep(0.05)
    (checkpoint,) = tmp_path.rglob("checkpoint-*")
    assert checkpoint.name != "checkpoint-0.safetensors", "it stored what it had"


def test_a_workers_mistakes_are_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error, status, text in (
        (SpecError("optim.lr must be > 0, got 0; raise it"), 2, "egalitarian: optim.lr must be > 0, got 0; raise it\n"),
        (Interrupted(), STOPPED, ""),
        (KeyboardInterrupt(), STOPPED, "Stopped at once. The last checkpoint is stored.\n"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(request_json(SMALL)))
        with patch.object(Request, "carry_out", side_effect=error):
            assert worker.main() == status
        assert capsys.readouterr().err == text


WRITTEN = json.loads(request_json(SMALL))
MALFORMED = {
    "": "request must be JSON, got a text that is not: Expecting value",
    "[" * 100_000: "request must be JSON, got a text that is not: maximum recursion depth",
    "null": "request must be an object of a kind among train, tune, shared, got NoneType without a kind",
    "{}": "request must be an object of a kind among train, tune, shared, got the kind None",
    '{"kind": ["train"]}': "request must be an object of a kind among train, tune, shared, got the kind ['train']",
    '{"kind": "rtain"}': "request must be an object of a kind among train, tune, shared, got the kind 'rtain'",
    '{"kind": "tune"}': "request must have the fields family, method, ",
}
WRONG: list[tuple[str, Any, str]] = [
    ("colour", 1, "request must have the fields experiment, "),
    ("preloaded", None, "request must have the fields experiment, "),
    ("experiment", None, "experiment of a request must be str, got None"),
    ("seeds", "01", "seeds of a request must be tuple[int, ...], got '01'"),
    ("seeds", [True], "seeds of a request must be tuple[int, ...], got [True]"),
    ("seeds", [0.5], "seeds of a request must be tuple[int, ...], got [0.5]"),
    ("seeds", [], "seeds must be at least one number from 0, got []"),
    ("seeds", [-1], "seeds must be at least one number from 0, got [-1]"),
    ("runs", None, "runs of a request must be Path, got None"),
    ("values", [], "values of a request must be Mapping[str, Any], got []"),
    ("epochs", 2.5, "epochs of a request must be int | None, got 2.5"),
    ("epochs", 0, "epochs must be at least 1, got 0"),
    ("past", -1, "past must be at least 0, got -1"),
    ("final", 1, "final of a request must be bool, got 1"),
    ("threads", "1", "threads of a request must be int, got '1'"),
    ("threads", 0, "threads must be at least 1, got 0"),
    ("device", "", "--device must be auto, cpu, cuda or cuda:N, got ''"),
    ("device", "meta", "--device must be auto, cpu, cuda or cuda:N, got 'meta'"),
    ("data", 3, "data of a request must be Path | None, got 3"),
]


@pytest.mark.parametrize(
    ("text", "said"), [*MALFORMED.items(), *((json.dumps({**WRITTEN, key: value}), said) for key, value, said in WRONG)]
)
def test_a_malformed_request_is_a_message(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert worker.main() == 2
    caught = capsys.readouterr()
    assert (caught.out, caught.err.startswith(f"egalitarian: {said}")) == ("", True), caught.err
    assert "; " in caught.err.partition(", got ")[2]
    assert not list(tmp_path.iterdir()), "nothing is trained"


@pytest.mark.parametrize("field", WRITTEN)
def test_a_request_lacks_no_field(field: str) -> None:
    with pytest.raises(SpecError, match=r"^request must "):
        worker.read_request({key: value for key, value in WRITTEN.items() if key != field})


def test_lines_report_what_happens() -> None:
    run, stop, written = Run(small(), "sgd", 3), Stop(0.5, 9, 1), []
    lines, progress = Lines(written.append), Progress(run, Outcome(0.5))
    lines.begins([progress], stop)
    for epoch, accuracy in enumerate((0.25, 0.75)):
        record = {"epoch": epoch, "train_loss": 0.1, "train_accuracy": 0.5, "test_accuracy": accuracy}
        progress.take(record)
        lines.epoch([progress], [[record]])  # too soon after the first line
    lines.ends([progress])
    lines.stored([progress], stop)
    lines.note("half as many")
    ended = "  seed 3: passed 50% at epoch 1, with 75.0%"
    assert written == [
        "addition-97 sgd: 1 seed, up to 9 epochs",
        ended,
        "addition-97 sgd: 1 seed already stored",
        ended,
        "  half as many",
    ]


def test_a_status_is_not_repeated_within_seconds() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    for text in ("first", "second"):
        lines.status(text)
    with patch("egalitarian.lab.executors.local.EVERY", -1.0):
        lines.status("third")
    assert written == ["first", "third"]
