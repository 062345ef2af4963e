"""How figures look: colours, markers and line styles, from `paper/_looks.toml`.

A method that the file does not list gets a colour of its family.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TypeVar

from egalitarian.lab.config.method import Method
from egalitarian.lab.config.schema import Settings, SpecError, nearest, read, setting

L = TypeVar("L", "Look", "Series")


@dataclass(frozen=True, kw_only=True)
class Look(Settings):
    """How one method is drawn in every figure."""

    colour: str
    """A name of the palette, or a code such as #8C8C8C."""
    marker: str
    line: str = setting("-")
    """The line style, as in matplotlib."""


@dataclass(frozen=True, kw_only=True)
class Series(Settings):
    """Title and colour of a series that is not one method."""

    title: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Pair(Settings):
    """An optimizer alone, and the same optimizer with a transform."""

    plain: Series
    transformed: Series


@dataclass(frozen=True, kw_only=True)
class MethodFamily(Settings):
    """Methods of one kind, which share colours."""

    transforms: tuple[str, ...] = ()
    """A method with one of these transforms belongs to the family."""
    optimizers: tuple[str, ...] = ()
    """A method that uses one of these optimizers for any parameter belongs to the family, too."""
    colours: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Looks(Settings):
    """How all figures look: the content of `_looks.toml`."""

    palette: Mapping[str, str]
    """Colour codes by name."""
    cycle: tuple[str, ...]
    """Colours of series without one of their own, in this order."""
    markers: tuple[str, ...]
    """Markers of methods that are not in `methods`, in this order."""
    lines: tuple[str, ...]
    """Line styles of methods that share a colour, in this order."""
    families: Mapping[str, MethodFamily]
    """A method belongs to the first family that has one of its transforms or optimizers."""
    methods: Mapping[str, Look]
    pair: Pair
    toy: Mapping[str, Series]

    def family_of(self, method: Method) -> str:
        """The name of a method's family. The last family has all methods that belong to no other."""
        kinds = {transform.kind for transform in method.transform}
        for name, family in self.families.items():
            if kinds & set(family.transforms) or any(map(method.has, family.optimizers)):
                return name
        return list(self.families)[-1]


@cache
def load_looks() -> Looks:
    """Reads `_looks.toml`, with every colour as a code."""
    text = (resources.files("egalitarian.lab") / "paper" / "_looks.toml").read_text(encoding="utf-8")
    looks = read(Looks, tomllib.loads(text))
    families = {
        name: family.replace(colours=tuple(_code(colour, looks.palette) for colour in family.colours))
        for name, family in looks.families.items()
    }
    return looks.replace(
        cycle=tuple(_code(colour, looks.palette) for colour in looks.cycle),
        families=families,
        methods={name: _with_code(look, looks.palette) for name, look in looks.methods.items()},
        pair=Pair(
            plain=_with_code(looks.pair.plain, looks.palette), transformed=_with_code(looks.pair.transformed, looks.palette)
        ),
        toy={name: _with_code(series, looks.palette) for name, series in looks.toy.items()},
    )


def _with_code(look: L, palette: Mapping[str, str]) -> L:
    return look.replace(colour=_code(look.colour, palette))


def _code(colour: str, palette: Mapping[str, str]) -> str:
    """The code of a colour that is given as a name or as a code."""
    if colour not in palette and not re.fullmatch("#[0-9A-F]{6}", colour):
        hint = nearest(colour, palette) or f"one of {', '.join(palette)}, or a code such as #8C8C8C"
        raise SpecError(f"colour must be a name of the palette or a code, got {colour!r}; {hint}")
    return palette.get(colour, colour)
