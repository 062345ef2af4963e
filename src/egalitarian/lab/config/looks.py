"""How figures look: colours and markers, from `paper/_looks.toml`. A method without a look has its family's colours."""

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
    """How one method is drawn, in every figure."""

    colour: str
    marker: str
    line: str = setting("-")


@dataclass(frozen=True, kw_only=True)
class Series(Settings):
    """A series of a figure that is not one method."""

    title: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Pair(Settings):
    """An optimizer alone, and the same optimizer with a transform."""

    plain: Series
    transformed: Series


@dataclass(frozen=True, kw_only=True)
class MethodFamily(Settings):
    """Methods that a reader should see as one kind."""

    transforms: tuple[str, ...] = ()
    """A method with one of these is of this family."""
    optimizers: tuple[str, ...] = ()
    """A method with one of these, for any parameter, is of it as well."""
    colours: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Looks(Settings):
    """How all figures look."""

    palette: Mapping[str, str]
    """Codes by name."""
    cycle: tuple[str, ...]
    """Colours of series without one of their own, in this order."""
    markers: tuple[str, ...]
    """Markers of methods that are not in `methods`, in this order."""
    lines: tuple[str, ...]
    """Line styles of methods that share a colour, in this order."""
    families: Mapping[str, MethodFamily]
    """In this order: a method is of the first whose transforms or optimizers it has."""
    methods: Mapping[str, Look]
    pair: Pair
    toy: Mapping[str, Series]

    def family_of(self, method: Method) -> str:
        """The family's name. The last one has what no other does."""
        kinds = {transform.kind for transform in method.transform}
        for name, family in self.families.items():
            if kinds & set(family.transforms) or any(map(method.has, family.optimizers)):
                return name
        return list(self.families)[-1]


@cache
def load_looks() -> Looks:
    """The lab's looks, with every colour as a code."""
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
    """The code of a colour that is given by its name or by its code."""
    if colour not in palette and not re.fullmatch("#[0-9A-F]{6}", colour):
        hint = nearest(colour, palette) or f"one of {', '.join(palette)}, or a code such as #8C8C8C"
        raise SpecError(f"colour must be a name of the palette or a code, got {colour!r}; {hint}")
    return palette.get(colour, colour)
