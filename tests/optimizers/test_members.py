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


def test_a_plan_of_frozen_matrices_alone_waits_for_them_and_says_so() -> None:
    """As for a backbone that is frozen at first, with an output head alone above it."""
    model = network()
    model[:4].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=1.0)
    with pytest.warns(UserWarning, match=r"'0\.weight', '2\.weight' frozen and not in the optimizer, so EGD does nothing"):
        eg.attach(optimizer, eg.matrices(model, include=["0.weight", "2.weight"]))
    train(model, optimizer, 1)
    model[:4].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[:4].parameters())})
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))
