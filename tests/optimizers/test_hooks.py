"""The hooks on a step: a closure is found and used, and a warning says if the optimizer does not use it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import assert_equalised, hidden_updates, loss_of, network, parameters

import egalitarian as eg


class Verbose(torch.optim.SGD):
    """Its step takes something else before a closure."""

    def step(self, verbose: Any = False, closure: Any = None) -> None:  # type: ignore[override]
        if callable(closure):
            closure()
        super().step()


@pytest.mark.parametrize(
    ("args", "kwargs"), [((True,), {}), ((), {"verbose": True}), ((0.25,), {}), ((torch.ones(()),), {}), ((None,), {})]
)
def test_an_argument_that_is_no_closure_leaves_egd_on(args: Any, kwargs: Any) -> None:
    model = network()
    optimizer = Verbose(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    before = parameters(model)
    loss_of(model).backward()
    optimizer.step(*args, **kwargs)
    assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["step"] == 1


@pytest.mark.parametrize("by_keyword", [True, False])
def test_a_closure_behind_another_argument_is_found(by_keyword: bool) -> None:
    model = network()
    optimizer = Verbose(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    before = parameters(model)

    def closure() -> None:
        loss_of(model).backward()

    optimizer.step(True, closure=closure) if by_keyword else optimizer.step(True, closure)
    assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["step"] == 1


def test_a_model_among_the_arguments_is_no_closure() -> None:
    model = network()
    optimizer = Verbose(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    before = parameters(model)
    loss_of(model).backward()
    optimizer.step(model)
    assert_equalised(hidden_updates(model, before))


class Deaf(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()


class Late(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        if closure is not None:
            closure()


def closing(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return closure


def thrice(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.step(closing(model, optimizer))


def test_an_optimizer_that_ignores_its_closure_warns_once() -> None:
    model = network()
    optimizer = Deaf(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    loss_of(model).backward()
    with pytest.warns(UserWarning, match=r"Deaf did not call its closure, so EGD did nothing .*; compute") as caught:
        thrice(model, optimizer)
    assert len(caught) == 1


def test_an_optimizer_that_calls_its_closure_after_the_update_warns_once() -> None:
    model = network()
    optimizer = Late(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    loss_of(model).backward()
    with pytest.warns(UserWarning, match="Late updates before it calls its closure") as caught:
        thrice(model, optimizer)
    assert len(caught) == 1


def test_a_learning_rate_of_zero_proves_nothing_about_a_closure() -> None:
    """As in the first step of a warmup."""
    model = network()
    for kind, late in ((torch.optim.SGD, False), (Late, True)):
        optimizer = kind(model.parameters(), lr=0.0)
        with eg.attach(optimizer, model):
            loss_of(model).backward()
            optimizer.step(closing(model, optimizer))
            optimizer.param_groups[0]["lr"] = 0.1
            if late:
                with pytest.warns(UserWarning, match="before it calls its closure"):
                    optimizer.step(closing(model, optimizer))
            else:
                optimizer.step(closing(model, optimizer))
