"""Selectors: names, modules, module types and parameters; and names that wrapping a model does not change."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from toy import network, shapes_taken

import egalitarian as eg


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
def test_include_exclude_and_head_select_by_name_and_type(options: dict[str, Any], names: list[str]) -> None:
    assert list(shapes_taken(eg.matrices(network(), **options))) == names


def test_a_parameter_selects_itself() -> None:
    model = network()
    assert list(shapes_taken(eg.matrices(model, include=model[4].weight))) == ["4.weight"]
    assert list(shapes_taken(eg.matrices(model, exclude=[model[0].weight]))) == ["2.weight"]


def test_a_container_selects_its_parameters() -> None:
    model = nn.ModuleDict({"encoder": network(), "decoder": network(1)})
    assert set(shapes_taken(eg.matrices(model, include="encoder"))) == {
        "encoder.0.weight",
        "encoder.2.weight",
        "encoder.4.weight",
    }
    assert set(shapes_taken(eg.matrices(model, exclude="encoder"))) == {"decoder.0.weight", "decoder.2.weight"}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.head = nn.Linear(4, 2)


def test_a_tied_weight_with_an_excluded_owner_is_left_alone() -> None:
    plan = eg.matrices(Tied())
    assert list(shapes_taken(plan)) == ["hidden.weight"]
    assert "embedding.weight = output.weight" in str(plan)
    assert list(shapes_taken(eg.matrices(Tied(), include=nn.Linear, exclude="head"))) == ["hidden.weight"]
    assert list(shapes_taken(eg.matrices(Tied(), include=nn.Linear, exclude="output"))) == ["hidden.weight", "head.weight"]


def test_naming_a_tied_weight_takes_it() -> None:
    assert list(shapes_taken(eg.matrices(Tied(), include="output.weight"))) == ["embedding.weight"]


def test_the_error_for_a_misspelt_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"did you mean 2\.weight"):
        eg.matrices(network(), include="2.wieght")


def test_thousands_of_names_match_thousands_of_layers() -> None:
    """Each name is looked up; comparing every name with every layer took 39 s."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(2000)))
    names = [f"{index}.weight" for index in range(2000)]
    plan = eg.matrices(model, include=names, exclude=names[1000:], head=None)
    assert list(shapes_taken(plan)) == names[:1000]


def test_a_name_that_looks_like_a_pattern_matches_itself() -> None:
    model = nn.ModuleDict({"a[0]": nn.Linear(3, 3), "a0": nn.Linear(3, 3)})
    assert list(shapes_taken(eg.matrices(model, include="a[0]"))) == ["a[0].weight", "a0.weight"]


def test_an_empty_name_names_nothing() -> None:
    with pytest.raises(ValueError, match="got '', which matches nothing; the first names are "):
        eg.matrices(network(), include="")
