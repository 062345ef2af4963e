"""The README keeps its promises: short, few numbers, a quick start that groks when pasted, a plan that is printed so."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import ROOT, blocks, prose, python_blocks, quick_start
from torch import nn

import egalitarian

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_it_is_short_and_has_few_numbers() -> None:
    assert 120 <= len(TEXT.splitlines()) <= 150
    assert prose(README).numbers <= 60
    assert prose(README).sentence <= 15


def test_it_needs_the_versions_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python, (torch,) = project["requires-python"].removeprefix(">="), project["dependencies"]
    assert f"Python {python} and {torch.replace('>=', ' ')}, or later" in TEXT


def test_the_caption_of_the_picture_is_short() -> None:
    caption = re.search(r"\]\(docs/grokking\.png\)\n\n\*(.+)\*\n", TEXT)
    assert caption is not None
    assert len(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", caption[1]).split()) < 25


def test_the_quick_start_pasted_into_an_empty_file_groks(tmp_path: Path) -> None:
    start = quick_start(TEXT)
    assert start is not None
    (tmp_path / "start.py").write_text(start.code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "start.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    epochs = [(float(train), float(test)) for train, test in re.findall(r"train +([\d.]+)% +test +([\d.]+)%", done.stdout)]
    assert len(epochs) == 16
    assert max(test for _, test in epochs[:5]) < 5  # at chance, and then the jump
    assert min(epochs[-1]) > 95


def test_the_second_block_adds_one_line_to_an_optimizer() -> None:
    block = python_blocks(TEXT)[0]
    lines = [line.split("#")[0].rstrip() for line in block.code.splitlines()]
    assert lines == [
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.004, weight_decay=1.0)",
        "egd = eg.attach(optimizer, model)",
    ]


def test_the_plan_is_printed_as_shown() -> None:
    shown = [block.code for block in blocks(TEXT) if block.language == "pycon"]
    assert len(shown) == 1
    example = doctest.DocTestParser().get_doctest(shown[0], {"eg": egalitarian, "nn": nn}, "README.md", "README.md", 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.stem)
def test_the_examples_run(file: Path) -> None:
    command = [sys.executable, str(file), "--quick"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
