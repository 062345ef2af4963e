"""Requests: what evidence has complete is not trained, and what it has cut short is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from compared import SMALL

from egalitarian.lab.config import Run, changed_values
from egalitarian.lab.runs import Request, Silent, Store, pack, stored_progress, train_requests, unfinished

VALUES = changed_values(SMALL[1::2])


def a_request(root: Path, seeds: tuple[int, ...] = (0, 1, 2), epochs: int = 6, **more: object) -> Request:
    return Request("addition-97", "sgd", seeds, "cpu", 1, root / "runs", VALUES, epochs=epochs, **more)  # type: ignore[arg-type]


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """Seeds 0 and 1 of six epochs, seed 2 of four; the runs themselves are gone."""
    train_requests([a_request(tmp_path, (0, 1))], Silent())
    train_requests([a_request(tmp_path, (2,), epochs=4)], Silent())
    assert pack(Store(tmp_path / "runs"), tmp_path / "evidence", everything=True).errors == []
    shutil.rmtree(tmp_path / "runs")
    return tmp_path / "evidence"


def test_only_what_is_cut_short_is_trained(tmp_path: Path, evidence: Path) -> None:
    request = a_request(tmp_path, have=evidence)
    assert not request.is_stored()
    assert unfinished([request]) == [request]
    (progress,) = train_requests([request], Silent())
    assert [each.run.seed for each in progress] == [0, 1, 2]
    assert [each.next_epoch for each in progress] == [6, 6, 6]
    assert [each.folder.name.split("-")[1] for each in Store(tmp_path / "runs").all()] == ["2"]
    assert request.is_stored()
    (again,) = stored_progress([request])
    assert [each.curve for each in again] == [each.curve for each in progress]


def test_complete_evidence_needs_no_store(tmp_path: Path, evidence: Path) -> None:
    request = a_request(tmp_path, (1, 0), have=evidence)
    assert request.is_stored()
    assert unfinished([request]) == []
    (progress,) = train_requests([request], Silent())
    assert [each.run.seed for each in progress] == [1, 0]
    assert not (tmp_path / "runs").exists()


def test_a_larger_budget_is_not_complete(tmp_path: Path, evidence: Path) -> None:
    request = a_request(tmp_path, (0,), epochs=7, have=evidence)
    assert not request.is_stored()


def test_the_full_length_run_is_trained_where_the_evidence_has_a_short_one(tmp_path: Path, evidence: Path) -> None:
    request = a_request(tmp_path, (0, 1), epochs=6, have=evidence, final=True)
    assert request.is_stored(), "no seed has passed, so each has its whole budget"
    longer = a_request(tmp_path, (0, 1), epochs=8, have=evidence, final=True)
    assert not longer.is_stored()


def test_another_run_is_not_complete(tmp_path: Path, evidence: Path) -> None:
    other = changed_values([*SMALL[1::2], "optim.lr=0.25"])
    request = Request("addition-97", "sgd", (0,), "cpu", 1, tmp_path / "runs", other, epochs=6, have=evidence)
    assert Run(request.loaded, "sgd", 0, "cpu").id not in {path.name for path in evidence.iterdir()}
    assert not request.is_stored()


def test_a_worker_gets_the_folder_of_the_evidence(tmp_path: Path, evidence: Path) -> None:
    request = a_request(tmp_path, have=evidence)
    again = Request.from_json(json.loads(json.dumps(request.to_json())))
    assert again == request
    assert again.have == evidence
    assert Request.from_json(a_request(tmp_path).to_json()).have is None
