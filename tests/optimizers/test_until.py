"""The switch-off of Algorithm 1: for a plan as a whole, or for each element of a stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import batch, network, same, train

import egalitarian as eg


def observed(until: eg.Until, metrics: list[float]) -> list[bool]:
    model = network()
    with eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=until) as egd:
        return [bool(egd.observe(metric)) for metric in metrics]


@pytest.mark.parametrize(
    ("until", "metrics", "active"),
    [
        (eg.Until(0.95), [0.5, 0.95, 0.951, 0.1], [True, True, False, False]),
        (eg.Until(0.5, mode="min"), [0.6, 0.5, 0.49, 0.9], [True, True, False, False]),
        (eg.Until(0.9, patience=2), [1, 1, 0.9, 1, 1, 1], [True, True, True, True, True, False]),
        (eg.Until(0.9, resume=True), [1, 0.91, 0.9, 1], [False, False, True, False]),
        (eg.Until(0.9, resume=True, margin=0.1), [1, 0.85, 0.8, 1], [False, False, True, False]),
        (eg.Until(0.5, mode="min", resume=True, margin=0.25), [0.4, 0.7, 0.75], [False, False, True]),
        (
            eg.Until(0.9, patience=1, resume=True),
            [1, 1, 0, 1, 0, 0, 1],
            [True, False, False, False, False, True, True],
        ),
    ],
)
def test_metrics_switch_egd_off_and_on(until: eg.Until, metrics: list[float], active: list[bool]) -> None:
    assert observed(until, metrics) == active


def test_a_float32_metric_at_the_threshold_is_not_beyond_it() -> None:
    """0.85 in float32 is slightly more than 0.85 in float64."""
    assert observed(eg.Until(0.85), [torch.tensor(0.85)]) == [True]  # type: ignore[list-item]


def test_after_the_switch_off_steps_are_those_of_the_bare_optimizer() -> None:
    model, bare_model = network(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    bare = torch.optim.AdamW(bare_model.parameters(), lr=0.01)
    egd = eg.attach(optimizer, model, until=eg.Until(0.95))
    egd.observe(0.96)
    train(model, optimizer, 3)
    train(bare_model, bare, 3)
    assert same(model, bare_model)
    egd.on()
    train(model, optimizer, 1)
    train(bare_model, bare, 1)
    assert not same(model, bare_model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": float("nan")}, "threshold must be a finite number, got nan"),
        ({"threshold": "0.95"}, "threshold must be a finite number, got '0.95'"),
        ({"threshold": 0.9, "mode": "up"}, "mode must be 'max' or 'min', got 'up'"),
        ({"threshold": 0.9, "patience": -1}, "patience must be an integer >= 0, got -1"),
        ({"threshold": 0.9, "resume": True, "margin": -1.0}, "margin must be a number >= 0, got -1.0"),
    ],
)
def test_rules_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eg.Until(**options)


def test_a_margin_without_resume_warns() -> None:
    with pytest.warns(UserWarning, match="margin has no effect"):
        eg.Until(0.9, margin=0.1)


def test_metrics_and_masks_that_do_not_fit_are_refused() -> None:
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.9))
    for metric, message in ((float("nan"), "got nan"), ([0.1, 0.2], "a number, got shape")):
        with pytest.raises(ValueError, match=message):
            egd.observe(metric)
    with pytest.raises(ValueError, match="mask must be booleans"):
        egd.off([True, False])
    egd.remove()
    with pytest.raises(RuntimeError, match="until=None"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model).observe(0.5)


def test_a_percentage_against_a_fraction_warns() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.95))
    with pytest.warns(UserWarning, match=r"metric 12 is above 1, but Until's threshold is 0\.95: .*the same scale"):
        egd.observe(12.0)
    egd.observe(1.0)


@pytest.mark.parametrize("metrics", [[0.4], [0.0, 0.0, 0.4], [1.0], [torch.tensor(0.4)]])
def test_a_fraction_against_a_percentage_warns(metrics: list[Any]) -> None:
    """At the first metric that is not 0, which says nothing."""
    egd = eg.attach(torch.optim.SGD((model := network()).parameters(), lr=0.1), model, until=eg.Until(95))
    for metric in metrics[:-1]:
        egd.observe(metric)
    with pytest.warns(
        UserWarning, match=r"is between 0 and 1, but Until's threshold is 95: .*a fraction, .*the same scale"
    ):
        egd.observe(metrics[-1])
    egd.observe(0.5)  # once


@pytest.mark.parametrize(
    ("until", "metrics"),
    [
        (eg.Until(95), [12.0, 0.5]),
        (eg.Until(95), [-3.0, 0.5]),
        (eg.Until(475), [0.5, 1.0]),
        (eg.Until(1.2), [0.5]),
        (eg.Until(95, mode="min"), [0.5]),
    ],
    ids=["first above 1", "first below 0", "a return", "hardly above 1", "a loss"],
)
def test_metrics_that_need_not_be_fractions_do_not_warn(until: eg.Until, metrics: list[float]) -> None:
    egd = eg.attach(torch.optim.SGD((model := network()).parameters(), lr=0.1), model, until=until)
    for metric in metrics:
        egd.observe(metric)


@pytest.mark.filterwarnings("error")
def test_large_metrics_do_not_warn_where_the_threshold_is_no_fraction() -> None:
    for until, metric in ((eg.Until(95), 96.0), (eg.Until(0.1, mode="min"), 3.0), (eg.Until(-1.0), 2.0)):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=until).observe(metric)


# -- stacks ------------------------------------------------------------------------------------------------------------


SEEDS = 3


def stacked(model_seeds: list[int]) -> dict[str, nn.Parameter]:
    models = [dict(network(seed).named_parameters()) for seed in model_seeds]
    return {name: nn.Parameter(torch.stack([m[name].detach() for m in models])) for name in models[0]}


def plan_of(parameters: dict[str, nn.Parameter]) -> eg.Plan:
    return eg.matrices(parameters, include=["0.weight", "2.weight"], stack=True)


def stacked_train(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    """Trains every element of the stack, which is a small network, on the same batches."""
    model = network()

    def loss(single: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, single, x), y)

    for step in range(start, start + steps):
        optimizer.zero_grad()
        torch.func.vmap(loss, in_dims=(0, None, None))(dict(weights), *batch(step)).sum().backward()
        optimizer.step()


CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "lowrank": eg.LowRankPolar(3),
    "grokfast ema": [eg.GrokfastEMA(), eg.Polar()],
    "grokfast ma": [eg.GrokfastMA(3), eg.LowRankPolar(2)],
    "momentum": [eg.Momentum(), eg.Polar()],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_an_element_of_a_stack_trains_as_it_would_alone(chain: Any) -> None:
    """Each switches off and on by itself, and its sketch does not depend on the others."""
    until = eg.Until(0.5, resume=True)
    metrics = torch.tensor([[0.1, 0.9, 0.1], [0.1, 0.9, 0.9], [0.1, 0.1, 0.9], [0.9, 0.1, 0.9]])
    together = stacked(list(range(SEEDS)))
    optimizer = torch.optim.SGD(together.values(), lr=0.05, momentum=0.9)
    egd = eg.attach(optimizer, plan_of(together), chain, until=until, decay_before=0.01)
    for epoch, row in enumerate(metrics):
        stacked_train(together, optimizer, 2, start=2 * epoch)
        egd.observe(row)
    stacked_train(together, optimizer, 2, start=8)
    assert isinstance(egd.active, torch.Tensor)
    assert egd.active.tolist() == [False, True, False]
    for seed in range(SEEDS):
        alone = network(seed)
        single = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        one = eg.attach(single, alone, chain, until=until, decay_before=0.01)
        for epoch, row in enumerate(metrics):
            train(alone, single, 2, start=2 * epoch)
            one.observe(row[seed])
        train(alone, single, 2, start=8)
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(together[name][seed], parameter, rtol=1e-4, atol=1e-5)


def test_a_mask_switches_single_elements() -> None:
    weights = stacked([0, 1, 2])
    optimizer = torch.optim.SGD(weights.values(), lr=1.0)
    egd = eg.attach(optimizer, plan_of(weights))
    egd.off([False, True, False])
    before = weights["0.weight"].detach().clone()
    stacked_train(weights, optimizer, 1)
    values = torch.linalg.svdvals((before - weights["0.weight"].detach()).double())
    for element, equalised in enumerate((True, False, True)):
        assert bool(torch.allclose(values[element], torch.ones(6, dtype=torch.float64), atol=1e-4)) is equalised
    egd.on(torch.tensor([False, True, False]))
    assert egd.active.all()
    egd.off()
    assert not egd.active.any()


def test_a_stack_needs_one_metric_per_element() -> None:
    weights = stacked([0, 1, 2])
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=1.0), plan_of(weights), until=eg.Until(0.5))
    for metric in (0.9, [0.9], [0.9, 0.9]):
        with pytest.raises(ValueError, match="3 values, one per stack element"):
            egd.observe(metric)
    with pytest.raises(ValueError, match="must be a number"):
        egd.observe([0.1, float("nan"), 0.2])
    assert egd.observe([0.1, 0.9, 0.2]).tolist() == [True, False, True]


def test_active_returns_a_copy() -> None:
    weights = stacked([0, 1])
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=1.0), plan_of(weights))
    egd.active.zero_()
    assert egd.active.all()


def test_a_stack_resumes_bitwise() -> None:
    def begin() -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer, eg.Attachment]:
        weights = stacked([0, 1])
        optimizer = torch.optim.SGD(weights.values(), lr=0.1)
        chain = [eg.GrokfastEMA(), eg.Polar()]
        return weights, optimizer, eg.attach(optimizer, plan_of(weights), chain, until=eg.Until(0.5))

    weights, optimizer, egd = begin()
    stacked_train(weights, optimizer, 2)
    egd.observe([0.1, 0.9])
    stacked_train(weights, optimizer, 1, start=2)
    saved = egd.state_dict()
    twins, twin_optimizer, twin_egd = begin()
    with torch.no_grad():
        for name, parameter in twins.items():
            parameter.copy_(weights[name])
    twin_egd.load_state_dict(saved)
    assert twin_egd.active.tolist() == [True, False]
    stacked_train(weights, optimizer, 2, start=3)
    stacked_train(twins, twin_optimizer, 2, start=3)
    assert all(torch.equal(weights[name], twins[name]) for name in weights)


def test_a_nan_in_one_element_does_not_affect_the_others() -> None:
    chain = [eg.GrokfastEMA(), eg.Polar()]
    results = []
    for with_nan in (False, True):
        weights = stacked([0, 1])
        egd = eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan_of(weights), chain)
        for parameter in weights.values():
            parameter.grad = torch.ones_like(parameter)
            parameter.grad[0].uniform_(generator=torch.Generator().manual_seed(0))
        if with_nan:
            weights["0.weight"].grad[1, 0, 0] = float("nan")
        egd.optimizer.step()
        results.append((weights["0.weight"].detach()[0], egd.state_dict()["tensors"]["0.weight"]["0.mean"]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1][0], results[1][1][0])
    assert not results[1][1][1].any(), "the NaN must not enter the memory"


def test_filters_need_the_stack_axis_in_every_parameter() -> None:
    weights = {"w": nn.Parameter(torch.zeros(3, 4, 2)), "temperature": nn.Parameter(torch.zeros(1))}
    plan = eg.matrices(weights, include="w", stack="w")
    with pytest.raises(ValueError, match=r"leading axis of 3 in every parameter, got 'temperature' of shape \(1,\)"):
        eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan, eg.GrokfastEMA())
    eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan, eg.GrokfastEMA(plan=plan))


def test_experts_and_plain_layers_switch_together() -> None:
    weights = {"experts": nn.Parameter(torch.zeros(3, 4, 2)), "plain": nn.Parameter(torch.zeros(4, 2))}
    plan = eg.matrices(weights, include="*", stack="experts")
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=1.0), plan, until=eg.Until(0.5))
    assert plan.stack is None
    assert egd.active is True
    for parameter in weights.values():
        parameter.grad = torch.randn_like(parameter)
    egd.optimizer.step()
    for values in (*torch.linalg.svdvals(weights["experts"].detach()), torch.linalg.svdvals(weights["plain"].detach())):
        torch.testing.assert_close(values, torch.ones(2))
    assert egd.observe(0.9) is False
