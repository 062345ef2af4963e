"""The files a tuning leaves, as files: read with every field of its kind, written at once, one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.tuning.points import Outcome


def apart(about: Mapping[str, Any]) -> str:
    """In a file's name: what is quick or changed never takes the place of the real thing."""
    return ("-changed" if about["changes"] else "") + ("-quick" if about["quick"] else "")


def read_results(path: Path) -> dict[str, Any]:
    """Every field that is read later is there, and of its kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for what in ("family", "experiment", "title", "plain", "score"):
            _is(found, what, str)
        for what in ("complete", "quick"):
            _is(found, what, bool)
        _is(found, "changes", list)
        _is_number(found, "threshold")
        for entry in _is(found, "methods", dict).values():
            _inspect(entry)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SpecError(
            f"{path} must be as `egalitarian tune` wrote it, got {type(error).__name__}: {error}; move it away"
        ) from None
    return dict(found)


def _inspect(entry: Mapping[str, Any]) -> None:
    _is(entry, "title", str)
    for what in ("windows", "points", "fresh", "tuning_seeds", "fresh_seeds"):
        _is(entry, what, list)
    for what in ("size", "validation", "lr_factor", "decay_factor"):
        _is_number(_is(entry, "rules", dict), what)
    _is(entry["rules"], "no_decay", bool)
    for what in ("hardware", "when"):
        _is(_is(entry, "environment", dict), what, str)
    for place in _is(entry, "spent", dict):
        _is_number(entry["spent"], place, least=0.0)
    points = [*entry["points"], *(_is(entry, "further", list) if "further" in entry else ())]
    for point in points:
        for what in ("lr", "decay", "budget"):
            _is_number(point, what)
    for seed in (*entry["fresh"], *(seed for point in points for seed in _is(point, "seeds", list))):
        Outcome(**seed)
        for what in ("epochs", "accuracy", "mean_train_accuracy", *(["crossed"] if seed["crossed"] is not None else [])):
            _is_number(seed, what)
    _is(entry, "inside", bool)
    if _is(entry, "complete", bool) and not (entry["fresh"] and entry["best"]):
        raise ValueError("complete without fresh seeds")
    if entry["best"] is not None:
        for what in ("lr", "decay", "budget"):
            _is_number(_is(entry, "best", dict), what)
        _is(entry["best"], "passes", bool)


def _is(table: Mapping[str, Any], what: str, kind: type) -> Any:
    if not isinstance(table[what], kind):
        raise TypeError(f"{what} {table[what]!r}")
    return table[what]


def _is_number(table: Mapping[str, Any], what: str, least: float = -math.inf) -> None:
    value = table[what]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise TypeError(f"{what} {value!r}")


def all_results(folder: Path, suffix: str, order: Sequence[str], tell: Callable[[str], object]) -> list[dict[str, Any]]:
    """Every family's that is in the folder and can be read, the plan's order first."""
    found = []
    for path in sorted(folder.glob("tuned-*.json")):
        try:
            found.append(_titled_now(read_results(path)))
        except SpecError as error:
            tell(f"Left out of the table: {error}")
    places = {name: place for place, name in enumerate(order)}
    own = [each for each in found if apart(each) == suffix and each["methods"]]
    return sorted(own, key=lambda each: places.get(each["family"], len(places)))


def _titled_now(found: dict[str, Any]) -> dict[str, Any]:
    """Of an older version: with the titles of now."""
    methods = {name: {**entry, "title": renamed.title_now(entry["title"])} for name, entry in found["methods"].items()}
    return {**found, "methods": methods}


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process that asks the same is inside meanwhile."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def write(path: Path, text: str) -> None:
    """At once or not at all."""
    with _told(path):
        draft = path.with_suffix(".draft")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError(
            f"{path} must be writable, got: {reason}; free some space, or name another folder with --out"
        ) from error
