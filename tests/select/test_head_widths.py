"""The head by the widths of layers: parallel members, trunks with the names of heads, outputs that nothing takes."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any, cast

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


class Ranker(nn.Module):
    """The dense features go through an MLP of their own; its outputs enter the next one beside those of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.dense, self.top = nn.Embedding(9, 4), mlp(5, 6, 4), mlp(8, 6, 1)

    def forward(self, items: Tensor, dense: Tensor) -> Tensor:
        return self.top(torch.cat([self.items(items), self.dense(dense)], 1))  # type: ignore[no-any-return]


class HalvedAutoencoder(nn.Module):
    """The encoder puts out mean and variance in one piece, and the decoder takes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(10, 6, 4), mlp(2, 6, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + scale), mean


class GuidedAutoencoder(nn.Module):
    """The decoder takes the code beside a label."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.scale, self.decoder = mlp(10, 6), nn.Linear(6, 3), nn.Linear(6, 3), mlp(5, 6, 10)

    def forward(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = relu(self.encoder(x))
        mean, scale = self.mean(hidden), self.scale(hidden)
        return self.decoder(torch.cat([mean + scale, label], -1)), mean, scale


@pytest.mark.parametrize(
    ("model", "head", "example"),
    [
        (Ranker(), "top.2.weight", (torch.arange(3), torch.ones(3, 5))),
        (HalvedAutoencoder(), "decoder.2.weight", torch.ones(3, 10)),
        (GuidedAutoencoder(), "decoder.2.weight", (torch.ones(3, 10), torch.ones(3, 2))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_may_enter_a_later_layer_in_part_is_no_head_for_sure(model: nn.Module, head: str, example: Any) -> None:
    """A width that nothing else explains: a layer takes these outputs beside others, or a part of them."""
    plan = eg.matrices(model)
    assert heads(model) == [head]
    assert "though nothing takes the outputs of" in plan.doubts[0]
    assert heads(model, example=example) == [head]
    assert eg.matrices(model, example=example).doubts == ()


def test_branches_that_are_joined_are_no_heads() -> None:
    """No layer puts out 12 values: the convolution hands its four channels on to the layer behind it."""
    image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 7))
    model = nn.ModuleDict({"image": image, "words": nn.Linear(6, 5), "out": mlp(12, 8, 3)})
    assert heads(model) == ["out.2.weight"]
    assert eg.matrices(model).doubts == ()


def test_what_is_inside_of_a_model_that_feeds_the_head_is_no_head() -> None:
    """`inner.aside` ends as wide as nothing, but all that the head takes comes out of the same module."""
    inner = linears(enter=(6, 8), middle=(8, 8), aside=(8, 5))
    model = nn.ModuleDict({"inner": inner, "lm_head": nn.Linear(8, 9)})
    assert heads(model) == ["lm_head.weight"]
    assert eg.matrices(model).doubts == ()
    beside = nn.ModuleDict({"enter": nn.Linear(6, 8), "inner": inner, "lm_head": nn.Linear(8, 9)})
    assert heads(beside) == ["inner.aside.weight", "lm_head.weight"]


def test_two_parts_may_each_have_a_head_of_their_own() -> None:
    """One is a layer, the other a module as deep again; neither feeds the other."""
    words = nn.ModuleDict({"body": nn.Linear(6, 8), "head": nn.Linear(8, 8)})
    image = nn.ModuleDict({"body": nn.Linear(5, 8), "head": nn.ModuleDict({"mlp": mlp(8, 9, 8)})})
    model = nn.ModuleDict({"words": words, "image": image})
    assert heads(model) == ["words.head.weight", "image.head.mlp.2.weight"]


class Stages(nn.Module):
    """Predictions after every stage, which the next one takes in, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.outs = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
        self.back = nn.Linear(3, 8)


def test_a_name_is_not_enough_where_the_last_layer_takes_its_outputs() -> None:
    assert heads(Stages()) == ["outs.0.weight", "outs.1.weight"]
    assert "though 'back' is registered last" in eg.matrices(Stages()).doubts[0]


class Forecast(nn.Module):
    """Every block forecasts, and hands the rest on."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [linears(enter=(7, 9), rest=(9, 7), forecast=(9, 3)) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        forecast = torch.zeros(())
        for block in self.blocks:
            hidden = relu(block["enter"](x))
            x, forecast = x - block["rest"](hidden), forecast + block["forecast"](hidden)
        return forecast


def test_blocks_that_end_in_a_narrow_layer_may_end_in_heads() -> None:
    found = ["blocks.0.forecast.weight", "blocks.1.forecast.weight"]
    assert heads(Forecast()) == found == heads(Forecast(), example=torch.ones(2, 7))
    assert "though repeated blocks seldom end in one" in eg.matrices(Forecast()).doubts[0]


@pytest.mark.parametrize("name", ["to_qkv", "att", "attention"])
def test_a_layer_of_an_attention_beside_the_end_is_no_head(name: str) -> None:
    model = nn.ModuleDict({"enter": nn.Linear(6, 8), name: nn.Linear(8, 24), "end": nn.Linear(8, 3)})
    assert heads(model) == ["end.weight"]
    assert eg.matrices(model).doubts == ()


def test_a_matrix_that_may_follow_the_end_is_named_once() -> None:
    model = nn.Sequential(mlp(6, 8, 5), nn.ParameterDict({"transitions": torch.ones(5, 5)}))
    assert eg.matrices(model).doubts[0].count("transitions") == 1


class Coupling(nn.Module):
    """A block of a normalizing flow: one half of the features says how the other half is scaled and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([mlp(3, 8, 6) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            kept, other = x.chunk(2, -1)
            scale, shift = block(kept).chunk(2, -1)
            x = torch.cat([other * scale.exp() + shift, kept], -1)
        return x


def test_blocks_of_which_each_may_take_a_part_of_the_last_one_are_uncertain() -> None:
    """By widths they may as well be members side by side."""
    model = Coupling()
    assert heads(model) == [f"blocks.{block}.2.weight" for block in range(3)]
    assert "though each block may take a part of what the one before puts out" in eg.matrices(model).doubts[0]
    assert heads(model, example=torch.ones(2, 6)) == ["blocks.2.2.weight"]
    assert eg.matrices(model, example=torch.ones(2, 6)).doubts == ()
    members = Members(*[mlp(3, 8, 6) for _ in range(3)])
    assert heads(members, example=torch.ones(2, 3)) == heads(members) == [f"members.{each}.2.weight" for each in range(3)]


class Reader(nn.Module):
    """Additive attention over words: `align` starts from features as wide as the head's, but from others."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.read, self.query, self.align = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 8), nn.Linear(8, 1)
        self.combine, self.end = nn.Linear(14, 8), nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        read, last = self.read(x)
        weights = self.align(torch.tanh(read + self.query(last[0])[:, None])).softmax(1)
        return self.end(torch.tanh(self.combine(torch.cat([(weights * read).sum(1), x[:, -1]], 1))))  # type: ignore[no-any-return]


def test_a_layer_before_the_features_of_the_head_is_no_head_for_sure() -> None:
    model, example = Reader(), torch.arange(8).reshape(2, 4)
    assert heads(model) == ["end.weight"]
    assert "though nothing takes the outputs of 'align' either" in eg.matrices(model).doubts[0]
    assert heads(model, example=example) == ["end.weight"]
    assert eg.matrices(model, example=example).doubts == ()


class Points(nn.Module):
    """Features of points, and a head on them: also the inner net of a `Cloud`."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.features = nn.Conv1d(3, 32, 1)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.fc1(self.features(x).amax(2)).relu()))


class Cloud(Points):
    """As PointNet: what the inner net puts out turns the points."""

    def __init__(self) -> None:
        super().__init__(5)
        outer = dict(self._modules)
        self._modules.clear()
        self.turn = Points(9)
        self._modules.update(outer)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.turn(x).view(-1, 3, 3) @ x)


def test_an_end_inside_of_a_part_that_is_like_the_head_is_uncertain() -> None:
    plan = eg.matrices(Cloud())
    assert "though 'turn.fc2' is inside of a part" in plan.doubts[0]
    plan = eg.matrices(Cloud(), example=torch.randn(2, 3, 4))
    assert not plan.doubts
    assert {entry.name for entry in plan.left if entry.reason == "output head"} == {"fc2.weight"}
