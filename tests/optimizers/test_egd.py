"""`EGD`: SGD that equalises inside its own step, so that copies and subclasses keep it."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from toy import network, same, train

import egalitarian as eg


def test_weight_decay_is_added_after_equalising() -> None:
    """W <- W - lr (U Vᵀ + weight_decay W)."""
    weight = torch.nn.Parameter(torch.randn(4, 3))
    start = weight.detach().clone()
    optimizer = eg.EGD([weight], lr=0.1, weight_decay=0.05)
    weight.grad = torch.randn(4, 3)
    expected = start - 0.1 * (eg.polar(weight.grad) + 0.05 * start)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


def test_decay_before_and_weight_decay_are_different_methods() -> None:
    """W <- W - lr polar(G + decay W) against W <- W - lr (polar(G) + decay W)."""
    start, gradient = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    updates = {}
    for name in ("decay_before", "weight_decay"):
        weight = nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        eg.EGD([weight], lr=1.0, **{name: 0.5}).step()
        updates[name] = start - weight.detach()
    torch.testing.assert_close(updates["decay_before"], eg.polar(gradient + 0.5 * start))
    torch.testing.assert_close(updates["weight_decay"], eg.polar(gradient) + 0.5 * start)
    assert (updates["decay_before"] - updates["weight_decay"]).norm() > 0.1


def test_a_group_with_equalize_false_takes_plain_steps() -> None:
    one, other = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
    optimizer = eg.EGD([{"params": [one]}, {"params": [other], "equalize": False}], lr=1.0)
    one.grad, other.grad = torch.full((3, 2), 0.5), torch.full((3, 2), 0.5)
    optimizer.step()
    torch.testing.assert_close(torch.linalg.svdvals(one.detach())[0], torch.tensor(1.0))
    assert torch.equal(other.detach(), torch.full((3, 2), -0.5))


BARE = r"cannot tell an embedding or a head .*; pass egalitarian\.matrices\(model\), or set equalize in each param group"


def test_matrices_without_a_plan_warn_once() -> None:
    model = network()
    with pytest.warns(UserWarning, match=BARE) as caught:
        optimizer = eg.EGD(model.parameters(), lr=0.1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, 2))]})
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_second_matrix_without_a_plan_that_is_added_later_warns() -> None:
    optimizer = eg.EGD(eg.matrices(network()), lr=0.1)
    optimizer.add_param_group({"params": [("one", nn.Parameter(torch.zeros(2, 2)))]})
    with pytest.warns(UserWarning, match=BARE) as caught:
        optimizer.add_param_group({"params": [("other", nn.Parameter(torch.zeros(2, 2)))]})
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "given",
    [
        lambda model: eg.matrices(model),
        lambda model: eg.matrices(model).groups(),
        lambda model: [{**group, "lr": 0.2} for group in eg.matrices(model).groups()],
        lambda model: [{"params": model.parameters(), "equalize": True}],
        lambda model: [
            {"params": model[:4].parameters(), "equalize": True},
            {"params": model[4].parameters(), "equalize": False},
        ],
        lambda model: [("weight", model[0].weight), ("bias", model[0].bias)],
        lambda model: [parameter for parameter in model.parameters() if parameter.ndim < 2],
    ],
)
def test_parameters_that_say_what_is_meant_do_not_warn(given: Any) -> None:
    eg.EGD(given(network()), lr=0.1)


def test_filters_alone_need_no_plan() -> None:
    eg.EGD(network().parameters(), lr=0.1, transform=eg.Momentum())


def test_the_repr_ends_with_the_share_that_is_equalised() -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.1)
    train(model, optimizer, 2)
    lines = repr(optimizer).splitlines()
    share = 100 * (48 + 40) / sum(parameter.numel() for parameter in model.parameters())
    assert lines[0] == "EGD ("
    assert "    egd_steps: 2" in lines
    assert lines[-2:] == [f"Equalised: {share:.1f} % of the entries", ")"]


def test_a_grad_scaler_sets_the_cut_off_of_float16() -> None:
    """Under a scaler the cut-off is that of float16: a direction at 3e-4 of the largest becomes zero."""
    updates = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=2.0), torch.amp.GradScaler("cpu", enabled=False)):
        weight = nn.Parameter(torch.zeros(2, 2))
        optimizer = eg.EGD([weight], lr=1.0, transform=eg.Polar())
        scaler.scale((weight * torch.tensor([[1.0, 0.0], [0.0, 3e-4]])).sum()).backward()
        scaler.step(optimizer)
        updates.append(-weight.detach())
    torch.testing.assert_close(updates[0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(updates[1], torch.eye(2))


def test_a_subclass_that_calls_the_step_of_egd_equalises_once() -> None:
    class Derived(eg.EGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    one, other = network(), network()
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "transform": [eg.GrokfastEMA(), eg.Polar()]}
    train(one, Derived(eg.matrices(one), **options), 3)
    train(other, eg.EGD(eg.matrices(other), **options), 3)
    assert same(one, other)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_egd_continues_like_the_original(copied: Any) -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.1, transform=[eg.GrokfastEMA(), eg.LowRankPolar(2)])
    train(model, optimizer, 3)
    twin, twin_optimizer = copied((model, optimizer))
    train(model, optimizer, 3, start=3)
    train(twin, twin_optimizer, 3, start=3)
    assert same(model, twin)


def test_where_warnings_are_errors_nothing_is_half_done() -> None:
    model, other = network(), network(1)
    bare = {"params": list(other.named_parameters())}
    with pytest.raises(UserWarning, match=BARE):
        eg.EGD([*eg.matrices(model).groups(), bare], lr=0.1)
    assert not any(module._forward_pre_hooks for module in model.modules())
    optimizer = eg.EGD(eg.matrices(model), lr=0.1)
    with pytest.raises(UserWarning, match=BARE):
        optimizer.add_param_group(bare)
    assert len(optimizer.param_groups) == 1
    train(model, optimizer, 1)
    optimizer.add_param_group({**bare, "equalize": True})


def test_a_memory_is_kept_whole_or_not_at_all() -> None:
    """Ctrl-C at any line that stores it."""
    code = eg.EGD._remember.__code__

    def interrupted_at(line: int) -> Any:
        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code is code and event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return trace if frame.f_code is code or event == "call" else None

        lines = itertools.count()
        return trace

    for line in range(20):
        model = network()
        optimizer = eg.EGD(eg.matrices(model), lr=0.1, transform=[eg.GrokfastEMA(), eg.Polar()])
        model(torch.ones(2, 6)).sum().backward()
        before = sys.gettrace()
        sys.settrace(interrupted_at(line))
        try:
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
        finally:
            sys.settrace(before)
        train(model, optimizer, 1)
