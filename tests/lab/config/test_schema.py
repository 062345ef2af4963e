"""Settings: what is not allowed is an error that gives the setting, the rule, the value and a remedy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law

from egalitarian.lab.config import catalog
from egalitarian.lab.config.method import Method, Optim
from egalitarian.lab.config.schema import Kind, Settings, SpecError, everything, meaning, nearest, read, setting

FORM = re.compile(r"\S.* must .+, got .+; \S.*")
"""<what> must be <rule>, got <value>; <way out>."""


@dataclass(frozen=True, kw_only=True)
class Shape(Kind):
    pass


@dataclass(frozen=True, kw_only=True)
class Circle(Shape, kind="circle"):
    radius: float = setting(above=0)


@dataclass(frozen=True, kw_only=True)
class Square(Shape, kind="square"):
    side: float = setting(1.0, above=0)


@dataclass(frozen=True, kw_only=True)
class Drawing(Settings):
    title: str = setting(meaning=False)
    count: int = setting(least=1, most=10, hint="ten fit on a page")
    angle: float = setting(0.5, least=0, below=1)
    colour: Literal["black", "white"] = "black"
    filled: bool = setting(False)
    sizes: tuple[float, ...] = setting((1.0, 2.0), above=0)
    shape: Shape = Square()
    others: tuple[Shape, ...] = ()
    limit: int | None = setting(None, least=0)


def message(make: Callable[[], Any]) -> str:
    with pytest.raises(SpecError) as caught:
        make()
    text = str(caught.value)
    assert FORM.fullmatch(text), text
    return text


def drawing(**values: Any) -> Drawing:
    return read(Drawing, {"title": "t", "count": 1, **values})


def test_a_table_becomes_settings() -> None:
    read_one = drawing(angle=0, sizes=[1, 2], shape={"name": "circle", "radius": 2}, others=[{"name": "square"}], limit=3)
    made = Drawing(title="t", count=1, angle=0.0, shape=Circle(radius=2.0), others=(Square(),), limit=3)
    assert read_one == made
    assert isinstance(read_one.angle, float)
    assert read_one.sizes == (1.0, 2.0)
    assert hash(read_one) == hash(made)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        drawing().count = 2  # type: ignore[misc]


def test_what_is_written_reads_back() -> None:
    one = drawing(shape={"name": "circle", "radius": 2}, others=[{"name": "square", "side": 3}], limit=0)
    assert read(Drawing, everything(one)) == one


@pytest.mark.parametrize("name", catalog.names())
def test_experiments_are_read_back_from_what_they_say(name: str) -> None:
    experiment = catalog.load(name)
    for part in (experiment.task, experiment.model, experiment.training):
        of = type(part).__mro__[1] if isinstance(part, Kind) else type(part)
        assert read(of, everything(part)) == part
        assert read(of, meaning(part)) == part  # what is left out stands at its default
    for method in experiment.methods.values():
        assert read(Method, everything(method)) == method


def test_the_meaning_leaves_out_titles_and_defaults() -> None:
    assert meaning(drawing()) == {"count": 1}
    assert meaning(drawing(angle=0.5, colour="black", shape={"name": "square", "side": 1})) == {"count": 1}
    assert meaning(drawing(shape={"name": "circle", "radius": 1})) == {
        "count": 1,
        "shape": {"name": "circle", "radius": 1.0},
    }


@law
@given(st.integers())
def test_a_range_admits_what_lies_in_it_and_nothing_else(count: int) -> None:
    if 1 <= count <= 10:
        assert drawing(count=count).count == count
    else:
        said = message(lambda: drawing(count=count))
        assert said.startswith("count must be >= 1 and <= 10, got ")
        assert said.endswith("ten fit on a page")


@law
@given(st.floats())
def test_a_number_is_finite_and_in_its_range(angle: float) -> None:
    if 0 <= angle < 1:
        assert drawing(angle=angle).angle == angle
    else:
        assert "angle" in message(lambda: drawing(angle=angle))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"cuont": 1}, "cuont must be a known setting, got 'cuont'; did you mean 'count'?"),
    "unknown and unlike": ({"xyzxyz": 1}, "remove it (known: title, count, angle"),
    "unknown below": ({"shape": {"name": "circle", "raduis": 1}}, "shape.raduis must be a known setting"),
    "unknown in a list": ({"others": [{"name": "square", "sid": 1}]}, "others.0.sid must be a known setting"),
    "unknown kind": ({"shape": {"name": "cirle"}}, "shape.name must be a known shape, got 'cirle'; did you mean 'circle'?"),
    "no kind": ({"shape": {}}, "shape.name must be a known shape, got None; one of circle, square"),
    "kind of another type": ({"shape": {"name": ["circle"]}}, "shape.name must be a known shape, got ['circle']"),
    "missing below": ({"shape": {"name": "circle"}}, "shape.radius must be given, got nothing; add it"),
    "no table": ({"shape": 3}, "shape must be a table, got 3; write [shape]"),
    "a text for a number": ({"angle": "0.5"}, "angle must be a finite number, got '0.5'"),
    "a truth for a number": ({"angle": True}, "angle must be a finite number, got True"),
    "a truth for an integer": ({"count": True}, "count must be an integer, got True"),
    "a fraction for an integer": ({"count": 1.0}, "count must be an integer, got 1.0"),
    "not finite": ({"angle": float("nan")}, "angle must be a finite number, got nan"),
    "an integer for a truth": ({"filled": 1}, "filled must be true or false, got 1"),
    "a number for a text": ({"title": 1}, "title must be a text, got 1"),
    "another word": ({"colour": "blak"}, "colour must be one of 'black', 'white', got 'blak'; did you mean 'black'?"),
    "a number for a list": ({"sizes": 1.0}, "sizes must be a list of finite numbers, got 1.0"),
    "a text in a list": ({"sizes": [1.0, "2"]}, "sizes must be a finite number, got '2'"),
    "out of range in a list": ({"sizes": [1.0, -2]}, "sizes must be > 0, got -2"),
    "below a range, below": ({"shape": {"name": "circle", "radius": 0}}, "shape.radius must be > 0, got 0"),
    "neither one nor the other": ({"limit": "many"}, "limit must be an integer or absent, got 'many'"),
}


@pytest.mark.parametrize(("values", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_an_error_with_a_way_out(values: dict[str, Any], expected: str) -> None:
    assert expected in message(lambda: drawing(**values))


def test_a_missing_key_is_an_error() -> None:
    assert message(lambda: read(Drawing, {"title": "t"})).startswith("count must be given, got nothing; add it")


def test_values_from_python_are_checked_as_values_from_a_file_are() -> None:
    for make in (
        lambda: Drawing(title="t", count=11),
        lambda: drawing().replace(count=11),
        lambda: Optim(lr=-1.0),
        lambda: Optim().replace(lr="fast"),
    ):
        message(make)


LONG = [item.name for item in fields(Optim) if len(item.name) > 4]


@law
@given(name=st.sampled_from(LONG), data=st.data())
def test_a_slip_of_one_letter_is_understood(name: str, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(name) - 1))
    slip = name[:gone] + name[gone + 1 :]
    said = message(lambda: read(Optim, {slip: 1.0}, "methods.egd.optim"))
    assert said.startswith(f"methods.egd.optim.{slip} must be a known setting, got {slip!r}; did you mean {name!r}?")


def test_nearest_says_nothing_where_nothing_is_near() -> None:
    assert nearest("xyzxyz", ["count", "angle"]) == ""


def test_nearest_does_not_mind_capitals() -> None:
    assert nearest("EGD", ["sgd-lr5", "egd"]) == "did you mean 'egd'?"
