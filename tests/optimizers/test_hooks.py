"""The hooks on a step: a closure is found and used, and updates that bypass EGD are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import assert_equalised, hidden_updates, loss_of, network, parameters, same, train

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


class Callback(torch.optim.SGD):
    """Its step takes another callable before the closure."""

    def step(self, callback: Any = None, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
        super().step()
        if callback is not None:
            callback()


class KeywordOnly(torch.optim.SGD):
    def step(self, callback: Any = None, *, loss_closure: Any = None) -> None:  # type: ignore[override]
        if loss_closure is not None:
            loss_closure()
        super().step()
        if callback is not None:
            callback()


class Flag(torch.optim.SGD):
    """A setting of its step has `closure` in its name."""

    def step(self, backward: Any = None, use_closure: bool = False) -> None:  # type: ignore[override]
        backward()
        super().step()


class Positional(torch.optim.SGD):
    """A wrapper whose signature tells nothing."""

    def step(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        for each in (*args, *kwargs.values()):
            if callable(each):
                each()
        super().step()


def nothing() -> None:
    pass


CALLS: dict[str, tuple[Any, Any, bool]] = {
    "callback and closure": (Callback, lambda step, closure: step(nothing, closure), True),
    "both by name": (Callback, lambda step, closure: step(callback=nothing, closure=closure), True),
    "callback alone": (Callback, lambda step, closure: step(nothing), False),
    "callback alone, by name": (Callback, lambda step, closure: step(callback=nothing), False),
    "callback and None": (Callback, lambda step, closure: step(nothing, None), False),
    "closure by a longer name": (KeywordOnly, lambda step, closure: step(nothing, loss_closure=closure), True),
    "callback before a longer name": (KeywordOnly, lambda step, closure: step(nothing), False),
    "beside a flag": (Flag, lambda step, closure: step(closure), True),
    "beside a flag that is given": (Flag, lambda step, closure: step(closure, use_closure=True), True),
    "no names": (Positional, lambda step, closure: step(0.5, closure), True),
    "no names, by keyword": (Positional, lambda step, closure: step(loss_fn=closure), True),
    "named among others": (Positional, lambda step, closure: step(nothing, closure=closure), True),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_closure_is_the_argument_of_that_name_or_the_only_callable(name: str) -> None:
    kind, call, closes = CALLS[name]
    model = network()
    optimizer = kind(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    before = parameters(model)

    def closure() -> None:
        loss_of(model).backward()

    if not closes:
        closure()
    call(optimizer.step, closure)
    assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["step"] == 1


def test_several_callables_without_a_name_are_refused() -> None:
    model = network()
    optimizer = Positional(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    loss_of(model).backward()
    before = parameters(model)
    with pytest.raises(TypeError, match=r"Positional must have one closure, .*, got 2 callables; compute the gradients"):
        optimizer.step(nothing, nothing)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert egd.state_dict()["step"] == 0


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


# -- steps that never come ---------------------------------------------------------------------------------------------


def test_a_step_that_was_replaced_on_the_instance_is_noticed_after_ten_updates() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    bare_step = torch.optim.SGD.step.__wrapped__  # type: ignore[attr-defined]
    optimizer.step = lambda: bare_step(optimizer)  # type: ignore[method-assign, assignment]
    train(model, optimizer, 10)
    with pytest.warns(UserWarning, match=r"'0\.weight' has changed 10 times without a step of SGD that EGD could see"):
        train(model, optimizer, 1)
    train(model, optimizer, 20)  # the warning comes once


def test_accumulation_and_weights_that_are_loaded_are_no_updates_that_bypass_egd() -> None:
    model, saved = network(), network(1).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    for step in range(40):
        if step % 10 == 0:
            model.load_state_dict(saved)
        loss_of(model, step).backward()
    optimizer.step()


def test_an_optimizer_in_the_backward_pass_is_attached_to_like_any_other() -> None:
    """One optimizer per parameter, stepped by a hook as soon as its gradient is there."""
    model, plain = network(), network()
    optimizers = {each: torch.optim.SGD([each], lr=0.1, momentum=0.9) for each in model.parameters()}
    for entry in eg.matrices(model).taken:
        eg.attach(optimizers[entry.parameter], eg.matrices(model, include=entry.name))

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(3):
        loss_of(model, step).backward()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    eg.attach(optimizer, plain)
    train(plain, optimizer, 3)
    assert same(model, plain)


def test_an_optimizer_whose_parameters_others_update_in_the_backward_pass_warns() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    others = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: others[each].step())
    for step in range(10):
        loss_of(model, step).backward()
    with pytest.warns(UserWarning, match="attach to the optimizer whose step"):
        loss_of(model).backward()


def test_a_removed_attachment_watches_nothing() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model).remove()
    assert not model[0].weight._post_accumulate_grad_hooks
    eg.attach(optimizer, model)
    assert model[0].weight._post_accumulate_grad_hooks
    train(model, optimizer, 1)
    assert not model[0].weight._post_accumulate_grad_hooks


def test_an_optimizer_that_nobody_holds_any_more_is_not_missed() -> None:
    """As in a notebook, where a cell that makes and attaches it is run again."""
    model = network()
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        egd = eg.attach(optimizer, model)
    train(model, optimizer, 15)
    assert egd.state_dict()["step"] == 15
    assert not model[0].weight._post_accumulate_grad_hooks


@pytest.mark.parametrize("with_closure", [True, False])
def test_values_that_there_are_none_of_are_not_compared(with_closure: bool) -> None:
    """On the meta device, where one computes shapes alone, with gradients that accumulate."""
    model = network().to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)

    def closure() -> Tensor:
        for _ in range(2):
            loss = model(torch.zeros(4, 6, device="meta")).sum()
            loss.backward()
        return loss

    for _ in range(2):
        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    assert egd.state_dict()["step"] == 2
