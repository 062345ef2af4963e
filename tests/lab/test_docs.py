"""docs/lab.md: the task of one's own is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from egalitarian.lab import catalog
from egalitarian.lab.progress import Stop
from egalitarian.lab.store import Store
from egalitarian.lab.sweep import sweep

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "lab.md").read_text()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The files the page shows, as it shows them."""
    blocks = re.findall(r"<!-- executed by tests/lab/test_docs.py: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["majority.py", "majority.toml"]
    for name, block in blocks:
        (tmp_path / name).write_text(block)
    return tmp_path


def test_a_task_of_ones_own_trains(written: Path) -> None:
    experiment = catalog.load(str(written / "majority.toml"))
    inputs, labels = experiment.task.build(3).train  # type: ignore[attr-defined]
    assert torch.equal(labels, torch.where(inputs.sum(1) > 0, 1.0, -1.0))
    stop = Stop.of(experiment, "egd-after", epochs=3)
    (progress,) = sweep(experiment, "egd-after", [0], Store(written / "runs"), torch.device("cpu"), stop=stop)
    assert progress.last is not None
    assert progress.last["test_accuracy"] > 0.7  # majority is easy
