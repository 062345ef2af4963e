"""The recipes of docs/recipes.md that need more than torch on one device do as the page says: EGD acts in each."""

from __future__ import annotations

import doctest
import gc
import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from documents import ROOT, Block, blocks, execute, namespace
from torch import Tensor, nn

import egalitarian as eg

PAGE = ROOT / "docs" / "recipes.md"
RUN_HERE = ("compile", "compile under autocast", "ddp.py", "fsdp2.py", "lightning", "huggingface", "accelerate")
DISTRIBUTED, PARTS = ROOT / "docs" / "distributed.md", ("order", "checkpoint")


def marked(page: Path = PAGE) -> dict[str, Block]:
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if "test_recipes.py" in block.marked]
    return {block.marked.partition(": ")[2]: block for block in found}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder; Accelerate's state, which is the process's, ends with the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def is_equalised(parameter: Tensor) -> bool:
    assert parameter.grad is not None
    values = torch.linalg.svdvals(parameter.grad)
    kept = values[values > 0.5]
    return len(kept) > 0 and bool((kept - 1).abs().max() < 1e-3)


@pytest.mark.parametrize("file", ["lightning", "huggingface", "accelerate", "tensorboard"])
@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec.*", "ignore:.*litlogger")
def test_the_examples_of_the_api_page_run(file: str) -> None:
    """`make test` runs the doctests of all other files; these need a trainer."""
    module = importlib.import_module(f"egalitarian.integrations.{file}")
    done = doctest.testmod(module, extraglobs={"torch": torch})
    assert done.attempted > 2
    assert done.failed == 0
    gc.collect()  # what an example leaves open would warn later, in another test


def test_each_recipe_is_executed_here() -> None:
    assert tuple(marked()) == RUN_HERE


def test_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dynamo and without a compiler of kernels: tests marked slow have that."""
    compiled = torch.compile
    calls: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model: calls.append(model) or compiled(model, backend="eager"))
    names = namespace()
    execute(marked()["compile"], PAGE, names)
    assert calls == [names["model"]]
    assert is_equalised(names["model"][0].weight)
    names["egd"].remove()
    execute(marked()["compile under autocast"], PAGE, names)
    assert "coarse" in str(names["egd"].plan)


END = "dist.destroy_process_group()\n"
SAFE_END = f"import gc\ndel model, optimizer, egd\ngc.collect()\ndist.barrier()\n{END}"
"""While a DDP module lives, gloo's threads abort at exit now and then: see tests/distributed/test_ddp.py."""


@pytest.mark.parametrize("file", ["ddp.py", "fsdp2.py"])
def test_two_processes_have_the_same_weights(file: str) -> None:
    code = (ROOT / "examples" / "distributed" / file).read_text(encoding="utf-8")
    assert code.endswith(marked()[file].code), "the page and examples/ have the same script"
    assert code.endswith(END)
    Path(file).write_text(code.replace(END, SAFE_END), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", file]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(re.findall(r"process (\d): weights ([\d.]+)", done.stdout))
    assert set(told) == {"0", "1"}
    assert told["0"] == told["1"]
    assert ("rank 1 of fsdp 2" in done.stdout) == (file == "fsdp2.py")


@pytest.mark.parametrize("file", ["ddp.py", "fsdp2.py"])
def test_the_command_of_the_page_is_torchruns(file: str) -> None:
    assert f"\ntorchrun --standalone --nproc-per-node 2 examples/distributed/{file}\n" in PAGE.read_text(encoding="utf-8")


def test_a_sharded_model_is_attached_and_saved_as_the_page_says(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        names = {**namespace(), "__name__": "recipe"}
        found = marked(DISTRIBUTED)
        assert tuple(found) == PARTS
        for part in PARTS:
            execute(found[part], DISTRIBUTED, names)
        assert names["egd"].state_dict()["step"] == 0
    finally:
        dist.destroy_process_group()


class Counted:
    """How often EGD transformed gradients, in whatever trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attachments: list[eg.Attachment] = []
        made: Callable[..., None] = eg.Attachment.__init__

        def remember(attachment: eg.Attachment, *arguments: Any, **named: Any) -> None:
            made(attachment, *arguments, **named)
            self.attachments.append(attachment)

        monkeypatch.setattr(eg.Attachment, "__init__", remember)

    @property
    def steps(self) -> int:
        return sum(attachment.state_dict()["step"] for attachment in self.attachments)


@pytest.mark.parametrize(("name", "steps"), [("lightning", 8), ("huggingface", 16), ("accelerate", 4)])
@pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning",
    "ignore:.*LeafSpec.*",
    "ignore:.*does not have many workers",
    "ignore:.*litlogger",
    "ignore:.*pin_memory.*",
)
def test_a_trainer(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of the recipe are EGD's: batches times epochs."""
    counted = Counted(monkeypatch)
    names: dict[str, Any] = {"__name__": "__main__"}
    execute(marked()[name], PAGE, names)
    assert counted.steps == steps
    if name == "accelerate":
        assert isinstance(names["model"], nn.Module)
        assert is_equalised(names["model"][0].weight)
