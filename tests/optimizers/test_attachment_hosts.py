"""Every optimizer of torch, and what people put around a training loop: an attached step is one on equalised gradients."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from toy import loss_of, network, same

import egalitarian as eg

REFUSED = {"SparseAdam": "takes sparse gradients alone"}
KINDS: dict[str, Any] = {
    name: each
    for name, each in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer and name not in REFUSED
}


def built(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.ndim == 2] if name == "Muon" else model.parameters()
    made: torch.optim.Optimizer = KINDS[name](parameters, lr=0.05)
    return made


@pytest.mark.parametrize("with_closure", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_an_attached_step_is_the_step_on_equalised_gradients(name: str, with_closure: bool) -> None:
    if name == "LBFGS" and not with_closure:
        return  # it has no such step

    def trained(how: str) -> nn.Module:
        model = network()
        optimizer = built(name, model)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(optimizer, plan)
        for step in range(4):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                if how == "by hand":
                    eg.equalize_(plan)
                return loss

            torch.manual_seed(step)
            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_under_autocast_is_the_step_on_coarsely_equalised_gradients(dtype: torch.dtype) -> None:
    def trained(how: str) -> nn.Module:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = eg.matrices(model)
        if how == "attached":
            eg.attach(optimizer, plan)
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = loss_of(model, step)
            loss.backward()
            if how == "by hand":
                eg.equalize_(plan, eg.Polar(precision="coarse", compute=dtype))
            optimizer.step()
        return model

    assert same(trained("attached"), trained("by hand"))
    assert not same(trained("attached"), trained("bare"))


def test_an_average_of_the_weights_is_that_of_equalised_steps() -> None:
    """Both averages of torch: exponential, and stochastic weight averaging with its schedule."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    mean = AveragedModel(model)
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        schedule.step()
        moving.update_parameters(model)
        mean.update_parameters(model)
        seen.append(copy.deepcopy(model[0].weight.detach()))
    by_hand = seen[0]
    for weight in seen[1:]:
        by_hand = by_hand.lerp(weight, 0.5)
    torch.testing.assert_close(moving.module[0].weight, by_hand)
    torch.testing.assert_close(mean.module[0].weight, torch.stack(seen).mean(0))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(use_reentrant: bool) -> None:
    """The forward pass runs twice, the first time without gradients."""

    def trained(recompute: bool) -> nn.Module:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        egd = eg.attach(optimizer, model)
        for step in range(3):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step)).requires_grad_()
            hidden: Callable[..., Any] = model[:4]
            h = checkpoint(hidden, x, use_reentrant=use_reentrant) if recompute else hidden(x)
            optimizer.zero_grad()
            model[4](h).square().mean().backward()
            optimizer.step()
        assert "no autocast" in str(egd.plan)
        return model

    assert same(trained(True), trained(False))


@pytest.mark.parametrize("recompute", [False, True])
def test_autocast_is_seen_through_activation_checkpointing(recompute: bool) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    x = torch.randn(16, 6)
    with torch.autocast("cpu", torch.bfloat16):
        h = checkpoint(model[:4], x, use_reentrant=False) if recompute else model[:4](x)
        loss = model[4](h).square().mean()
    loss.backward()
    optimizer.step()
    assert "autocast to half precision" in str(egd.plan)
