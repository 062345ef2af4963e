"""The output head, by evidence and by a forward pass, on models as people write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import MODELS, Encoder, HeadFirst, Policy, TiedAutoencoder
from torch import nn

import egalitarian as eg

HEADS = {
    "LSTM classifier": ["classify.weight"],
    "GRU encoder-decoder": ["out.weight"],
    "head first": ["head.weight"],
    "actor-critic, one trunk": ["policy.weight", "value.weight"],
    "actor-critic, two networks": ["actor.2.weight", "critic.2.weight"],
    "several heads without known names": ["steer.weight", "brake.weight"],
    "convolutional": ["7.weight"],
    "U-Net": ["outc.weight"],
    "GAN": ["generator.2.weight", "discriminator.2.weight"],
    "two towers": ["user_tower.2.weight", "item_tower.2.weight"],
    "tied autoencoder": ["code.weight"],
    "graph convolution": ["convs.2.lin.weight"],
    "mixture of experts": ["output.weight"],
    "encoder without a head": [],
    "encoder of one block": [],
    "recurrent layer last": [],
}


def heads(model: nn.Module, **options: Any) -> list[str]:
    """The weights that are left as output heads."""
    return [entry.name for entry in eg.matrices(model, **options).left if entry.reason.startswith("output head")]


def linears(**widths: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*pair, bias=False) for name, pair in widths.items()})


@pytest.mark.parametrize("name", MODELS)
def test_the_head_is_found_by_evidence(name: str) -> None:
    model = MODELS[name][0]()
    assert heads(model) == HEADS[name]
    assert eg.matrices(model).doubts == ()


@pytest.mark.parametrize("name", MODELS)
def test_a_forward_pass_finds_the_same_head(name: str) -> None:
    make, example = MODELS[name]
    by_example = ["encoder.weight"] if name == "tied autoencoder" else HEADS[name]
    assert heads(make(), example=example()) == by_example


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (linears(enter=(6, 8), lm_head=(8, 9)), ["lm_head.weight"]),
        (linears(enter=(6, 8), middle=(8, 8), fc=(8, 9)), ["fc.weight"]),
        (linears(fc=(8, 9), enter=(6, 8), middle=(8, 8)), ["fc.weight"]),
        (linears(enter=(6, 8), mlp_head=(8, 9), aux_head=(8, 2)), ["mlp_head.weight", "aux_head.weight"]),
        (linears(enter=(6, 8), steer=(8, 3), brake=(8, 2)), ["steer.weight", "brake.weight"]),
        (linears(enter=(6, 8), router=(8, 3), end=(8, 2)), ["end.weight"]),
        (linears(wide=(9, 1), enter=(6, 8), deep=(8, 1)), ["wide.weight", "deep.weight"]),
        (linears(query=(6, 8), key=(6, 8), value=(6, 8), out=(8, 6)), ["out.weight"]),
        (linears(one=(6, 8), two=(8, 8), three=(8, 8)), ["three.weight"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else " ".join(name for name, _ in value.named_children()),
)
def test_names_order_and_widths_are_evidence(model: nn.Module, found: list[str]) -> None:
    assert heads(model) == found
    assert eg.matrices(model).doubts == ()


def test_a_container_named_like_a_head_ends_in_the_head() -> None:
    classifier = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    assert heads(nn.ModuleDict({"classifier": classifier, "body": nn.Linear(6, 8)})) == ["classifier.2.weight"]
    several = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 4)])
    assert heads(nn.ModuleDict({"heads": several, "body": nn.Linear(6, 8)})) == ["heads.0.weight", "heads.1.weight"]


def test_a_layer_that_shares_an_embedding_is_the_head() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "to_words": nn.Linear(8, 9, bias=False), "enter": nn.Linear(6, 8)})
    model["to_words"].weight = model["words"].weight
    assert heads(model) == ["words.weight"]


class Block(nn.Module):
    """A block whose inner names are those of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.output = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)


def test_names_inside_of_repeated_blocks_are_no_evidence() -> None:
    assert heads(nn.Sequential(Block(), Block())) == []
    assert heads(nn.ModuleList([Block()])) == []


@pytest.mark.parametrize(
    ("model", "found", "doubt"),
    [
        (
            HeadFirst("first", "second"),
            ["first.weight"],
            "the output head is taken to be 'first' by the widths of the layers, though 'second.2' is registered last; "
            "settle it with head='first' or example=",
        ),
        (
            linears(classifier=(5, 3), enter=(6, 8), leave=(8, 2)),
            ["classifier.weight"],
            "the output head is taken to be 'classifier' for its name, though 'leave' is registered last; "
            "settle it with head='classifier' or example=",
        ),
        (
            linears(fc=(5, 7), enter=(6, 8), leave=(8, 2)),
            ["leave.weight"],
            "the output head is taken to be 'leave' as what is registered last, though 'fc' is named like a head; "
            "settle it with head='leave' or example=",
        ),
        (
            nn.ModuleDict({"project": nn.Linear(5, 3, bias=False), "rnn": nn.GRU(6, 5)}),
            ["project.weight"],
            "the output head is taken to be 'project' by the widths of the layers, though 'rnn' is registered last; "
            "settle it with head='project' or example=",
        ),
    ],
    ids=["widths", "name", "likely name", "before a recurrent layer"],
)
def test_mixed_evidence_is_marked_and_says_what_settles_it(model: nn.Module, found: list[str], doubt: str) -> None:
    plan = eg.matrices(model)
    assert [
        entry.name for entry in plan if entry.verdict == "left: output head, uncertain: head= or example= settles it"
    ] == found
    assert plan.doubts == (doubt,)
    assert eg.matrices(model, head=found[0]).doubts == ()
    assert [group["params"].plan.doubts for group in plan.groups()] == [(doubt,)] * len(plan.groups())


def test_a_doubt_that_changes_nothing_is_not_raised() -> None:
    model = HeadFirst("first", "second")
    assert eg.matrices(model, exclude=["first", "second.2"]).doubts == ()
    assert eg.matrices(model, exclude="first").doubts == ()
    model.get_submodule("first").requires_grad_(False)
    model.get_submodule("second.2").requires_grad_(False)
    assert eg.matrices(model).doubts == ()
    assert eg.matrices(HeadFirst("first", "second"), include="second").doubts == ()


def test_a_forward_pass_settles_a_doubt() -> None:
    plan = eg.matrices(HeadFirst("first", "second"), example=torch.ones(5, 6))
    assert heads(HeadFirst("first", "second"), example=torch.ones(5, 6)) == ["first.weight"]
    assert plan.doubts == ()


def test_heads_may_be_named_chosen_by_order_or_denied() -> None:
    model = Policy("steer", "brake")
    assert heads(model, head=["steer", model.trunk[2]]) == ["trunk.2.weight", "trunk.2.bias", "steer.weight"][::2]
    assert heads(model, head="last") == ["brake.weight"]
    assert heads(model, head=None) == []
    assert heads(HeadFirst(), head="last") == ["body.2.weight"]
    assert heads(Encoder(), head="last") == ["blocks.1.narrow.weight"]


def test_the_only_layer_of_a_model_is_no_head() -> None:
    for rule in ("auto", "last"):
        assert heads(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), head=rule) == []


def test_a_model_that_is_mostly_not_recognised_is_doubted() -> None:
    model = linears(enter=(6, 8), middle=(8, 8), fc=(8, 9))
    model["mine"] = nn.ParameterDict({"w": torch.zeros(20, 20)})
    doubts = eg.matrices(model).doubts
    assert doubts == (
        "78 % of the entries of hidden weights are in modules that are not recognised, such as 'mine.w'; "
        "name what to take with include=, or what to leave with exclude=",
    )
    assert eg.matrices(model, exclude="mine").doubts == ()
    assert eg.matrices(model, include="mine").doubts == ()


def test_the_code_of_a_tied_autoencoder_is_a_head_until_a_forward_pass_says_more() -> None:
    """Only the forward pass knows that the encoder's weight makes the outputs, too."""
    plan = eg.matrices(TiedAutoencoder(), example=torch.ones(2, 6))
    assert [entry.name for entry in plan.taken] == ["code.weight"]


def test_a_pass_through_residual_blocks_finds_no_head() -> None:
    assert heads(Encoder(3), example=torch.ones(2, 5, dtype=torch.long)) == []
