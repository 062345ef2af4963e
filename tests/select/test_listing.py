"""Names of parameters: unique, and those of the bare model whatever wraps it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel
from toy import network

import egalitarian as eg


def names(model: nn.Module) -> list[str]:
    return [entry.name for entry in eg.matrices(model)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: torch.compile(model, backend="eager"),
        nn.DataParallel,
        AveragedModel,
        checkpoint_wrapper,
        lambda model: nn.DataParallel(torch.compile(checkpoint_wrapper(model), backend="eager")),
    ],
    ids=["compile", "DataParallel", "AveragedModel", "checkpointing", "all of them"],
)
def test_wrapping_the_model_changes_no_name(wrap: Any) -> None:
    assert names(wrap(network())) == names(network())


def test_wrapping_a_part_changes_no_name() -> None:
    model, other = network(), network()
    model[2] = torch.compile(checkpoint_wrapper(model[2]), backend="eager")
    assert names(model) == names(other)
    assert [entry.name for entry in eg.matrices(model, head="4").taken] == ["0.weight", "2.weight"]


def test_a_wrapper_that_shows_its_module_twice_ties_nothing() -> None:
    """As that of Lightning Fabric does."""

    class _FabricModule(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._forward_module = self._original_module = model

    assert str(eg.matrices(_FabricModule(network()))) == str(eg.matrices(network()))


def test_a_module_that_is_only_named_like_a_wrapped_one_keeps_its_name() -> None:
    """Two parameters of one name would share one memory."""
    inner = nn.ModuleDict({"x": nn.Linear(6, 6, bias=False)})
    model = nn.ModuleDict({"_orig_mod": inner, "module": inner, "x": nn.Linear(6, 6, bias=False)})
    assert names(model) == ["_orig_mod.x.weight", "x.weight"]


def test_names_that_unwrapping_would_make_equal_stay_whole() -> None:
    class Wrapper(nn.DataParallel):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            self.extra = nn.Linear(6, 6)

    model = Wrapper(nn.ModuleDict({"extra": nn.Linear(6, 6)}))
    assert len({*names(model)}) == len(list(model.parameters()))


def test_memories_of_colliding_names_are_apart() -> None:
    model = nn.ModuleDict(
        {"_orig_mod": nn.ModuleDict({"x": nn.Linear(4, 4, bias=False)}), "x": nn.Linear(4, 4, bias=False)}
    )
    plan = eg.matrices(model, head=None)
    gradients = [torch.randn(4, 4) for _ in plan]
    for entry, gradient in zip(plan, gradients, strict=True):
        entry.parameter.grad = gradient.clone()
    state = eg.equalize_(plan, eg.Momentum(0.5))
    for entry in plan:
        entry.parameter.grad = torch.zeros(4, 4)
    eg.equalize_(plan, eg.Momentum(0.5), state=state)
    means = [entry.parameter.grad for entry in plan]
    assert means[0] is not None
    assert means[1] is not None
    torch.testing.assert_close(means[0] / means[1], gradients[0] / gradients[1])
