"""What an attachment says about parameters and param groups that it does not take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy import assert_equalised, hidden_updates, network, parameters, train

import egalitarian as eg


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"equalize": False}, r"equalize=False, which attach does not read; leave .* matrices\(exclude=\.\.\.\)"),
        ({"decay_before": 0.1}, r"decay_before=0\.1, which attach does not read; pass decay_before= to attach"),
    ],
)
def test_a_setting_of_a_group_that_only_egd_reads_warns(setting: dict[str, Any], message: str) -> None:
    plan = eg.matrices(network())
    with pytest.warns(UserWarning, match=message):
        eg.attach(torch.optim.SGD(plan.groups(taken=setting), lr=0.1), plan)


def test_settings_that_change_nothing_do_not_warn() -> None:
    """As in the groups of a checkpoint of EGD."""
    plan = eg.matrices(network())
    groups = plan.groups(taken={"equalize": True, "decay_before": 0.1, "egd_steps": 3}, left={"decay_before": 0.0})
    eg.attach(torch.optim.SGD(groups, lr=0.1), plan, decay_before=0.1)


def test_a_frozen_matrix_that_is_unfrozen_later_warns_once() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    train(model, optimizer, 2)
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match=r"'0\.weight' frozen when the plan was made, .* attach again") as caught:
        train(model, optimizer, 2)
    assert len(caught) == 1
    egd.remove()
    optimizer.param_groups[0]["lr"] = 1.0
    eg.attach(optimizer, model)
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))


def test_a_frozen_matrix_of_the_plan_may_join_later() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    plan = eg.matrices(model, include=["0.weight", "2.weight"])
    egd = eg.attach(optimizer, plan)
    train(model, optimizer, 1)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))
    egd.remove()
    with pytest.raises(ValueError, match=r"must hold the plan's matrices, got one without '0\.weight'"):
        eg.attach(torch.optim.SGD(model[2].parameters(), lr=1.0), plan)


@pytest.mark.parametrize("setting", [{"weight_decy": 0.1}, {"equalize": False}, {"decay_before": 0.1}])
def test_a_setting_without_effect_is_said_once_and_not_after_each_load(setting: dict[str, Any]) -> None:
    """A load replaces the groups."""
    model = network()
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), **setting}], lr=0.1)
    with pytest.warns(UserWarning, match=f"a param group has '?{next(iter(setting))}") as caught:
        eg.attach(optimizer, model)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer, 1)


def test_where_warnings_are_errors_an_optimizer_that_is_not_attached_to_has_no_hooks() -> None:
    model = network()
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "weight_decy": 0.1}], lr=0.1)
    with pytest.raises(UserWarning, match="did you mean 'weight_decay'"):
        eg.attach(optimizer, model)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not model[0].weight._post_accumulate_grad_hooks
    assert not optimizer._optimizer_step_pre_hooks
    del optimizer.param_groups[0]["weight_decy"]
    eg.attach(optimizer, model)


def test_a_plan_of_frozen_matrices_alone_waits_for_them_and_says_so() -> None:
    """As for a backbone that is frozen at first, with an output head alone above it."""
    model = network()
    model[:4].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=1.0)
    with pytest.warns(
        UserWarning, match=r"only '0\.weight', '2\.weight', frozen and not in the optimizer, so EGD does nothing"
    ):
        eg.attach(optimizer, eg.matrices(model, include=["0.weight", "2.weight"]))
    train(model, optimizer, 1)
    model[:4].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[:4].parameters())})
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))
