"""Frozen settings: types, ranges and unknown keys are checked in one place.

A `Settings` dataclass checks its fields when it is made, so values from Python and from a TOML file are checked alike.
`read` turns a table into settings; `meaning` turns settings into what identifies a run.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from egalitarian.lab.config import renamed

USER_MODULES = "egalitarian_file_"
"""Prefix of the modules made from users' task files."""
MOST_BITS = 63
"""Of an integer, without its sign: torch's end there, as TOML's do."""


class SpecError(ValueError):
    """A setting that is not allowed: the message gives the setting, the rule, the value and a remedy."""


def setting(
    default: Any = MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    meaning: bool = True,
    hint: str = "",
    default_from: Callable[[Any], Any] | None = None,
) -> Any:
    """A field with a range. `meaning=False`: it does not change the mathematics of a run, so it is not in the run's id.

    `default_from`: the default, from the fields above, where it depends on them; None stands for it.
    """
    bounds = {"least": least, "above": above, "most": most, "below": below}
    metadata = {"bounds": {key: value for key, value in bounds.items() if value is not None}, "hint": hint}
    own: dict[str, Any] = {} if default_from is None else {"default_from": default_from}
    return field(default=None if own else default, metadata={**metadata, **own, "meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base of all settings. Subclasses are frozen dataclasses whose fields are made with `setting`."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            value = getattr(self, item.name)
            value = _default(self, item) if value is None and "default_from" in item.metadata else value
            value = _coerce(hints[item.name], value, item.name)
            _check_range(item.name, value, item.metadata)
            object.__setattr__(self, item.name, value)

    def replace(self, **changes: Any) -> Self:
        """A default that depends on other settings follows them."""
        followers = [item for item in fields(self) if "default_from" in item.metadata]
        free = {item.name: None for item in followers if getattr(self, item.name) == _default(self, item)}
        return dataclasses.replace(self, **{**free, **changes})


@dataclass(frozen=True, kw_only=True)
class Kind(Settings):
    """Settings that come in named kinds: tasks, models, transforms. A subclass registers itself with `kind="..."`."""

    kinds: ClassVar[dict[str, type[Kind]]]
    kind: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if Kind in cls.__bases__:
            cls.kinds = {}
        if kind is not None:
            taken = cls.kinds.get(kind)
            if kind in renamed.KINDS or (taken is not None and not taken.__module__.startswith(USER_MODULES)):
                raise SpecError(f"kind must be a name of its own, got {kind!r}, which the lab uses; choose another")
            cls.kind = kind
            cls.kinds[kind] = cls


T = TypeVar("T", bound=Settings)


def read(of: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """`table` as settings. Every key must be known, and every field without a default must be present."""
    if not isinstance(table, Mapping):
        raise SpecError(f"{where or of.__name__} must be a table, got {table!r}; write [{where}] and its keys below")
    table = dict(table)
    if issubclass(of, Kind):
        of = _registered(of, table.pop("name", None), where)
    hints = typing.get_type_hints(of)
    known = {item.name: item for item in fields(of)}
    refuse_unknown(table, known, where)
    missing = [name for name, item in known.items() if item.default is MISSING and name not in table]
    missing = [name for name in missing if known[name].default_factory is MISSING]
    if missing:
        raise SpecError(f"{_join(where, missing[0])} must be given, got nothing; add it: it has no default")
    values = {key: _read_value(hints[key], value, _join(where, key)) for key, value in table.items()}
    try:
        return of(**values)
    except SpecError as error:
        raise SpecError(f"{where}.{error}" if where else str(error)) from None


def refuse_unknown(table: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in table:
        if key not in known:
            listed = f"known: {', '.join(known)}" if known else "none here"
            raise SpecError(
                f"{_join(where, key)} must be a known setting, got {key!r}; {nearest(key, known) or 'remove it'} ({listed})"
            )


def nearest(word: object, words: Iterable[str], old: Mapping[str, str] = MappingProxyType({})) -> str:
    """A hint: 'it is now called ...' for an old name, 'did you mean ...?' for a close one, or an empty text."""
    small = {each.lower(): each for each in words}
    if isinstance(word, str) and old.get(word) in small.values():
        return f"it is now called {old[word]!r}"
    close = difflib.get_close_matches(str(word).lower(), small, n=1, cutoff=0.5)
    return f"did you mean {small[close[0]]!r}?" if close else ""


def meaning(settings: Settings) -> dict[str, Any]:
    """Plain values of the fields that change the mathematics and differ from their defaults: the basis of a run's id."""
    values: dict[str, Any] = {"name": settings.kind} if isinstance(settings, Kind) else {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if item.metadata.get("meaning", True) and value != _default(settings, item):
            values[item.name] = plain(value, meaning)
    return values


def _default(settings: Settings, item: dataclasses.Field[Any]) -> Any:
    if "default_from" in item.metadata:
        return item.metadata["default_from"](settings)
    return item.default if item.default_factory is MISSING else item.default_factory()


def everything(settings: Settings) -> dict[str, Any]:
    """All fields as plain values, as they could stand in a TOML or JSON file."""
    kind = {"name": settings.kind} if isinstance(settings, Kind) else {}
    return {**kind, **{item.name: plain(getattr(settings, item.name), everything) for item in fields(settings)}}


def plain(value: Any, of: Callable[[Settings], Any]) -> Any:
    """`value` with tuples as lists, and every `Settings` in it converted by `of`."""
    if isinstance(value, Settings):
        return of(value)
    if isinstance(value, tuple | list):
        return [plain(item, of) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item, of) for key, item in value.items()}
    return value


def _registered(of: type[Kind], name: Any, where: str) -> type[Any]:
    if not isinstance(name, str) or name not in of.kinds:
        what = of.__name__.removesuffix("Settings").lower()
        hint = nearest(name, of.kinds, renamed.KINDS) or f"one of {', '.join(sorted(of.kinds))}"
        raise SpecError(f"{_join(where, 'name')} must be a known {what}, got {name!r}; {hint}")
    return of.kinds[name]


def _read_value(hint: Any, value: Any, where: str) -> Any:
    """Nested tables become settings; everything else is checked by the settings themselves."""
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, Settings) and value is not None:
            return value if isinstance(value, option) else read(option, value, where)
        if get_origin(option) is Mapping and isinstance(value, Mapping):
            inner = get_args(option)[1]
            return {key: _read_value(inner, item, _join(where, key)) for key, item in value.items()}
        if get_origin(option) is tuple and isinstance(value, list):
            inner = get_args(option)[0]
            return tuple(_read_value(inner, item, f"{where}.{index}") for index, item in enumerate(value))
    return value


def _coerce(hint: Any, value: Any, what: str) -> Any:
    """The value, with an int as float where a float is expected; a `SpecError` where the type is wrong."""
    for option in _options(hint):
        if option is Any or (option is type(None) and value is None):
            return value
        if get_origin(option) is Literal and isinstance(value, str) and value in get_args(option):
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
            return float(value) + 0.0  # -0.0 would be another run with the same results
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_coerce(get_args(option)[0], item, what) for item in value)
        if get_origin(option) is Mapping and isinstance(value, Mapping):
            return {key: _coerce(get_args(option)[1], item, f"{what}.{key}") for key, item in value.items()}
        plain_type = get_origin(option) or option
        if (
            plain_type not in (float, int, tuple, Literal)
            and isinstance(plain_type, type)
            and isinstance(value, plain_type)
        ):
            return value
    expected = " or ".join(_describe(option) for option in _options(hint))
    raise SpecError(f"{what} must be {expected}, got {value!r}; {_remedy(hint, value, what)}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _remedy(hint: Any, value: Any, what: str) -> str:
    words = [word for option in _options(hint) if get_origin(option) is Literal for word in get_args(option)]
    return nearest(value, words, renamed.VALUES.get(what, {})) or "correct the value"


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _describe(option: Any) -> str:
    if get_origin(option) is Literal:
        return "one of " + ", ".join(repr(word) for word in get_args(option))
    if get_origin(option) is tuple:
        return f"a list of {_describe(get_args(option)[0]).removeprefix('a ').removeprefix('an ')}s"
    if get_origin(option) is Mapping:
        return "a table"
    names = {float: "a finite number", int: "an integer", str: "a text", bool: "true or false", type(None): "absent"}
    return names.get(option, f"a {getattr(option, '__name__', str(option)).removesuffix('Settings')}")


_RULES: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": (">=", lambda value, bound: value >= bound),
    "above": (">", lambda value, bound: value > bound),
    "most": ("<=", lambda value, bound: value <= bound),
    "below": ("<", lambda value, bound: value < bound),
}


def _check_range(what: str, value: Any, metadata: Mapping[str, Any]) -> None:
    bounds = metadata.get("bounds", {})
    numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, int | float)]
    for number in numbers:
        if not all(_RULES[key][1](number, bound) for key, bound in bounds.items()):
            rule = " and ".join(f"{_RULES[key][0]} {bound:g}" for key, bound in bounds.items())
            got = f"{number:g}" if _is_finite(number) else str(number)
            raise SpecError(f"{what} must be {rule}, got {got}; {metadata['hint'] or 'choose one in that range'}")
        if isinstance(number, int) and number.bit_length() > MOST_BITS:
            raise SpecError(f"{what} must fit into 64 bits, got {number}; correct the value")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
