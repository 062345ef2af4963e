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


def test_the_order_of_nanogpt_is_taken_from_the_name_and_the_plan_says_so() -> None:
    """Its class has no package of its own: another one of that name may order its rows differently."""
    plan = eg.matrices(CausalSelfAttention(), head=None)
    assert shapes_taken(plan)["c_attn.weight"] == [(6, 6)] * 3
    assert "taken as 3 times 6 x 6 (rows taken to be query, key and value one after another; split= changes that)" in str(
        plan
    )
    assert "rows taken" not in str(eg.matrices(CausalSelfAttention(), head=None, split={"c_attn.weight": (6, 6, 6)}))


def test_a_class_is_known_in_its_package_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's class of the same name may order its rows differently."""
    plan = eg.matrices(GPTNeoXAttention(), head=None)
    assert "taken as 3 times 6 x 6, rows interleaved in 3 groups" in str(plan)
    monkeypatch.setattr(GPTNeoXAttention, "__module__", "mine")
    plan = eg.matrices(GPTNeoXAttention(), head=None)
    assert "taken as 18 x 6 (one matrix, perhaps several fused: split it with split=)" in str(plan)


@pytest.mark.parametrize("name", ["kqv", "kv", "to_kv", "qk", "Wqkv", "w12", "gate_up", "kv_a_proj", "in_proj_ba"])
@pytest.mark.parametrize("outputs", [4, 18])
def test_a_name_that_says_that_there_are_several_is_marked(name: str, outputs: int) -> None:
    assert "perhaps several fused" in marked(name, outputs)


@pytest.mark.parametrize("name", ["c_attn", "attn_proj", "att_proj", "x2h", "in_proj"])
def test_some_names_say_it_where_the_outputs_are_several_times_the_inputs(name: str) -> None:
    assert "perhaps several fused" in marked(name, 18)
    assert "perhaps several fused" not in marked(name, 6)


@pytest.mark.parametrize("name", ["action_in_proj", "protein_projector", "k_proj", "kvasir", "up"])
def test_a_name_in_which_only_letters_coincide_is_not_marked(name: str) -> None:
    assert "perhaps several fused" not in marked(name, 18)


def test_the_first_layer_of_an_mlp_is_one_matrix() -> None:
    mlp = type("MLP", (nn.Module,), {})()
    mlp.in_proj, mlp.out_proj = nn.Linear(6, 24), nn.Linear(24, 6)
    assert "perhaps" not in str(eg.matrices(mlp, head=None))


def marked(name: str, outputs: int) -> str:
    """The line of a layer with this name and 6 inputs."""
    model = nn.ModuleDict({name: nn.Linear(6, outputs), "out": nn.Linear(outputs, 6)})
    return next(entry.verdict for entry in eg.matrices(model, head=None) if entry.name == f"{name}.weight")


def test_a_class_that_is_not_known_stays_whole_and_the_plan_says_so() -> None:
    plan = eg.matrices(Attention(), head=None)
    assert shapes_taken(plan)["qkv.weight"] == [(18, 6)]
    assert "taken as 18 x 6 (one matrix, perhaps several fused: split it with split=)" in str(plan)
    assert "perhaps" not in str(eg.matrices(Attention(), head=None, split={"qkv.weight": (6, 6, 6)}))


def test_split_replaces_what_is_known() -> None:
    plan = eg.matrices(CausalSelfAttention(), head=None, split={"c_attn.weight": (18,)})
    assert shapes_taken(plan)["c_attn.weight"] == [(18, 6)]


def test_interleaved_rows_are_equalised_as_the_matrices_that_they_form() -> None:
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
