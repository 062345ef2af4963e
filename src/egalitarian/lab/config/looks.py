"""How methods look in figures, read from `paper/_looks.toml`: colours, markers, and titles of other series."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

from egalitarian.lab.config.schema import Settings, SpecError, nearest, read


@dataclass(frozen=True, kw_only=True)
class Look(Settings):
    """How one method is drawn, in every figure."""

    colour: str
    marker: str


@dataclass(frozen=True, kw_only=True)
class Series(Settings):
    """A series of a figure that is not one method."""

    title: str
    colour: str


T = TypeVar("T", Look, Series)


@dataclass(frozen=True, kw_only=True)
class Pair(Settings):
    """An optimizer alone, and the same optimizer with a transform."""

    plain: Series
    transformed: Series


@dataclass(frozen=True, kw_only=True)
class Looks(Settings):
    """How all figures look."""

    palette: Mapping[str, str]
    """Codes by name."""
    cycle: tuple[str, ...]
    """Colours of series without one of their own, in this order."""
    markers: tuple[str, ...]
    """Markers of methods that are not in `methods`, in this order."""
    methods: Mapping[str, Look]
    pair: Pair
    toy: Mapping[str, Series]


@cache
def load_looks() -> Looks:
    """The lab's looks, with every colour as a code."""
    text = (resources.files("egalitarian.lab") / "paper" / "_looks.toml").read_text(encoding="utf-8")
    looks = read(Looks, tomllib.loads(text))
    return looks.replace(
        cycle=tuple(_code(colour, looks.palette) for colour in looks.cycle),
        methods={name: _with_code(look, looks.palette) for name, look in looks.methods.items()},
        pair=Pair(
            plain=_with_code(looks.pair.plain, looks.palette), transformed=_with_code(looks.pair.transformed, looks.palette)
        ),
        toy={name: _with_code(series, looks.palette) for name, series in looks.toy.items()},
    )


def _with_code(look: T, palette: Mapping[str, str]) -> T:
    return look.replace(colour=_code(look.colour, palette))


def _code(colour: str, palette: Mapping[str, str]) -> str:
    """The code of a colour that is given by its name or by its code."""
    if colour not in palette and not re.fullmatch("#[0-9A-F]{6}", colour):
        hint = nearest(colour, palette) or f"one of {', '.join(palette)}, or a code such as #8C8C8C"
        raise SpecError(f"colour must be a name of the palette or a code, got {colour!r}; {hint}")
    return palette.get(colour, colour)
