"""`equalize_`: it returns a new state, warns without gradients, and refuses the state of other transforms."""

from __future__ import annotations

import pytest
import torch
from toy import loss_of, network

import egalitarian as eg


def test_the_given_state_is_not_changed() -> None:
    model = network()
    plan = eg.matrices(model)
    loss_of(model).backward()
    first = eg.equalize_(plan, eg.GrokfastEMA())
    kept = {name: {key: value.clone() for key, value in memory.items()} for name, memory in first.tensors.items()}
    eg.equalize_(plan, eg.GrokfastEMA(), state=first)
    assert first.step == 1
    for name, memory in first.tensors.items():
        assert all(torch.equal(value, kept[name][key]) for key, value in memory.items())


def test_a_call_without_gradients_warns_and_changes_nothing() -> None:
    model = network()
    with pytest.warns(UserWarning, match=r"between backward\(\) and step\(\)"):
        state = eg.equalize_(eg.matrices(model), [eg.GrokfastEMA(), eg.Polar()])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not state.tensors


def test_the_state_of_other_transforms_is_refused() -> None:
    model = network()
    plan = eg.matrices(model)
    loss_of(model).backward()
    state = eg.equalize_(plan, eg.Momentum())
    with pytest.raises(ValueError, match=r"state must come from the same transforms.*start again"):
        eg.equalize_(plan, eg.GrokfastEMA(), state=state)
