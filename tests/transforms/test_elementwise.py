"""Filters: Grokfast and momentum as published, on every parameter or on those of a plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy import gradients, loss_of, network, transform_each

import egalitarian as eg


def test_grokfast_ema_is_the_published_filter() -> None:
    mean, expected = None, []
    for grad in (seen := gradients(6)):
        mean = grad if mean is None else 0.9 * mean + 0.1 * grad
        expected.append(grad + 2.0 * mean)
    torch.testing.assert_close(transform_each(eg.GrokfastEMA(0.9, 2.0), seen), expected)


@pytest.mark.parametrize("warmup", [True, False])
def test_grokfast_ma_is_the_published_filter(warmup: bool) -> None:
    expected = []
    for step, grad in enumerate(seen := gradients(7)):
        window = seen[max(0, step - 2) : step + 1]
        full = len(window) == 3 or not warmup
        expected.append(grad + 5.0 * torch.stack(window).mean(0) if full else grad)
    torch.testing.assert_close(transform_each(eg.GrokfastMA(3, 5.0, warmup), seen), expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_muon(nesterov: bool) -> None:
    mean, expected = torch.zeros(3, 2), []
    for grad in (seen := gradients(5)):
        mean = 0.95 * mean + 0.05 * grad
        expected.append(0.05 * grad + 0.95 * mean if nesterov else mean)
    torch.testing.assert_close(transform_each(eg.Momentum(0.95, nesterov), seen), expected)


def test_a_filter_with_a_plan_acts_on_the_parameters_that_the_plan_takes() -> None:
    model = network()
    plan = eg.matrices(model)
    loss_of(model).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    state = eg.equalize_(plan, eg.Momentum(plan=eg.matrices(model, include="4")))
    changed = [not torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True)]
    assert changed == [False, False, False, False, True, False]
    assert set(state.tensors) == {"4.weight"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eg.GrokfastEMA(alpha=1.0), r"alpha must be in \[0, 1\), got 1.0"),
        (lambda: eg.GrokfastEMA(lamb=-1.0), "lamb must be a number >= 0, got -1.0"),
        (lambda: eg.GrokfastMA(0), "window must be an integer >= 1, got 0"),
        (lambda: eg.Momentum(1.0), r"beta must be in \[0, 1\), got 1.0"),
    ],
)
def test_settings_out_of_range_are_refused_at_construction(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
