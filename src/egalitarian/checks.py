"""Checks of arguments. Error texts read `<what> must be <rule>, got <value>; <way out>`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


def check_number(
    what: str, value: Any, way_out: str, *, least: float = 0.0, below: float = math.inf, above: float | None = None
) -> None:
    """A real number >= least (or > above) and < below."""
    if above is not None:
        rule = f"a number > {above:g}"
    elif below == math.inf:
        rule = f"a number >= {least:g}"
    else:
        rule = f"in [{least:g}, {below:g})"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be {rule}, got {value!r}; {way_out}")
    number = float(value)
    if not (number > above if above is not None else number >= least) or not number < below:
        raise ValueError(f"{what} must be {rule}, got {value}; {way_out}")


def check_integer(what: str, value: Any, way_out: str, *, least: int | None = None) -> None:
    rule = "an integer" if least is None else f"an integer >= {least}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be {rule}, got {value!r}; {way_out}")
    if not isinstance(value, Integral) or (least is not None and value < least):
        raise ValueError(f"{what} must be {rule}, got {value!r}; {way_out}")


def check_bool(what: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be True or False, got {value!r}; pass a bool")


def check_mapping(what: str, value: Any, way_out: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a mapping, got {value!r}; {way_out}")


def check_share(value: Any) -> None:
    rule = "share must be in (0, 1]"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{rule}, got {value!r}; None keeps every direction of the rank")
    if not 0 < float(value) <= 1:
        raise ValueError(f"{rule}, got {value}; None keeps every direction of the rank")
