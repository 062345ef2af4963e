"""Tasks against Python's own arithmetic; and a seed means the same data whatever was drawn before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import law
from torch import Tensor

from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.problems.tasks import Modular, ModularSequence, Parity, Task, is_prime, stream

PRIMES = [2, 3, 5, 7, 11, 13, 31, 97]
seeds = st.integers(0, 2**31)
PARITY: dict[str, Any] = {"bits": 12, "secret_bits": 3, "train_size": 50, "test_size": 30}


def answers(operation: str, modulus: int) -> dict[tuple[int, int], int]:
    """Every pair and its answer, by Python."""
    pairs = [(a, b) for a in range(modulus) for b in range(modulus) if b or operation != "/"]
    rule = {
        "+": lambda a, b: (a + b) % modulus,
        "-": lambda a, b: (a - b) % modulus,
        "*": lambda a, b: (a * b) % modulus,
        "/": lambda a, b: next(c for c in range(modulus) if (c * b) % modulus == a),
    }[operation]
    return {pair: rule(*pair) for pair in pairs}


def as_dict(inputs: Tensor, labels: Tensor, modulus: int) -> dict[tuple[int, int], int]:
    assert inputs.dtype == labels.dtype == torch.int64
    pairs = [(a, b - modulus) for a, b in inputs.tolist()]
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, labels.tolist(), strict=True))


# modular arithmetic


@law
@given(operation=st.sampled_from("+-*"), modulus=st.integers(2, 30))
def test_tables_are_pythons(operation: str, modulus: int) -> None:
    table = Modular(operation=operation, modulus=modulus).table()
    assert as_dict(*table, modulus) == answers(operation, modulus)


@pytest.mark.parametrize("modulus", PRIMES[:-1])
def test_quotients_are_pythons(modulus: int) -> None:
    task = Modular(operation="/", modulus=modulus)
    assert as_dict(*task.table(), modulus) == answers("/", modulus)
    assert task.pairs == modulus * (modulus - 1)


@law
@given(operation=st.sampled_from("+-*/"), modulus=st.sampled_from(PRIMES[1:6]), fraction=st.floats(0.2, 0.8), seed=seeds)
def test_train_and_test_part_all_pairs(operation: str, modulus: int, fraction: float, seed: int) -> None:
    task = Modular(operation=operation, modulus=modulus, train_fraction=fraction)
    data = task.build(seed)
    train, test = as_dict(*data.train, modulus), as_dict(*data.test, modulus)
    assert not train.keys() & test.keys()
    assert train | test == answers(operation, modulus)
    assert len(train) == task.train_size == math.floor(task.pairs * fraction)


@pytest.mark.parametrize("modulus", [4, 6, 9, 15, 91])
def test_division_by_a_composite_modulus_is_an_error(modulus: int) -> None:
    with pytest.raises(SpecError, match=rf"modulus must be a prime for division, got {modulus}; .*inverse"):
        Modular(operation="/", modulus=modulus)


def test_a_split_without_pairs_on_both_sides_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"train_fraction must leave pairs on both sides, got 0\.01; try 0\.5"):
        Modular(operation="+", modulus=3, train_fraction=0.01)


@law
@given(st.integers(-5, 400))
def test_primes_are_those_with_two_divisors(number: int) -> None:
    assert is_prime(number) == (len([d for d in range(1, number + 1) if number % d == 0]) == 2)


def test_shapes_are_what_the_network_is_built_for() -> None:
    task = Modular(operation="+", modulus=11)
    data = task.build(0)
    assert (task.features, task.outputs, task.looked_up) == (22, 11, True)
    assert int(data.train.inputs.max()) < task.features
    assert int(data.train.labels.max()) < task.outputs


# sequences


@pytest.mark.parametrize(("operation", "first"), [("+", 0), ("-", 0), ("*", 1), ("/", 1)])
def test_sequences_are_spelled_out_and_answered_as_python_does(operation: str, first: int) -> None:
    task = ModularSequence(operation=operation, modulus=7)
    data = task.build(3)
    expected = {(a, 7, b, 8): answer for (a, b), answer in answers(operation, 7).items() if b >= first}
    inputs = torch.cat([data.train.inputs, data.test.inputs]).tolist()
    labels = torch.cat([data.train.labels, data.test.labels]).tolist()
    assert dict(zip(map(tuple, inputs), labels, strict=True)) == expected
    assert len(inputs) == len(expected) == task.pairs
    assert len(data.train.labels) == task.pairs // 2
    assert (task.features, task.outputs, task.tokens, task.looked_up) == (9, 9, 4, False)


# parity


@law
@given(seed=seeds, bits=st.integers(1, 20), data=st.data(), secret=st.sampled_from(["random", "first"]))
def test_labels_are_products_of_the_secret_bits(seed: int, bits: int, data: st.DataObject, secret: str) -> None:
    task = Parity(**{**PARITY, "bits": bits, "secret_bits": data.draw(st.integers(1, bits)), "secret": secret})
    built, subset = task.build(seed), task.subset(seed).tolist()
    assert len(set(subset)) == task.secret_bits
    assert set(subset) <= set(range(bits))
    for split, size in ((built.train, 50), (built.test, 30)):
        assert split.inputs.shape == (size, bits)
        assert set(split.inputs.unique().tolist()) <= {-1.0, 1.0}
        assert split.labels.tolist() == [math.prod(row[bit] for bit in subset) for row in split.inputs.tolist()]


def test_the_secret_is_drawn_by_the_seed_or_the_first_bits() -> None:
    random, first = Parity(**PARITY), Parity(**PARITY, secret="first")
    subsets = [tuple(random.subset(seed).tolist()) for seed in range(20)]
    assert len(set(subsets)) > 10  # of 220
    assert subsets == [tuple(random.subset(seed).tolist()) for seed in range(20)]
    assert {tuple(first.subset(seed).tolist()) for seed in range(20)} == {(0, 1, 2)}


def test_the_bits_are_fair_and_the_parts_are_drawn_apart() -> None:
    data = Parity(bits=50, secret_bits=4, train_size=2000, test_size=2000).build(0)
    bound = 5 / math.sqrt(data.train.inputs.numel())  # five standard errors of a mean of signs
    assert abs(float(data.train.inputs.mean())) < bound
    assert abs(float((data.train.inputs * data.test.inputs).mean())) < bound
    assert abs(float(data.train.labels.mean())) < 5 / math.sqrt(2000)


def test_more_secret_bits_than_bits_is_an_error() -> None:
    with pytest.raises(SpecError, match="secret_bits must be at most bits = 12, got 13; lower it"):
        Parity(**{**PARITY, "secret_bits": 13})


# seeds


TASKS: dict[str, Task] = {
    "modular": Modular(operation="*", modulus=11),
    "sequence": ModularSequence(operation="*", modulus=11),
    "parity": Parity(**PARITY),
}


def tensors(task: Task, seed: int) -> list[Tensor]:
    data = task.build(seed)
    return [*data.train, *data.test]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_seed_gives_the_same_data_whatever_was_drawn_before(task: Task) -> None:
    first = tensors(task, 3)
    torch.manual_seed(99)
    torch.rand(5)
    task.build(4)
    stream(3, "something else").get_state()
    assert all(torch.equal(one, other) for one, other in zip(first, tensors(task, 3), strict=True))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_global_generator_is_left_alone(task: Task) -> None:
    before = torch.get_rng_state()
    task.build(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_other_seeds_give_other_data(task: Task) -> None:
    assert len({tuple(tensors(task, seed)[0].flatten().tolist()) for seed in range(10)}) == 10


def test_streams_differ_by_seed_and_purpose_and_are_the_same_everywhere() -> None:
    def draw(*of: Any) -> int:
        return int(torch.randint(0, 2**62, (), generator=stream(*of)))

    purposes = [
        (0, "split"),
        (1, "split"),
        (0, "batches", 0),
        (0, "batches", 1),
        (0, "init"),
        (0, "batches"),
        (10, "split"),
    ]
    assert len({draw(*of) for of in purposes}) == len(purposes)
    assert torch.randperm(8, generator=stream(0, "split")).tolist() == [5, 0, 6, 4, 1, 7, 2, 3]  # stored runs have these
