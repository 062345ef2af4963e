"""The engine: a live view of param groups, with names that never change, for `attach` and `EGD` alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import assert_equalised, hidden_updates, loss_of, network, parameters, train

import egalitarian as eg
from egalitarian.apply import PassSettings
from egalitarian.optimizers.engine import Engine
from egalitarian.select import Entry, whole
from egalitarian.transforms import as_chain


def weights(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full((3, 2), float(index))) for index in range(count)]


class CountingEngine(Engine):
    """An engine that takes every parameter as one matrix, and counts how often it describes one."""

    def __init__(
        self,
        transform: Any = eg.Polar(),
        names: dict[Tensor, str] | None = None,
        check: Callable[[Sequence[Entry]], None] = lambda entries: None,
    ) -> None:
        self.described = 0
        super().__init__(as_chain(transform), None, names or {}, self._count, check)

    def _count(self, name: str, parameter: Tensor, group: dict[str, Any]) -> Entry:
        self.described += 1
        return whole(name, parameter)

    def names(self, groups: list[dict[str, Any]]) -> list[str]:
        return [entry.name for entry in self.entries(groups)]


def test_a_parameter_has_the_name_of_the_plan_or_of_the_optimizer_or_of_its_index() -> None:
    a, b, c, d = weights(4)
    groups = [{"params": [a, b], "param_names": ["x", "y"]}, {"params": [c, d]}]
    names = ["planned", "y", "param_groups[1].params[0]", "param_groups[1].params[1]"]
    assert CountingEngine(names={a: "planned"}).names(groups) == names


def test_a_name_never_changes_when_groups_do() -> None:
    a, b, c = weights(3)
    engine = CountingEngine()
    assert engine.names([{"params": [a]}, {"params": [b]}]) == ["param_groups[0].params[0]", "param_groups[1].params[0]"]
    assert engine.names([{"params": [b]}]) == ["param_groups[1].params[0]"]
    assert engine.names([{"params": [c, b]}]) == ["param_groups[0].params[0]'", "param_groups[1].params[0]"]


def test_no_two_parameters_share_a_name() -> None:
    a, b, c = weights(3)
    groups = [{"params": [a, b, c], "param_names": ["w", "w", "w"]}]
    assert CountingEngine().names(groups) == ["w", "param_groups[0].params[1]", "param_groups[0].params[2]"]


def test_entries_are_rebuilt_only_when_groups_change() -> None:
    a, b = weights(2)
    groups: list[dict[str, Any]] = [{"params": [a], "lr": 0.1}]
    engine = CountingEngine()
    for _ in range(3):
        engine.entries(groups)
    groups[0]["lr"] = 0.2
    engine.entries(groups)
    assert engine.described == 1
    groups[0]["equalize"] = False
    engine.entries(groups)
    assert engine.described == 2
    groups[0]["params"].append(b)
    engine.entries(groups)
    assert engine.described == 4
    groups[0] = dict(groups[0])  # as `load_state_dict` replaces it
    engine.entries(groups)
    assert engine.described == 6


def test_refused_groups_change_nothing_and_claim_no_name() -> None:
    a, b, c = weights(3)

    def refuse(entries: Sequence[Entry]) -> None:
        if any(entry.parameter is b for entry in entries):
            raise ValueError("refused")

    engine = CountingEngine(check=refuse)
    groups = [{"params": [a], "param_names": ["a"]}]
    before = engine.entries(groups)
    with pytest.raises(ValueError, match="refused"):
        engine.entries([*groups, {"params": [b], "param_names": ["b"]}])
    assert engine.entries(groups) is before
    assert engine.names([*groups, {"params": [c], "param_names": ["b"]}]) == ["a", "b"]


def test_decay_is_as_given_or_of_the_group_and_negated_if_the_optimizer_maximizes() -> None:
    a, b = weights(2)
    groups = [{"params": [a], "decay_before": 0.3}, {"params": [b], "decay_before": 0.4, "maximize": True}]
    engine = CountingEngine()
    first, second = engine.entries(groups)
    assert (engine.decay(first), engine.decay(second)) == (0.3, -0.4)
    assert (engine.decay(first, 0.1), engine.decay(second, 0.1)) == (0.1, -0.1)


def test_parameters_without_a_step_have_the_memory_from_before_the_first() -> None:
    a, b = weights(2)
    engine = CountingEngine(eg.Momentum(0.5))
    a.grad = torch.ones(3, 2)
    state = engine.step([{"params": [a]}], PassSettings(engine.chain), eg.State())
    assert state.step == 1
    memories = engine.memories([{"params": [a, b]}], state)
    assert torch.equal(memories["param_groups[0].params[0]"]["0.mean"], torch.full((3, 2), 0.5))
    assert torch.equal(memories["param_groups[0].params[1]"]["0.mean"], torch.zeros(3, 2))
    assert set(engine.memories([{"params": [b]}], state)) == {"param_groups[0].params[1]"}


def test_a_step_writes_transformed_gradients_and_counts() -> None:
    a, b = weights(2)
    gradient = torch.randn(3, 2)
    a.grad = gradient.clone()
    engine = CountingEngine()
    state = engine.step([{"params": [a, b]}], PassSettings(engine.chain), eg.State(7))
    assert (state.step, dict(state.tensors)) == (8, {})
    assert torch.equal(a.grad, eg.polar(gradient))
    assert b.grad is None


# -- param groups of an optimizer --------------------------------------------------------------------------------------


def test_a_group_added_later_is_equalised() -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    assert "(not in the optimizer)" in str(egd.plan)
    assert str(egd.plan).endswith("; 1 of them not in the optimizer")
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 2.0})
    assert "(not in the optimizer)" not in str(egd.plan)
    before = parameters(model)
    train(model, optimizer, 1)
    first, second = hidden_updates(model, before)
    assert_equalised([first], 1.0)
    assert_equalised([second], 2.0)


def test_a_parameter_outside_the_plan_takes_a_plain_step() -> None:
    model = network()
    unknown = nn.Parameter(torch.ones(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    optimizer.add_param_group({"params": [unknown]})
    loss_of(model).backward()
    unknown.grad = torch.full((3, 3), 0.25)
    with pytest.warns(UserWarning, match=r"'param_groups\[1\].params\[0\]' joined the optimizer but not the plan"):
        optimizer.step()
    assert torch.equal(unknown.detach(), torch.full((3, 3), 0.75))


def test_a_matrix_is_equalised_after_it_is_unfrozen() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    model[0].requires_grad_(False)
    before = parameters(model)
    train(model, optimizer, 1)
    assert torch.equal(before[0], model[0].weight)
    model[0].requires_grad_(True)
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))


def test_a_missing_gradient_stays_missing() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()])
    loss_of(model).backward()
    model[0].weight.grad = None
    before = parameters(model)
    optimizer.step()
    assert model[0].weight.grad is None
    assert torch.equal(before[0], model[0].weight)
    assert_equalised([model[2].weight.grad])


def test_a_tied_weight_is_equalised_once() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    assert [entry.name for entry in egd.plan.taken] == ["0.weight"]
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised([before[0] - parameters(model)[0]])


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["attached", "EGD"])
def test_a_compiled_model_and_step_equal_the_eager_ones(backend: str, kind: str) -> None:
    torch._dynamo.reset()
    eager, model = network(), network()
    compiled = torch.compile(model, backend=backend)
    optimizers: list[torch.optim.Optimizer] = []
    for each in (eager, compiled):
        if kind == "EGD":
            optimizers.append(eg.EGD(eg.matrices(each), lr=0.1))
        else:
            optimizers.append(torch.optim.SGD(each.parameters(), lr=0.1))
            eg.attach(optimizers[-1], each)
    step = torch.compile(optimizers[1].step, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of dynamo
        for number in range(3):
            optimizers[1].zero_grad()
            loss_of(compiled, number).backward()
            step()
    train(eager, optimizers[0], 3)
    for a, b in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
