"""Which parameters, seen as which matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import network

import egalitarian as eg


class Kitchen(nn.Module):
    """One of everything that a selection must tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.conv = nn.Conv2d(3, 8, 3)
        self.up = nn.ConvTranspose1d(4, 10, 3)
        self.norm = nn.LayerNorm([5, 7])
        self.attention = nn.MultiheadAttention(6, 2)
        self.cross = nn.MultiheadAttention(6, 2, kdim=4, vdim=5)
        self.lstm = nn.LSTM(6, 4)
        self.free = nn.Parameter(torch.zeros(3, 3))
        self.scalar = nn.Parameter(torch.zeros(()))
        self.hidden = nn.Linear(6, 9)
        self.head = nn.Linear(9, 11)


def taken(plan: eg.Plan) -> dict[str, list[tuple[int, int]]]:
    return {entry.name: [(target.rows, target.columns) for target in entry.targets] for entry in plan.taken}


def test_the_default_set() -> None:
    assert taken(eg.matrices(Kitchen())) == {
        "conv.weight": [(8, 27)],
        "up.weight": [(10, 12)],
        "attention.in_proj_weight": [(6, 6)] * 3,
        "attention.out_proj.weight": [(6, 6)],
        "cross.q_proj_weight": [(6, 6)],
        "cross.k_proj_weight": [(6, 4)],
        "cross.v_proj_weight": [(6, 5)],
        "cross.out_proj.weight": [(6, 6)],
        "hidden.weight": [(9, 6)],
    }


def test_taken_and_left_are_all_and_every_one_is_printed_with_its_reason() -> None:
    model = Kitchen()
    plan = eg.matrices(model)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(entry.name for entry in plan) == sorted(names)
    assert len(plan.taken) + len(plan.left) == len(plan) == len(names)
    lines = str(plan).splitlines()
    for entry in plan:
        line = next(line for line in lines if line.startswith(entry.name + " "))
        assert ("taken as" in line) == entry.taken
        assert entry.taken or (entry.reason and entry.reason in line)


def test_a_lone_layer_is_not_a_head() -> None:
    assert list(taken(eg.matrices(nn.Sequential(nn.Linear(3, 4), nn.ReLU())))) == ["0.weight"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"head": None}, ["0.weight", "2.weight", "4.weight"]),
        ({"head": "2"}, ["0.weight", "4.weight"]),
        ({"head": "2.weight"}, ["0.weight", "4.weight"]),
        ({"exclude": "2.*"}, ["0.weight"]),
        ({"exclude": ["0", "4"]}, ["2.weight"]),
        ({"include": "*.weight"}, ["0.weight", "2.weight", "4.weight"]),
        ({"include": nn.Linear}, ["0.weight", "2.weight", "4.weight"]),
        ({"include": [nn.Linear], "exclude": "4"}, ["0.weight", "2.weight"]),
        ({"include": ("0", "4.weight")}, ["0.weight", "4.weight"]),
        ({"include": nn.Linear, "head": "4"}, ["0.weight", "2.weight"]),
    ],
)
def test_include_exclude_and_head(options: dict[str, Any], names: list[str]) -> None:
    assert list(taken(eg.matrices(network(), **options))) == names


def test_parameters_themselves_select() -> None:
    model = network()
    assert list(taken(eg.matrices(model, include=model[4].weight))) == ["4.weight"]
    assert list(taken(eg.matrices(model, exclude=[model[0].weight]))) == ["2.weight"]


def test_a_container_selects_what_is_inside() -> None:
    model = nn.ModuleDict({"encoder": network(), "decoder": network(1)})
    assert set(taken(eg.matrices(model, include="encoder"))) == {"encoder.0.weight", "encoder.2.weight", "encoder.4.weight"}
    assert set(taken(eg.matrices(model, exclude="encoder"))) == {"decoder.0.weight", "decoder.2.weight"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.head = nn.Linear(4, 2)


def test_a_tied_weight_with_an_excluded_owner_is_left() -> None:
    plan = eg.matrices(Tied())
    assert list(taken(plan)) == ["hidden.weight"]
    assert "embedding.weight = output.weight" in str(plan)
    assert list(taken(eg.matrices(Tied(), include=nn.Linear, exclude="head"))) == ["hidden.weight"]
    assert list(taken(eg.matrices(Tied(), include=nn.Linear, exclude="output"))) == ["hidden.weight", "head.weight"]


def test_naming_a_tied_weight_takes_it() -> None:
    assert list(taken(eg.matrices(Tied(), include="output.weight"))) == ["embedding.weight"]


def test_split_is_the_same_as_separate_parameters() -> None:
    gradient = torch.randn(12, 5)
    fused = nn.Linear(5, 12, bias=False)
    fused.weight.grad = gradient.clone()
    eg.equalize_(eg.matrices(fused, split={"weight": (6, 2, 4)}))
    expected = torch.cat([eg.polar(part) for part in gradient.split((6, 2, 4))])
    assert torch.equal(fused.weight.grad, expected)


def test_a_stack_is_the_same_as_separate_matrices() -> None:
    gradient = torch.randn(3, 5, 4)
    experts = {"w": nn.Parameter(torch.zeros(3, 5, 4))}
    experts["w"].grad = gradient.clone()
    eg.equalize_(eg.matrices(experts, include="w", stack="w"))
    for mine, each in zip(experts["w"].grad, gradient, strict=True):
        torch.testing.assert_close(mine, eg.polar(each))


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_convolutions_are_flattened_to_out_by_rest(kind: Any) -> None:
    layer = kind(2, 6, 3, bias=False)
    gradient = torch.randn_like(layer.weight)
    layer.weight.grad = gradient.clone()
    eg.equalize_(eg.matrices(layer))
    assert torch.equal(layer.weight.grad.flatten(1), eg.polar(gradient.flatten(1)))


def test_fold_and_write_are_inverse_whatever_the_view() -> None:
    model = Kitchen()
    for entry in eg.matrices(model, split={"hidden.weight": (4, 5)}).taken:
        out = torch.full_like(entry.parameter, torch.nan)
        for target in entry.targets:
            folded = target.fold(entry.parameter.detach())
            assert folded.shape == (target.rows, target.columns)
            target.write(folded, into=out)
        assert torch.equal(out, entry.parameter)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"include": "fc1.weight"}, ValueError, "'fc1.weight', which matches nothing"),
        ({"exclude": "nope*"}, ValueError, r"exclude must match a parameter, got 'nope\*'"),
        ({"head": "nope"}, ValueError, "head must match a parameter"),
        ({"split": {"nope": (1, 2)}}, ValueError, "split must match a parameter"),
        ({"stack": "nope"}, ValueError, "stack must match a parameter"),
        ({"include": nn.Conv2d}, ValueError, "got Conv2d; the model has no such module"),
        ({"include": torch.zeros(2, 2)}, ValueError, "got a tensor of shape"),
        ({"include": "0.bias"}, ValueError, r"include must name matrices, got '0.bias' of shape \(8,\)"),
        ({"include": 3}, TypeError, "got 3"),
        ({"include": [int]}, TypeError, "int"),
        ({"exclude": "*"}, ValueError, "at least one matrix, got none of 6 parameters"),
        ({"split": {"0.weight": (3, 4)}}, ValueError, "add up to the 8 output rows of '0.weight'"),
        ({"split": {"0.weight": (8, 0)}}, ValueError, "positive sizes"),
        ({"split": {"0.weight": 2}}, ValueError, "positive sizes"),
        ({"split": {"4.weight": (1, 2)}}, ValueError, "which is left alone"),
        ({"stack": True}, ValueError, "every leading axis must have the same length"),
    ],
)
def test_bad_selections(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        eg.matrices(network(), **options)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean 2\.weight"):
        eg.matrices(network(), include="2.wieght")


def test_bad_models() -> None:
    with pytest.raises(TypeError, match="got list"):
        eg.matrices([torch.zeros(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lazy parameter"):
        eg.matrices(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(ValueError, match="include must name what to take"):
        eg.matrices({"w": torch.zeros(2, 2)})
    with pytest.raises(TypeError, match="must hold tensors, got int for 'w'"):
        eg.matrices({"w": 3}, include="w")  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="complex64"):
        eg.matrices({"w": torch.zeros(2, 2, dtype=torch.complex64)}, include="w")


def test_what_is_not_floating_point_is_left_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64), nn.Linear(3, 3), nn.Linear(3, 3))
    assert list(taken(plan := eg.matrices(model))) == ["1.weight"]
    assert "complex64" in str(plan)


def test_the_plan_of_an_attachment_shows_the_transform() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eg.attach(optimizer, model, eg.LowRankPolar(6, cap=True)) as egd:
        text = str(egd.plan)
        assert "rank 6" in text
        assert "rank 5, capped from 6" in text
    with eg.attach(optimizer, model, eg.Polar(compute=torch.bfloat16)) as egd:
        assert "cut-off 0.005, gradients computed in bfloat16" in str(egd.plan)
    with eg.attach(optimizer, model) as egd:
        assert "1e-06 for float32" in str(egd.plan)


def test_groups_give_what_is_taken_its_own_settings() -> None:
    model = network()
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}, left={"weight_decay": 1e-4, "lr": 0.5}), lr=3.0)
    first, second = optimizer.param_groups
    assert first["param_names"] == ["0.weight", "2.weight"]
    assert (first["weight_decay"], first["lr"], second["weight_decay"], second["lr"]) == (0.03, 3.0, 1e-4, 0.5)
    assert len(first["params"]) + len(second["params"]) == len(list(model.parameters()))
    eg.attach(optimizer, plan)
