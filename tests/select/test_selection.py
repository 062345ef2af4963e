"""Which parameters EGD takes, and as which matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import EveryLayer, network, shapes_taken

import egalitarian as eg


def test_the_default_set_is_every_layer_with_matrices_without_the_head() -> None:
    assert shapes_taken(eg.matrices(EveryLayer())) == {
        "conv.weight": [(8, 27)],
        "up.weight": [(10, 12)],
        "attention.in_proj_weight": [(6, 6)] * 3,
        "attention.out_proj.weight": [(6, 6)],
        "cross.q_proj_weight": [(6, 6)],
        "cross.k_proj_weight": [(6, 4)],
        "cross.v_proj_weight": [(6, 5)],
        "cross.out_proj.weight": [(6, 6)],
        "lstm.weight_ih_l0": [(4, 6)] * 4,
        "lstm.weight_hh_l0": [(4, 4)] * 4,
        "hidden.weight": [(9, 6)],
    }


def test_a_single_layer_is_not_a_head() -> None:
    assert list(shapes_taken(eg.matrices(nn.Sequential(nn.Linear(3, 4), nn.ReLU())))) == ["0.weight"]


def test_split_equals_separate_parameters() -> None:
    gradient = torch.randn(12, 5)
    fused = nn.Linear(5, 12, bias=False)
    fused.weight.grad = gradient.clone()
    eg.equalize_(eg.matrices(fused, split={"weight": (6, 2, 4)}))
    expected = torch.cat([eg.polar(part) for part in gradient.split((6, 2, 4))])
    assert torch.equal(fused.weight.grad, expected)


def test_a_stack_equals_separate_matrices() -> None:
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


def test_a_complex_weight_is_left_with_a_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 3, dtype=torch.complex64), nn.Linear(3, 3), nn.Linear(3, 3))
    assert list(shapes_taken(plan := eg.matrices(model))) == ["1.weight"]
    assert "complex64" in str(plan)


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
        ({"head": "4.bias"}, ValueError, r"head must name matrices, got '4.bias' of shape \(3,\)"),
        ({"head": {"4": 1}}, TypeError, "head must be one or more selectors, got {'4': 1}"),
        ({"split": {"0.bias": (4, 4)}}, ValueError, "split must name matrices, got '0.bias'"),
        ({"split": {"0.weight": (True, 7)}}, ValueError, "positive sizes"),
        (
            {"split": {"0.weight": (4, 4), "0": (2, 6)}},
            ValueError,
            "'0.weight' once, got '0.weight' and '0' with other sizes",
        ),
        ({"stack": "0.bias"}, ValueError, "stack must name matrices, got '0.bias'"),
        ({"stack": "0.weight"}, ValueError, r"got '0.weight' of shape \(8, 6\), which is one matrix; leave it out"),
        ({"include": "1"}, ValueError, "got '1', a module without parameters"),
    ],
)
def test_selections_that_match_nothing_or_do_not_fit_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        eg.matrices(network(), **options)


def test_a_complex_model_is_doubted() -> None:
    model = nn.Sequential(nn.Linear(9, 9, dtype=torch.complex64), nn.Linear(3, 3), nn.Linear(3, 3))
    (doubt,) = eg.matrices(model).doubts
    assert doubt.startswith(
        "90 % of the entries of hidden weights are of a dtype that is not supported, such as '0.weight'"
    )


def test_a_plan_that_takes_nothing_says_what_to_change() -> None:
    probe = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    probe[0].requires_grad_(False)
    with pytest.raises(ValueError, match="unfreeze hidden layers, take the output head with head=None, or choose"):
        eg.matrices(probe)
    with pytest.raises(ValueError, match="the model has no parameters"):
        eg.matrices(nn.ReLU())
    with pytest.raises(ValueError, match="the model has no parameters"):
        eg.matrices({}, include="w")


def test_models_without_usable_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="got list"):
        eg.matrices([torch.zeros(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lazy parameter"):
        eg.matrices(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(ValueError, match="include must name what to take"):
        eg.matrices({"w": torch.zeros(2, 2)})
    with pytest.raises(TypeError, match="must hold tensors, got int for 'w'"):
        eg.matrices({"w": 3}, include="w")  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="must have names as keys, got 3; pass strings"):
        eg.matrices({3: torch.ones(3, 3)}, include="*")  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="complex64"):
        eg.matrices({"w": torch.zeros(2, 2, dtype=torch.complex64)}, include="w")
