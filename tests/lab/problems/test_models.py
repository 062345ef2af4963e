"""Models: initialisers by their moments, and every fast way of computing a stack against the plain one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import MODULAR, gradients, law
from torch import Tensor, nn

from egalitarian.lab.config import catalog
from egalitarian.lab.problems.models import MLP, Model, add_columns, initial
from egalitarian.lab.problems.tasks import Modular, Parity, stream

SEEDS, POINTS = 3, 9
TOLERANCE = 1e-13  # float64: sums of some 20 products of order 1, each exact to 1e-16


def stacked(mlp: MLP, task: Any, seeds: int = SEEDS, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    starts = [mlp.start(task, seed) for seed in range(seeds)]
    stacks = {name: torch.stack([start[name] for start in starts]).to(dtype) for name in starts[0]}
    stacks["hidden.bias"] += torch.randn(stacks["hidden.bias"].shape, generator=stream(0, "bias"), dtype=dtype)
    return {name: stack.requires_grad_() for name, stack in stacks.items()}


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


# starts


@pytest.mark.parametrize(("rule", "variance"), [("he", 2 / 60), ("torch", 1 / 60 / 3)])
def test_a_rule_has_the_variance_it_names(rule: str, variance: float) -> None:
    values = initial(rule, (200, 500), 60, stream(0, "init")).double()
    fourth = 3.0 if rule == "he" else 9 / 5  # kurtosis of a Gaussian, of a uniform
    of_the_variance = variance * math.sqrt((fourth - 1) / values.numel())
    assert abs(float(values.mean())) < 5 * math.sqrt(variance / values.numel())
    assert abs(float(values.var()) - variance) < 5 * of_the_variance
    assert abs(float((values**4).mean()) / variance**2 - fourth) < 0.1


def test_torchs_rule_is_that_of_a_linear_layer() -> None:
    bound = 1 / math.sqrt(60)
    values, layer = initial("torch", (200, 60), 60, stream(0, "init")), nn.Linear(60, 200)
    assert bound * 0.999 < float(values.abs().max()) <= bound
    assert bound * 0.999 < float(layer.weight.detach().abs().max()) <= bound
    assert float(layer.bias.detach().abs().max()) <= bound


def test_zeros_are_zeros() -> None:
    assert not initial("zeros", (5,), 60, stream(0, "init")).any()


@pytest.mark.parametrize(
    "task", [Modular(operation="+", modulus=7), Parity(bits=14, secret_bits=2, train_size=4, test_size=4)]
)
def test_a_start_has_torchs_shapes_and_each_layers_fan_in(task: Any) -> None:
    start = MLP(width=4000, bias="he").start(task, 0)
    assert {name: tuple(tensor.shape) for name, tensor in start.items()} == {
        "hidden.weight": (4000, 14),
        "hidden.bias": (4000,),
        "output.weight": (task.outputs, 4000),
    }
    for name, fan_in in (("hidden.weight", 14), ("hidden.bias", 14), ("output.weight", 4000)):
        entries = start[name].numel()
        assert abs(float(start[name].double().var()) / (2 / fan_in) - 1) < 5 * math.sqrt(2 / entries)


def test_a_start_depends_on_the_seed_and_on_nothing_else() -> None:
    task, mlp = Modular(operation="+", modulus=7), MLP(width=16)
    before = torch.get_rng_state()
    first = mlp.start(task, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert all(torch.equal(first[name], tensor) for name, tensor in mlp.start(task, 0).items())
    assert not torch.equal(first["hidden.weight"], mlp.start(task, 1)["hidden.weight"])
    assert not first["hidden.bias"].any()


def test_scale_multiplies_every_parameter() -> None:
    task = Modular(operation="+", modulus=7)
    plain, scaled = MLP(width=16, bias="torch").start(task, 0), MLP(width=16, bias="torch", scale=8).start(task, 0)
    assert all(torch.equal(scaled[name], 8 * tensor) for name, tensor in plain.items())


# computing


@law
@given(seed=st.integers(0, 1000), width=st.integers(1, 20), points=st.integers(1, 12))
def test_a_stack_of_points_is_what_each_network_gives(seed: int, width: int, points: int) -> None:
    task, mlp = Parity(bits=6, secret_bits=2, train_size=4, test_size=4), MLP(width=width)
    parameters = stacked(mlp, task)
    inputs = torch.randn(SEEDS, points, 6, generator=stream(seed, "inputs"), dtype=torch.float64)
    fast, plain = mlp.forward(parameters, inputs), Model.forward(mlp, parameters, inputs)
    assert fast.shape == (SEEDS, points, 1)
    assert_same(fast, plain)
    for one, other in zip(gradients(fast, parameters), gradients(plain, parameters), strict=True):
        assert_same(one, other)


@law
@given(seed=st.integers(0, 1000), width=st.integers(1, 20), points=st.integers(1, 12), places=st.integers(1, 4))
def test_lookups_are_dense_one_hots_in_value_and_gradient(seed: int, width: int, points: int, places: int) -> None:
    task, mlp = Modular(operation="+", modulus=5), MLP(width=width)
    parameters = stacked(mlp, task)
    named = torch.randint(0, task.features, (SEEDS, points, places), generator=stream(seed, "inputs"))  # some twice
    dense = nn.functional.one_hot(named, task.features).sum(-2).double()
    looked_up, by_one = mlp.forward(parameters, named), Model.forward(mlp, parameters, named)
    multiplied = mlp.forward(parameters, dense)
    assert_same(looked_up, multiplied)
    assert_same(by_one, multiplied)
    expected = gradients(multiplied, parameters)
    for found in (gradients(looked_up, parameters), gradients(by_one, parameters)):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)


def test_one_network_is_written_as_it_reads() -> None:
    task, mlp = Parity(bits=6, secret_bits=2, train_size=4, test_size=4), MLP(width=5)
    parameters = {name: tensor[0] for name, tensor in stacked(mlp, task).items()}
    x = torch.randn(POINTS, 6, dtype=torch.float64, generator=stream(0, "x"))
    W1, b1, W2 = parameters.values()
    assert_same(mlp.one(parameters, x), (x @ W1.mT + b1).clamp_min(0) @ W2.mT)


def test_inputs_and_parameters_are_not_changed_by_computing() -> None:
    task, mlp = Modular(operation="+", modulus=5), MLP(width=4)
    parameters, inputs = stacked(mlp, task), torch.tensor([[[0, 7], [1, 5]]] * SEEDS)
    before = [tensor.detach().clone() for tensor in (inputs, *parameters.values())]
    mlp.forward(parameters, inputs).sum().backward()
    assert all(torch.equal(one, other.detach()) for one, other in zip(before, (inputs, *parameters.values()), strict=True))


def test_a_lookup_does_not_see_its_neighbours_columns() -> None:
    weight = torch.arange(12.0).reshape(2, 2, 3)
    found = add_columns(weight, torch.tensor([[[0, 2]], [[1, 1]]]))
    assert found.tolist() == [[0 + 2, 3 + 5], [7 + 7, 10 + 10]]


@pytest.mark.parametrize("name", ["addition-97", "parity-3"])
def test_backward_is_bitwise_the_same_every_time_on_two_threads(name: str) -> None:
    torch.set_num_threads(2)
    experiment = catalog.load(name)
    task, mlp = experiment.task, experiment.model
    parameters = stacked(mlp, task, dtype=torch.float32)
    data = [task.build(seed).train.inputs[:512] for seed in range(SEEDS)]
    inputs = torch.stack(data)
    first = gradients(mlp.forward(parameters, inputs), parameters)
    for _ in range(19):
        again = gradients(mlp.forward(parameters, inputs), parameters)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_small_experiment_is_stored_as_the_large_one_is() -> None:
    """Columns whole in memory for lookups, rows for points: the same arithmetic at every size."""
    for name, transposed in (("addition-97", True), ("parity-3", False)):
        for changes in ((), MODULAR if transposed else ("model.width=12",)):
            experiment = catalog.load(name, changes)
            weight = experiment.model.start(experiment.task, 0)["hidden.weight"]
            assert weight.mT.is_contiguous() == transposed
            assert weight.is_contiguous() != transposed
