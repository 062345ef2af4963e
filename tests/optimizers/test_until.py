"""Algorithm 1's switch-off, one plan or a stack of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import batch, network, same, train

import egalitarian as eg


def watched(until: eg.Until, metrics: list[float]) -> list[bool]:
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
def test_when_it_switches(until: eg.Until, metrics: list[float], active: list[bool]) -> None:
    assert watched(until, metrics) == active


def test_a_float32_metric_at_the_threshold_is_not_beyond_it() -> None:
    """0.85 in float32 is a little more than 0.85 in float64."""
    assert watched(eg.Until(0.85), [torch.tensor(0.85)]) == [True]  # type: ignore[list-item]


def test_after_the_switch_off_the_trajectory_is_the_bare_optimizers() -> None:
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


def test_decay_before_stays_on_after_a_switch_off() -> None:
    model, bare_model = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, decay_before=0.3)
    egd.off()
    taken = [entry.parameter for entry in eg.matrices(bare_model).taken]
    rest = [p for p in bare_model.parameters() if all(p is not each for each in taken)]
    bare = torch.optim.SGD([{"params": taken, "weight_decay": 0.3}, {"params": rest}], lr=0.1)
    train(model, optimizer, 3)
    train(bare_model, bare, 3)
    assert same(model, bare_model)


def test_switching_by_hand_and_taking_off() -> None:
    model, bare_model = network(), network()
    optimizer, bare = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(bare_model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    egd.off()
    assert egd.active is False
    assert "active=False" in repr(egd)
    egd.on()
    assert egd.active is True
    assert "active=True" in repr(egd)
    egd.remove()
    egd.remove()
    train(model, optimizer, 2)
    train(bare_model, bare, 2)
    assert same(model, bare_model)
    eg.attach(optimizer, model)  # the way is free again


def test_a_with_block_takes_it_off_even_after_an_error() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError), eg.attach(optimizer, model):
        raise KeyError
    eg.attach(optimizer, model)


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
def test_bad_rules(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eg.Until(**options)


def test_a_margin_without_resume_warns() -> None:
    with pytest.warns(UserWarning, match="margin has no effect"):
        eg.Until(0.9, margin=0.1)


def test_bad_metrics() -> None:
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


# -- stacks -----------------------------------------------------------------------------------------------------------

SEEDS = 3


def stacked(model_seeds: list[int]) -> dict[str, nn.Parameter]:
    models = [dict(network(seed).named_parameters()) for seed in model_seeds]
    return {name: nn.Parameter(torch.stack([m[name].detach() for m in models])) for name in models[0]}


def plan_of(parameters: dict[str, nn.Parameter]) -> eg.Plan:
    return eg.matrices(parameters, include=["0.weight", "2.weight"], stack=True)


def stacked_train(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    """Every element of the stack is the small network, on the batch of its step."""
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
def test_an_element_of_a_stack_is_what_it_would_be_alone(chain: Any) -> None:
    """Each has its own switch-off and switch-on; the sketch is the same whatever the company."""
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


def test_masks_switch_elements() -> None:
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


def test_a_stack_wants_as_many_metrics() -> None:
    weights = stacked([0, 1, 2])
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=1.0), plan_of(weights), until=eg.Until(0.5))
    for metric in (0.9, [0.9], [0.9, 0.9]):
        with pytest.raises(ValueError, match="3 values, one per stack element"):
            egd.observe(metric)
    with pytest.raises(ValueError, match="must be a number"):
        egd.observe([0.1, float("nan"), 0.2])
    assert egd.observe([0.1, 0.9, 0.2]).tolist() == [True, False, True]


def test_the_returned_switch_is_a_copy() -> None:
    weights = stacked([0, 1])
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=1.0), plan_of(weights))
    egd.active.zero_()
    assert egd.active.all()


def test_a_stack_saves_and_resumes() -> None:
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
    twins, twins_optimizer, twins_egd = begin()
    with torch.no_grad():
        for name, parameter in twins.items():
            parameter.copy_(weights[name])
    twins_egd.load_state_dict(saved)
    assert twins_egd.active.tolist() == [True, False]
    stacked_train(weights, optimizer, 2, start=3)
    stacked_train(twins, twins_optimizer, 2, start=3)
    assert all(torch.equal(weights[name], twins[name]) for name in weights)


def test_a_nan_in_one_element_leaves_the_others_as_they_would_be() -> None:
    chain = [eg.GrokfastEMA(), eg.Polar()]
    results = []
    for poison in (False, True):
        weights = stacked([0, 1])
        egd = eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan_of(weights), chain)
        for parameter in weights.values():
            parameter.grad = torch.ones_like(parameter)
            parameter.grad[0].uniform_(generator=torch.Generator().manual_seed(0))
        if poison:
            weights["0.weight"].grad[1, 0, 0] = float("nan")
        egd.optimizer.step()
        results.append((weights["0.weight"].detach()[0], egd.state_dict()["tensors"]["0.weight"]["0.mean"]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1][0], results[1][1][0])
    assert not results[1][1][1].any()  # the NaN has not entered the memory


def test_elementwise_transforms_need_the_stack_axis_everywhere() -> None:
    weights = {"w": nn.Parameter(torch.zeros(3, 4, 2)), "temperature": nn.Parameter(torch.zeros(1))}
    plan = eg.matrices(weights, include="w", stack="w")
    with pytest.raises(ValueError, match=r"leading axis of 3 in every parameter, got 'temperature' of shape \(1,\)"):
        eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan, eg.GrokfastEMA())
    eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan, eg.GrokfastEMA(plan=plan))


def test_experts_beside_plain_layers_switch_as_one() -> None:
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


def test_a_percentage_against_a_fraction_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.95))
    with pytest.warns(UserWarning, match=r"metric 12 is above 1, but Until's threshold is 0\.95: .*the same scale"):
        egd.observe(12.0)
    egd.observe(1.0)


@pytest.mark.filterwarnings("error")
def test_metrics_that_may_be_large_are_taken_as_they_are() -> None:
    for until, metric in ((eg.Until(95), 96.0), (eg.Until(0.1, mode="min"), 3.0), (eg.Until(-1.0), 2.0)):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=until).observe(metric)
