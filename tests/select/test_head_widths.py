"""The head by the widths of layers: parallel members, trunks with the names of heads, outputs that nothing takes."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, relu

import egalitarian as eg
from egalitarian.select import survey


def heads(model: nn.Module, **options: Any) -> list[str]:
    """The weights that are left as output heads."""
    return [entry.name for entry in survey(model, **options) if entry.reason.startswith("output head")]


def linears(**widths: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*pair, bias=False) for name, pair in widths.items()})


def mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    return nn.Sequential(*[each for layer in layers for each in (layer, nn.ReLU())][:-1])


class Critic(nn.Module):
    """A member that is no Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.value = nn.Linear(6, 8, bias=False), nn.Linear(8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(relu(self.enter(x)))  # type: ignore[no-any-return]


class Members(nn.Module):
    """Networks of one kind side by side, on what a trunk makes of the inputs."""

    def __init__(self, *members: nn.Module, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = trunk or nn.Identity()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        return torch.cat([member(x) for member in self.members], -1)


class Residual(Members):
    """The same networks as residual blocks: they end in no head."""

    def forward(self, x: Tensor) -> Tensor:
        for member in self.members:
            x = x + member(x)
        return x


class Experts(Members):
    """Their outputs are weighed by a gate, which is registered last."""

    def __init__(self, *members: nn.Module) -> None:
        super().__init__(*members)
        self.gate = nn.Linear(6, len(members), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return sum((self.gate(x)[:, i, None] * each(x) for i, each in enumerate(self.members)), torch.zeros(()))


PARALLEL = {
    "twin critics": (lambda: Members(mlp(6, 8, 8, 1), mlp(6, 8, 8, 1)), ["members.0.4.weight", "members.1.4.weight"]),
    "critics of a class": (lambda: Members(Critic(), Critic()), ["members.0.value.weight", "members.1.value.weight"]),
    "tasks": (
        lambda: Members(*[mlp(8, 8, 2) for _ in range(3)], trunk=nn.Linear(6, 8)),
        [f"members.{task}.2.weight" for task in range(3)],
    ),
    "experts": (lambda: Experts(mlp(6, 8, 3), mlp(6, 8, 3)), ["members.0.2.weight", "members.1.2.weight"]),
    "residual blocks": (lambda: Residual(mlp(6, 8, 6), mlp(6, 8, 6)), []),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_blocks_that_cannot_follow_each_other_end_in_heads(name: str) -> None:
    make, found = PARALLEL[name]
    model = make()
    assert heads(model) == heads(model, example=torch.ones(2, 6)) == found
    assert eg.matrices(model).doubts == ()


def test_a_forward_pass_finds_the_heads_of_blocks_that_could_follow_each_other() -> None:
    """By widths alone, members from 6 features to 6 are repeated blocks."""
    members = mlp(6, 8, 6), mlp(6, 8, 6)
    assert heads(Members(*members)) == []
    assert heads(Members(*members), example=torch.ones(2, 6)) == ["members.0.2.weight", "members.1.2.weight"]
    assert heads(Residual(*members), example=torch.ones(2, 6)) == []


@pytest.mark.parametrize(
    ("model", "found", "rival"),
    [
        (nn.ModuleDict({"actor": mlp(6, 8, 8), "mu": mlp(8, 2), "log_std": mlp(8, 2)}), ["mu.0", "log_std.0"], "actor.2"),
        (nn.ModuleDict({"classifier": mlp(6, 8, 8), "last": mlp(8, 3)}), ["last.0"], "classifier.2"),
        (linears(enter=(6, 8), alpha_linear=(8, 1), narrow=(8, 5), rgb=(5, 3)), ["rgb"], "alpha_linear"),
        (linears(enter=(6, 8), reg=(8, 1), pre=(8, 5), cls=(5, 4)), ["cls"], "reg"),
    ],
    ids=["actor as a trunk", "classifier as a trunk", "density of a radiance field", "shallow regression"],
)
def test_a_head_that_may_be_another_is_uncertain(model: nn.Module, found: list[str], rival: str) -> None:
    assert heads(model) == [f"{name}.weight" for name in found]
    (doubt,) = eg.matrices(model).doubts
    assert repr(rival) in doubt
    assert doubt.endswith(f"settle it with head={found if found[1:] else found[0]!r} or example=")


@pytest.mark.parametrize(
    "model",
    [
        linears(enter=(6, 8), wide=(8, 16), narrow=(8, 8), out=(8, 3)),  # two gates in one layer
        linears(deep=(6, 4), wide=(6, 4), out=(8, 3)),  # side by side
        linears(enter=(6, 8), narrow=(8, 4), out=(10, 3)),  # beside something that no layer makes
        nn.Sequential(nn.Linear(6, 8), nn.Flatten(), nn.Linear(40, 3)),
    ],
)
def test_outputs_that_enter_a_layer_in_parts_or_beside_others_are_not_doubted(model: nn.Module) -> None:
    assert eg.matrices(model).doubts == ()


@pytest.mark.parametrize("name", ["adaLN_modulation", "modulation", "router"])
def test_what_scales_and_shifts_is_no_head(name: str) -> None:
    model = nn.ModuleDict({"enter": nn.Linear(6, 8), "final_layer": linears(linear=(8, 8), **{name: (8, 16)})})
    assert heads(model) == ["final_layer.linear.weight"]
    assert eg.matrices(model).doubts == ()


def test_a_part_named_like_a_head_may_say_which_of_its_layers_is_it() -> None:
    decoder = nn.Sequential(OrderedDict(classifier=nn.Linear(8, 3), bottleneck=nn.Linear(12, 8)))
    model = nn.ModuleDict({"body": nn.Linear(6, 8), "decode_head": decoder})
    assert heads(model) == ["decode_head.classifier.weight"]


class Bare(nn.Module):
    """A hidden network, then a matrix of no known layer; given how it is used."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(11, 8)
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 8)
        if kind != "tied":
            self.matrix, self.noise = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(5, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.leave(relu(self.enter(self.words(tokens))))
        if self.kind == "tied":
            return hidden @ self.words.weight.T  # type: ignore[no-any-return]
        if self.kind == "cosine":
            return normalize(hidden, dim=-1) @ normalize(self.matrix, dim=-1).T
        return linear(hidden, self.matrix + self.noise * torch.ones(5, 8))


@pytest.mark.parametrize(
    ("kind", "rivals", "found"),
    [
        ("tied", "'words.weight'", ["words.weight"]),
        ("noisy", "'matrix' and 'noise' and 'words.weight'", ["matrix", "noise"]),
        ("cosine", "'matrix' and 'noise' and 'words.weight'", ["matrix"]),
    ],
)
def test_a_matrix_of_no_known_layer_may_be_the_head(kind: str, rivals: str, found: list[str]) -> None:
    model = Bare(kind)
    assert eg.matrices(model).doubts == (
        f"the output head is taken to be 'leave' by the order of the layers, though {rivals} may take its outputs; "
        f"settle it with head='leave' or example=",
    )
    example = torch.arange(10).reshape(2, 5)
    assert heads(model, example=example) == found
    assert eg.matrices(model, example=example).doubts == ()


class Own(nn.Module):
    """A layer that is not recognised."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))


@pytest.mark.parametrize(
    "layers",
    [
        {"words": nn.Embedding(9, 8), "mix": Own(), "lm_head": nn.Linear(8, 9)},
        {"words": nn.EmbeddingBag(9, 8), "fc": nn.Linear(8, 9)},
        {"enter": Own(), "cls": nn.Linear(8, 3)},
    ],
)
def test_the_only_known_layer_is_a_head_where_there_are_other_matrices(layers: dict[str, nn.Module]) -> None:
    model = nn.ModuleDict(layers)
    assert heads(model) == [f"{list(layers)[-1]}.weight"]
    with pytest.raises(ValueError, match="take the output head with head=None, or choose matrices with include="):
        eg.matrices(model)
