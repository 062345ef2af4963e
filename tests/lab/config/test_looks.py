"""The looks of methods, from `paper/_looks.toml`."""

from __future__ import annotations

import re

import pytest

from egalitarian.lab.config import SpecError, load_looks
from egalitarian.lab.config.looks import _code


def test_every_colour_is_a_code_and_every_marker_one_character() -> None:
    looks = load_looks()
    colours = [
        *looks.cycle,
        *(look.colour for look in looks.methods.values()),
        *(each.colour for each in looks.toy.values()),
    ]
    colours += [looks.pair.plain.colour, looks.pair.transformed.colour]
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours)
    assert {len(look.marker) for look in looks.methods.values()} == {1}


def test_a_colour_without_a_code_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SpecError, match=r"colour must be a name of the palette or a code, got 'gren'; did you mean 'green'\?"
    ):
        _code("gren", load_looks().palette)
