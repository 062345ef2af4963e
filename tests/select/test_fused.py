"""Fused weights: split where the class is known, whole and marked where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import GPTNeoXAttention
from torch import nn
from toy import shapes_taken

import egalitarian as eg
from egalitarian.select import Target


class CausalSelfAttention(nn.Module):
    """The attention of nanoGPT: query, key and value one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.n_embd = 6
        self.c_attn, self.c_proj = nn.Linear(6, 18), nn.Linear(6, 6)


class Attention(nn.Module):
    """Of somebody: nobody knows in which order its rows are."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(6, 18), nn.Linear(6, 6)


def test_a_known_class_is_split() -> None:
    assert shapes_taken(eg.matrices(CausalSelfAttention(), head=None))["c_attn.weight"] == [(6, 6)] * 3


def test_a_class_that_is_not_known_stays_whole_and_the_plan_says_so() -> None:
    plan = eg.matrices(Attention(), head=None)
    assert shapes_taken(plan)["qkv.weight"] == [(18, 6)]
    assert "taken as 18 x 6 (one matrix, perhaps several fused: split= parts them)" in str(plan)
    assert "perhaps" not in str(eg.matrices(Attention(), head=None, split={"qkv.weight": (6, 6, 6)}))


def test_split_replaces_what_is_known() -> None:
    plan = eg.matrices(CausalSelfAttention(), head=None, split={"c_attn.weight": (18,)})
    assert shapes_taken(plan)["c_attn.weight"] == [(18, 6)]


def test_rows_in_turns_are_equalised_as_the_matrices_that_they_form() -> None:
    """Query, key and value of each head follow each other; the matrices are those of all heads."""
    attention = GPTNeoXAttention()
    plan = eg.matrices(attention, head=None)
    weight = attention.query_key_value.weight
    gradient = torch.randn_like(weight)
    weight.grad = gradient.clone()
    eg.equalize_(plan)
    of_heads = gradient.reshape(3, 3, 2, 6)  # head, projection, row of the head
    expected = torch.stack([eg.polar(of_heads[:, part].reshape(6, 6)).reshape(3, 2, 6) for part in range(3)], 1)
    torch.testing.assert_close(weight.grad, expected.reshape(18, 6))
    assert [target.name for target in plan.targets][:2] == [
        "query_key_value.weight[0:2 of every 6]",
        "query_key_value.weight[2:4 of every 6]",
    ]


@pytest.mark.parametrize("size", [4, None])
def test_another_class_of_a_known_name_stays_whole(size: int | None) -> None:
    """Its rows do not fit, or it lacks what a known class has."""
    attention = GPTNeoXAttention()
    del attention.head_size
    if size is not None:
        attention.head_size = size
    plan = eg.matrices(attention, head=None)
    assert shapes_taken(plan)["query_key_value.weight"] == [(18, 6)]
    assert "perhaps several fused" in str(plan)


@pytest.mark.parametrize("stack", [None, 2])
@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("repeats", [1, 3])
def test_targets_part_a_parameter_without_rest(stack: int | None, output: int, repeats: int) -> None:
    """Writing every folded target restores the parameter, and each entry is in one target."""
    rows, columns = 12, 5
    shape: Any = (rows, columns) if output == 0 else (columns, rows)
    parameter = torch.arange(rows * columns * (stack or 1), dtype=torch.float32)
    parameter = parameter.reshape(shape if stack is None else (stack, *shape))
    size = rows // repeats
    targets = [
        Target(f"{start}", length * repeats, columns, stack, output, start, repeats)
        for start, length in ((0, 1), (1, size - 1))
    ]
    out = torch.full_like(parameter, torch.nan)
    for target in targets:
        folded = target.fold(parameter)
        assert folded.shape == ((target.rows, columns) if stack is None else (stack, target.rows, columns))
        target.write(folded, into=out)
    assert torch.equal(out, parameter)
    assert sum(target.fold(parameter).numel() for target in targets) == parameter.numel()
