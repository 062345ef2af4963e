"""Groups of modular tasks: the axioms on every pair, and which moduli have one."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from egalitarian.lab.problems import Group, Modular, ModularSequence
from egalitarian.lab.problems.groups import Operation
from egalitarian.lab.problems.tasks import Task

KNOWN: list[tuple[Operation, int]] = [
    *((operation, modulus) for operation in ("+", "-") for modulus in (2, 3, 4, 7, 12)),
    *((operation, modulus) for operation in ("*", "/") for modulus in (3, 5, 7, 97)),
]


@pytest.mark.parametrize(("operation", "modulus"), KNOWN)
def test_answers_and_partners_are_those_of_arithmetic(operation: Operation, modulus: int) -> None:
    group = Group(operation, modulus)
    elements = group.elements.tolist()
    members = list(range(modulus)) if operation in ("+", "-") else list(range(1, modulus))
    assert sorted(elements) == members
    assert (group.size, group.frequencies) == (len(members), len(members) // 2)
    assert [group.logarithms[element].item() for element in elements] == list(range(group.size))
    for s, t in product(range(group.size), repeat=2):
        a, b, answer = elements[s], elements[t], elements[group.answers[s, t]]
        back = {"+": answer - b, "-": answer + b, "*": a * b, "/": answer * b}[operation]
        assert back % modulus == (answer if operation == "*" else a)
        assert group.partners[group.answers[s, t], s] == t


def test_logarithms_turn_products_into_sums() -> None:
    group = Group("*", 97)
    for a, b in ((5, 96), (12, 13), (1, 44)):
        log = group.logarithms[a] + group.logarithms[b]
        assert group.elements[log % 96] == a * b % 97
    assert group.logarithms[0] == -1


@pytest.mark.parametrize(("operation", "modulus"), [("*", 2), ("/", 2), ("*", 12), ("*", 9), ("+", 1)])
def test_a_modulus_without_a_group_is_refused(operation: Operation, modulus: int) -> None:
    assert Group.of(operation, modulus) is None
    with pytest.raises(ValueError, match=rf"^modulus must be .*, got {modulus}; "):
        Group(operation, modulus)


@pytest.mark.parametrize("kind", [Modular, ModularSequence])
@pytest.mark.parametrize(("operation", "modulus"), [("+", 6), ("-", 5), ("*", 7), ("/", 5)])
def test_the_tasks_labels_are_the_groups_answers(kind: type[Modular], operation: Operation, modulus: int) -> None:
    task = kind(operation=operation, modulus=modulus)
    group = task.group
    assert group == Group(operation, modulus)
    inputs, labels = task.table()
    a, b = task.decode(inputs)
    assert torch.equal(task.encode(a, b), inputs)
    s, t = group.logarithms[a], group.logarithms[b]
    inside = (s >= 0) & (t >= 0)
    assert inside.sum() == group.size**2
    assert torch.equal(group.elements[group.answers[s[inside], t[inside]]], labels[inside])


def test_tasks_without_a_group() -> None:
    class Squares(Modular):
        def answers(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a * a + b * b) % self.modulus

    tasks: list[Task] = [Modular(operation="*", modulus=12), Squares(operation="+", modulus=5)]
    assert [task.group for task in tasks] == [None, None]
