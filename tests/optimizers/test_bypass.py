"""Updates that bypass EGD: weights that change without a step are noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toy import loss_of, network, same, train

import egalitarian as eg


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
