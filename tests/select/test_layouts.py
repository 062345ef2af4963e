"""Which layers hold matrices, and how; each is equalised as its parts would be alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import Conv1D, Experts
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from toy import shapes_taken

import egalitarian as eg


def equalised(model: nn.Module, **options: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """By name, a random gradient of each parameter that is taken, and what `equalize_` makes of it."""
    plan = eg.matrices(model, **options)
    given = {entry: torch.randn_like(entry.parameter) for entry in plan.taken}
    for entry, gradient in given.items():
        entry.parameter.grad = gradient.clone()
    eg.equalize_(plan)
    return {
        entry.name: (gradient, entry.parameter.grad)
        for entry, gradient in given.items()
        if entry.parameter.grad is not None
    }


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_are_taken_gate_by_gate(kind: Any, gates: int, bidirectional: bool) -> None:
    layer = kind(6, 5, num_layers=2, bidirectional=bidirectional)
    results = equalised(layer)
    assert set(results) == {name for name, _ in layer.named_parameters() if name.startswith("weight")}
    for gradient, result in results.values():
        expected = torch.cat([eg.polar(part) for part in gradient.chunk(gates)])
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_recurrent_cells_are_taken_gate_by_gate(kind: Any, gates: int) -> None:
    assert shapes_taken(eg.matrices(kind(6, 5))) == {"weight_ih": [(5, 6)] * gates, "weight_hh": [(5, 5)] * gates}


def test_the_projection_of_an_lstm_is_one_matrix() -> None:
    plan = eg.matrices(nn.LSTM(6, 5, proj_size=3))
    assert shapes_taken(plan) == {
        "weight_ih_l0": [(5, 6)] * 4,
        "weight_hh_l0": [(5, 3)] * 4,
        "weight_hr_l0": [(3, 5)],
    }


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"in_proj_weight": [(6, 6)] * 3, "out_proj.weight": [(6, 6)]}),
        ({"batch_first": True, "bias": False}, {"in_proj_weight": [(6, 6)] * 3, "out_proj.weight": [(6, 6)]}),
        ({"add_bias_kv": True}, {"in_proj_weight": [(6, 6)] * 3, "out_proj.weight": [(6, 6)]}),
        (
            {"kdim": 4, "vdim": 5},
            {
                "q_proj_weight": [(6, 6)],
                "k_proj_weight": [(6, 4)],
                "v_proj_weight": [(6, 5)],
                "out_proj.weight": [(6, 6)],
            },
        ),
    ],
)
def test_attention_is_taken_in_all_its_forms(options: dict[str, Any], shapes: dict[str, list[tuple[int, int]]]) -> None:
    assert shapes_taken(eg.matrices(nn.MultiheadAttention(6, 2, **options))) == shapes


def test_a_bilinear_layer_is_a_matrix_from_products_of_inputs_to_outputs() -> None:
    layer = nn.Bilinear(3, 4, 5)
    ((gradient, result),) = equalised(layer).values()
    assert torch.equal(result.flatten(1), eg.polar(gradient.flatten(1)))


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6)])
@pytest.mark.parametrize("transform", [eg.Polar(), eg.RowNorm()], ids=repr)
def test_a_weight_of_inputs_by_outputs_keeps_its_orientation(shape: tuple[int, int], transform: Any) -> None:
    layer, linear = Conv1D(*shape), nn.Linear(shape[1], shape[0], bias=False)
    gradient = torch.randn(*shape)
    layer.weight.grad, linear.weight.grad = gradient.T.clone(), gradient.clone()
    eg.equalize_(eg.matrices(layer), transform)
    eg.equalize_(eg.matrices(linear), transform)
    torch.testing.assert_close(layer.weight.grad.T, linear.weight.grad)


def test_experts_are_a_stack() -> None:
    results = equalised(Experts())
    assert set(results) == {"w1", "w2"}
    for gradient, result in results.values():
        for mine, each in zip(result, gradient, strict=True):
            torch.testing.assert_close(mine, eg.polar(each))
    assert "the output axis taken to be the first" in str(eg.matrices(Experts()))


def test_experts_are_not_switched_one_by_one() -> None:
    """Only `stack=` says that the elements of a stack are models of their own."""
    assert eg.matrices(Experts()).stack is None
    assert eg.matrices(Experts(), stack=True).stack == 3


def test_biases_scales_and_positions_of_experts_are_no_matrices() -> None:
    experts = Experts()
    for name, shape in {"bias": (3, 6), "scale": (), "position": (1, 4, 6)}.items():
        experts.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    reasons = {entry.name: entry.reason for entry in eg.matrices(experts).left}
    assert reasons == {
        "bias": "1-D without the stack's axis",
        "scale": "0-D",
        "position": "'position' of Experts is not recognised",
    }


def test_experts_of_which_there_is_one_are_a_stack() -> None:
    experts = Experts()
    experts.w1, experts.w2 = nn.Parameter(torch.randn(1, 8, 6)), nn.Parameter(torch.randn(1, 6, 8))
    assert [entry.verdict for entry in eg.matrices(experts)] == [
        f"taken as 1 matrix of {shape} (the output axis taken to be the first)" for shape in ("8 x 6", "6 x 8")
    ]


def test_experts_in_one_flat_matrix_are_not_recognised() -> None:
    """Nobody knows where one expert ends."""
    flat = type("FlatExperts", (nn.Module,), {})()
    flat.w1 = nn.Parameter(torch.randn(24, 6))
    plan = eg.matrices(nn.ModuleDict({"enter": nn.Linear(4, 6), "experts": flat, "out": nn.Linear(6, 2)}))
    assert "left: 'w1' of FlatExperts is not recognised" in str(plan)
    assert plan.doubts[0].startswith("86 % of the entries of hidden weights are in modules that are not recognised")


class MoeRouter(nn.Module):
    """As those of Hugging Face: a parameter, not a Linear."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))


class Score(MoeRouter):
    """The same under a name that says nothing."""


@pytest.mark.parametrize(
    ("layer", "name", "beside", "taken"),
    [
        (nn.Linear(6, 4, bias=False), "router", "experts", True),
        (MoeRouter(4, 6), "scores", "mlp", True),
        (Score(4, 6), "gate", "experts", True),
        (Score(4, 6), "gate", "shared_expert", True),
        (Score(4, 6), "gate", "mlp", False),
        (Score(4, 6), "scores", "experts", False),
        (MoeRouter(6, 4), "router", "experts", False),
        (MoeRouter(6, 6), "router", "experts", False),
        (MoeRouter(2, 4, 6), "router", "experts", False),
    ],
)
def test_a_router_is_taken_as_a_linear_layer_is_if_it_is_one_for_sure(
    layer: nn.Module, name: str, beside: str, taken: bool
) -> None:
    """By the name of its class, or its own beside experts; and from hidden units to fewer experts."""
    model = nn.ModuleDict({name: layer, beside: nn.Linear(6, 6, bias=False), "out": nn.Linear(6, 2, bias=False)})
    expected = {f"{name}.weight": [(4, 6)]} if taken else {}
    assert shapes_taken(eg.matrices(model)) == {**expected, f"{beside}.weight": [(6, 6)]}


def test_experts_that_look_fused_are_marked() -> None:
    experts = Experts()
    experts.gate_up_proj = nn.Parameter(torch.randn(3, 6, 16))
    (line,) = (entry.verdict for entry in eg.matrices(experts) if entry.name == "gate_up_proj")
    assert line.endswith("(the output axis taken to be the first; one matrix, perhaps several fused: split it with split=)")


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        (parametrizations.weight_norm, "parametrizations.weight.original1"),
        (parametrizations.spectral_norm, "parametrizations.weight.original"),
        (spectral_norm, "weight_orig"),
        (lambda layer: prune.random_unstructured(layer, "weight", 0.5), "weight_orig"),
    ],
)
def test_a_parametrized_weight_is_taken_where_it_has_the_shape_of_the_weight(norm: Any, name: str) -> None:
    model = nn.Sequential(norm(nn.Conv2d(2, 4, 3)), nn.ReLU(), norm(nn.Linear(4, 5)), norm(nn.Linear(5, 3)))
    assert shapes_taken(eg.matrices(model)) == {f"0.{name}": [(4, 18)], f"2.{name}": [(5, 4)]}


def test_the_magnitudes_of_a_weight_norm_are_left() -> None:
    new = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3))
    with pytest.warns(FutureWarning):
        old = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Linear(5, 3))
    assert shapes_taken(eg.matrices(old)) == {"0.weight_v": [(5, 4)]}
    for model in (new, old):
        (left,) = (entry for entry in eg.matrices(model).left if entry.shape == (5, 1))
        assert left.reason == "magnitude of a weight norm"


def test_the_coordinates_of_an_orthogonal_weight_are_left() -> None:
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2))
    plan = eg.matrices(model)
    assert list(shapes_taken(plan)) == ["0.weight"]
    assert "coordinates of a weight under Orthogonal" in str(plan)


def test_a_parametrized_recurrent_layer_is_taken_gate_by_gate() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.LSTM(6, 5), "weight_hh_l0"))
    assert shapes_taken(eg.matrices(model)) == {
        "0.weight_ih_l0": [(5, 6)] * 4,
        "0.parametrizations.weight_hh_l0.original1": [(5, 5)] * 4,
    }


def test_frozen_weights_are_left_unless_they_are_included() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    plan = eg.matrices(model)
    assert [entry.name for entry in plan if entry.frozen] == ["0.weight"]
    assert "0.weight  (5, 6)  left: frozen" in str(plan)
    assert list(shapes_taken(eg.matrices(model, include=["0", "1"]))) == ["0.weight", "1.weight"]


def test_only_what_would_be_taken_counts_as_frozen() -> None:
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 5), nn.Linear(5, 3)).requires_grad_(False)
    model[1].requires_grad_(True)
    assert not any(entry.frozen for entry in eg.matrices(model))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_quantised_weight_is_left_with_that_reason(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].weight = nn.Parameter(torch.zeros(5, 6).to(dtype), requires_grad=False)
    plan = eg.matrices(model)
    assert list(shapes_taken(plan)) == ["1.weight"]
    assert f"quantised ({dtype})" in str(plan)


def test_a_module_that_is_not_recognised_is_left_by_name() -> None:
    model = nn.ModuleDict({"mine": nn.ParameterDict({"w": torch.zeros(3, 3)}), "a": nn.Linear(3, 4), "b": nn.Linear(4, 2)})
    assert "left: 'w' of ParameterDict is not recognised" in str(eg.matrices(model))


class Adapted(nn.Linear):
    """As in loralib: the factors are parameters of the layer itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))


class Holding(nn.Linear):
    """An adapter whose factors are layers inside the layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("ends", [(3,), (3, 1)])
@pytest.mark.parametrize("options", [{}, {"example": torch.ones(2, 6)}, {"head": "last"}])
def test_layers_inside_of_a_layer_are_parts_of_it(ends: tuple[int, ...], options: dict[str, Any]) -> None:
    """They are taken or left with it, and none of them is a head of its own."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.middle = Holding(6, 8), nn.Linear(8, 8)
            self.ends = nn.ModuleList([Holding(8, width) for width in ends])

        def forward(self, x: Tensor) -> list[Tensor]:
            x = self.middle(self.enter(x).relu()).relu()
            return [end(x) for end in self.ends]

    plan = eg.matrices(Model(), **options)
    known = range(len(ends)) if "head" not in options else [len(ends) - 1]
    heads = [f"ends.{each}.{part}weight" for each in known for part in ("", "down.", "up.")]
    assert [entry.name for entry in plan if entry.reason == "output head"] == heads
    assert {"enter.weight", "enter.down.weight", "enter.up.weight"} < {entry.name for entry in plan.taken}
    assert plan.doubts == ()


def test_factors_that_are_parameters_of_the_layer_are_taken() -> None:
    model = nn.Sequential(Adapted(6, 5), nn.ReLU(), Adapted(5, 4), nn.ReLU(), nn.Linear(4, 3))
    plan = eg.matrices(model)
    expected = {"0.lora_A": [(2, 6)], "0.lora_B": [(5, 2)], "2.lora_A": [(2, 5)], "2.lora_B": [(4, 2)]}
    assert shapes_taken(plan) == expected
    assert [entry.name for entry in plan if entry.reason == "output head"] == ["4.weight"]
    assert plan.doubts == ()
