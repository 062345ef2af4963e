"""Who may feed whom, and the heads that follow from it in models whose widths coincide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

import egalitarian as eg
from egalitarian.select.layers import Graph
from egalitarian.select.listing import listing


class Parts(nn.Module):
    """Modules under their names, in this order."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*[each for layer in layers for each in (layer, nn.ReLU())][:-1])


def conv(inputs: int, outputs: int, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)


def heads(plan: eg.Plan) -> list[str]:
    return [entry.name.removesuffix(".weight") for entry in plan.left if entry.reason.startswith("output head")]


def edges(model: nn.Module) -> Iterator[str]:
    graph = Graph(listing(model))
    for one in graph.layers:
        for other, how in graph.takers(one):
            yield f"{one.path} {how.name} {other.path}"


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (mlp(6, 8, 8, 8), ["0 WHOLE 2", "2 WHOLE 4"]),
        (nn.Sequential(nn.Linear(6, 8), nn.Flatten(), nn.Linear(40, 6)), ["0 NEXT 2"]),
        (Parts(a=mlp(6, 8), b=mlp(8, 8, 3)), ["a.0 WHOLE b.0", "b.0 WHOLE b.2"]),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 3)), ["a WHOLE b", "a WHOLE c", "b WHOLE c"]),
        (Parts(head=nn.Linear(8, 3), body=nn.Linear(6, 8)), ["head LIKE body", "body WHOLE head"]),
        (Parts(a=conv(3, 4), b=nn.Linear(36, 9)), ["a FLAT b"]),
        (Parts(a=conv(3, 4), b=nn.Linear(36, 3)), ["a FLAT b"]),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(4, 3)), ["a PART b"]),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(16, 3)), ["a LIKE b"]),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(11, 3)), ["a MIXED b"]),
        (Parts(a=nn.Linear(6, 1), b=nn.Linear(11, 3)), []),
        (Parts(a=nn.Linear(6, 8), words=nn.Embedding(9, 11), b=nn.Linear(11, 3)), []),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(80, 3)), ["a LIKE b"]),
        (Parts(a=nn.Linear(6, 8), b=nn.Linear(6, 80), c=nn.Linear(80, 3)), ["b WHOLE c"]),
    ],
)
def test_an_edge_says_how_the_widths_fit(model: nn.Module, found: list[str]) -> None:
    assert list(edges(model)) == found


def test_a_linear_layer_right_behind_a_convolution_takes_its_channels_alone() -> None:
    """Unless another layer takes them: then it may as well take what a linear layer made."""
    claimed = Parts(a=nn.Linear(6, 9), conv=conv(3, 1), b=nn.Linear(9, 4))
    assert "a WHOLE b" not in edges(claimed)
    assert "conv FLAT b" in edges(claimed)
    shared = Parts(a=nn.Linear(6, 9), conv=conv(3, 1), b=nn.Linear(9, 4), deeper=conv(1, 2))
    assert "a WHOLE b" in edges(shared)


class Side(nn.Sequential):
    """Calls its children side by side."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [child(x) for child in self]


def test_a_sequential_with_its_own_forward_pass_may_call_in_any_order() -> None:
    model = Parts(body=nn.Linear(6, 8), ends=Side(nn.Linear(8, 3), nn.Linear(8, 5)))
    assert list(edges(model)) == ["body WHOLE ends.0", "body WHOLE ends.1"]
    assert heads(eg.matrices(model)) == ["ends.0", "ends.1"]
    chain = Parts(body=nn.Linear(6, 8), ends=nn.Sequential(nn.Linear(8, 3), nn.Linear(8, 5)))
    assert list(edges(chain)) == ["body WHOLE ends.0", "ends.0 NEXT ends.1"]


def test_thousands_of_layers_take_seconds() -> None:
    """By calls, not by time: every layer finds a taker at once."""
    graph = Graph(listing(mlp(*[8] * 1001, 3)))
    calls = 0
    fitting = graph._fitting

    def counted(*pair: Any) -> Any:
        nonlocal calls
        calls += 1
        return fitting(*pair)

    graph._fitting = counted  # type: ignore[method-assign]
    assert [layer.path for layer in graph.ends if graph.ends_here(layer)] == ["2000"]
    assert calls < 5000


def generator() -> nn.Sequential:
    up = nn.ConvTranspose2d(16, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
    return nn.Sequential(*up, nn.Tanh())


def discriminator() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(), nn.Conv2d(8, 1, 4))


@pytest.mark.parametrize(
    "names", [("G", "D"), ("gen", "disc"), ("generator", "discriminator"), ("netG", "netD"), ("generator", "critic")]
)
def test_both_networks_of_a_gan_end_in_a_head(names: tuple[str, str]) -> None:
    """The discriminator takes what the generator puts out, and yet both are outputs."""
    one, other = names
    for maker, judge, found in [
        (mlp(16, 64, 32), mlp(32, 64, 1), [f"{one}.2", f"{other}.2"]),
        (mlp(16, 64, 32), mlp(32, 32, 1), [f"{one}.2", f"{other}.2"]),
        (mlp(16, 64, 32), nn.Linear(32, 1), [f"{one}.2", other]),
        (generator(), discriminator(), [f"{one}.3", f"{other}.2"]),
    ]:
        for parts in ({one: maker, other: judge}, {other: judge, one: maker}):
            plan = eg.matrices(Parts(**parts))
            assert sorted(heads(plan)) == sorted(found)
            assert plan.doubts == ()


def test_the_four_networks_of_a_cycle_end_in_heads() -> None:
    makers = {name: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 3)) for name in ("G_AB", "G_BA")}
    plan = eg.matrices(Parts(**makers, D_A=discriminator(), D_B=discriminator()))
    assert heads(plan) == ["G_AB.2", "G_BA.2", "D_A.2", "D_B.2"]
    assert plan.doubts == ()


def test_one_network_named_like_a_player_is_no_evidence() -> None:
    assert heads(eg.matrices(Parts(D=mlp(6, 8, 8), last=nn.Linear(8, 3)))) == ["last"]


class Go(nn.Module):
    """Policy and value of a board of 3 x 3: the policy has as many outputs as the value's first linear layer inputs."""

    def __init__(self, *, value_first: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(3, 16), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = conv(16, 16), nn.BatchNorm2d(16)
        policy = {"pol_conv": conv(16, 2, 1), "pol_norm": nn.BatchNorm2d(2), "pol_fc": nn.Linear(18, 9)}
        value = {"val_conv": conv(16, 1, 1), "val_norm": nn.BatchNorm2d(1), "val_fc1": nn.Linear(9, 64)}
        value["val_fc2"] = nn.Linear(64, 1)
        for name, layer in ({**value, **policy} if value_first else {**policy, **value}).items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = relu(self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))))
        policy = self.pol_fc(relu(self.pol_norm(self.pol_conv(x))).flatten(1))
        value = self.val_fc1(relu(self.val_norm(self.val_conv(x))).flatten(1))
        return policy, self.val_fc2(relu(value)).tanh()


@pytest.mark.parametrize("value_first", [False, True])
def test_policy_and_value_of_a_small_board_are_not_confused_in_silence(value_first: bool) -> None:
    model = Go(value_first=value_first)
    found = ["val_fc2", "pol_fc"] if value_first else ["pol_fc", "val_fc2"]
    plan = eg.matrices(model)
    assert heads(plan) == found[-1:]
    assert f"though nothing takes the outputs of '{found[0]}' either" in plan.doubts[0]
    plan = eg.matrices(model, example=torch.ones(2, 3, 3, 3))
    assert heads(plan) == found
    assert plan.doubts == ()


def radiance() -> nn.Module:
    """A trunk that takes its input twice, then density and colour; the last part takes the direction, too."""
    trunk, more = nn.Sequential(*mlp(63, 64, 64), nn.ReLU()), nn.Sequential(*mlp(127, 64, 64), nn.ReLU())
    ends = {"sigma": nn.Linear(64, 1), "feature": nn.Linear(64, 64), "turn": nn.Linear(91, 32), "rgb": nn.Linear(32, 3)}
    return Parts(trunk=trunk, more=more, **ends)


def transformer(*, first: bool) -> nn.Module:
    """A spatial transformer: a network turns the image before another one classifies it."""
    localization = nn.Sequential(conv(1, 8), nn.MaxPool2d(2), nn.ReLU(), conv(8, 10), nn.ReLU())
    turn = {"localization": localization, "fc_loc": mlp(90, 32, 6)}
    rest = {"conv1": conv(1, 10), "conv2": conv(10, 20), "fc1": nn.Linear(320, 50), "fc2": nn.Linear(50, 10)}
    return Parts(**({**turn, **rest} if first else {**rest, **turn}))


@pytest.mark.parametrize(
    ("model", "found", "rival"),
    [
        (radiance(), ["rgb"], "sigma"),
        (transformer(first=True), ["fc2"], "fc_loc.2"),
        (transformer(first=False), ["fc_loc.2"], "fc2"),
        (Parts(pi=mlp(8, 64, 3), q=mlp(11, 64, 1)), ["q.2"], "pi.2"),
        (Parts(rho=mlp(64, 64, 10), phi=mlp(3, 64, 64)), ["rho.2"], "phi.2"),
    ],
    ids=["radiance field", "transformer first", "transformer last", "policy of a critic", "sum over a set"],
)
def test_what_nothing_takes_is_named(model: nn.Module, found: list[str], rival: str) -> None:
    plan = eg.matrices(model)
    assert heads(plan) == found
    assert repr(rival) in plan.doubts[0]


def towers(hidden: int, shared: int) -> nn.Module:
    """Two encoders with a projection each into a shared space, whose width is that of a layer inside of an encoder."""
    block = nn.ModuleDict({"enter": nn.Linear(hidden, shared), "leave": nn.Linear(shared, hidden)})
    image = nn.ModuleList([nn.Linear(7, hidden), block])
    text = nn.ModuleDict({"words": nn.Embedding(9, 12), "mix": nn.Linear(12, 12)})
    return Parts(text=text, image=image, image_projection=mlp(hidden, 10, shared), text_projection=mlp(12, 10, shared))


def detector() -> nn.Module:
    """As Faster R-CNN: classes and boxes of regions, then of objects."""
    first = Parts(conv=conv(16, 16), cls_logits=conv(16, 3, 1), bbox_pred=conv(16, 12, 1))
    second = Parts(cls_score=nn.Linear(64, 5), bbox_pred=nn.Linear(64, 20))
    objects = Parts(box_head=Parts(fc6=nn.Linear(16 * 49, 64), fc7=nn.Linear(64, 64)), box_predictor=second)
    return Parts(backbone=nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 16)), rpn=Parts(head=first), roi_heads=objects)


def zero() -> nn.Module:
    """Policy and value as Sequentials: both start from the channels of the body."""
    policy = nn.Sequential(conv(16, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(18, 9))
    value = nn.Sequential(conv(16, 1, 1), nn.ReLU(), nn.Flatten(), *mlp(9, 64, 1))
    return Parts(body=nn.Sequential(conv(3, 16), nn.ReLU(), conv(16, 16)), pol=policy, val=value)


REGIONS = ["rpn.head.cls_logits", "rpn.head.bbox_pred"]
OBJECTS = ["roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred"]
CERTAIN: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "two towers": (lambda: towers(14, 6), ["image_projection.2", "text_projection.2"]),
    "detector": (detector, [*REGIONS, *OBJECTS]),
    "policy and value": (zero, ["pol.3", "val.5"]),
    "unequal branches": (
        lambda: Parts(body=mlp(6, 8), one=mlp(8, 16, 3), two=mlp(8, 12, 5)),
        ["one.2", "two.2"],
    ),
    "autoencoder": (lambda: Parts(encoder=mlp(30, 16, 4), decoder=mlp(4, 16, 30)), ["decoder.2"]),
    "end inside of another's widths": (lambda: Parts(a=mlp(6, 8, 4), b=mlp(6, 4, 4)), ["a.2", "b.2"]),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_widths_that_coincide_hide_no_head(name: str) -> None:
    make, found = CERTAIN[name]
    plan = eg.matrices(make())
    assert heads(plan) == found
    assert plan.doubts == ()
