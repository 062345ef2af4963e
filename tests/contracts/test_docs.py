"""The pages' TOML is real: a task of one's own, a method with groups, a plan for tuning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from report_records import write_run

from egalitarian.lab.config import catalog
from egalitarian.lab.runs import pack, sweep
from egalitarian.lab.runs.outcome import Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.tuning.plan import load_plan

ROOT = Path(__file__).parents[2]
SHOWN = {
    "docs/lab.md": ["read_evidence.py"],
    "docs/extend.md": ["majority.py", "majority.toml", "my-method.toml", "my-experiment.toml", "curve.py"],
}
MARKED = re.compile(r"<!-- executed by tests/contracts/test_docs.py: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The files that the pages show, as they show them."""
    for page, names in SHOWN.items():
        blocks = MARKED.findall((ROOT / page).read_text())
        assert [name for name, _ in blocks] == names
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "curve.py"], cwd=written, env=environment, check=True)
    assert (written / "curve.png").stat().st_size > 1000


OWN = {"my-method.toml": ["egd-momentum", "egd-after", "sgd"], "my-experiment.toml": ["egd-after", "sgd-lr5"]}
"""The methods of each, the one to try first."""


@pytest.mark.parametrize("file", OWN)
def test_a_method_and_an_experiment_of_ones_own_train(written: Path, file: str) -> None:
    experiment = catalog.load(str(written / file))
    assert sorted(experiment.methods) == sorted(OWN[file])
    method = OWN[file][0]
    stop = Stop.of(experiment, method, epochs=4)
    (progress,) = sweep(experiment, method, [0], Store(written / "runs"), torch.device("cpu"), stop=stop)
    assert progress.last is not None
    assert progress.last["train_accuracy"] > 0.04  # chance is one in a hundred


def test_evidence_is_read_without_this_package(written: Path) -> None:
    """Ten lines, by a Python that is given no path to the lab."""
    store = Store(written / "runs")
    for seed, crossed in enumerate((20, 40)):
        write_run(store, "addition-97", "egd", seed, crossed)
    pack(store, written / "evidence")
    script = written / "read_evidence.py"
    assert len([line for line in script.read_text().splitlines() if line]) <= 10
    assert "egalitarian" not in script.read_text()
    command = [sys.executable, "-P", str(script), str(written / "evidence" / "addition-97.xz")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = [
        f"egd/{stored.folder.name} {len(stored.epochs())} {stored.epochs()[-1]['test_accuracy']}" for stored in store.all()
    ]
    assert printed.splitlines() == expected


def toml_with(page: str, text: str) -> str:
    """The page's TOML block that has the text."""
    blocks = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if text in block]
    return block


def test_the_method_with_groups_is_the_labs() -> None:
    file = ROOT / "src" / "egalitarian" / "lab" / "beyond" / "grokking.toml"
    shown = tomllib.loads(toml_with("lab.md", "groups"))
    assert shown == {"methods": {"egd-both": tomllib.loads(file.read_text())["methods"]["egd-both"]}}


def test_the_plan_of_ones_own_is_a_plan(tmp_path: Path) -> None:
    (tmp_path / "my-experiment.toml").write_text('extends = "addition-97"')
    (tmp_path / "my-plan.toml").write_text(toml_with("tuning.md", "families"))
    assert list(load_plan(tmp_path / "my-plan.toml")["mine"].methods) == ["sgd", "egd-after"]
