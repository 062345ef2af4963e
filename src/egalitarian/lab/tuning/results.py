"""The files a tuning leaves: a JSON per family that never loses what is known, and one table of all of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from egalitarian.lab.settings import SpecError
from egalitarian.lab.spec import Experiment
from egalitarian.lab.tuning.plan import Family

SAME = ("experiment", "changes", "score", "threshold")
"""What a file's methods share; and each has its budget."""
RANK = "failures, then the median"
"""How points are ranked (`Point.rank`); a file says so, since it once was otherwise."""


class Results:
    """One family's file. Methods are kept side by side; a fuller one is only replaced when that is asked for."""

    def __init__(
        self,
        folder: Path,
        family: Family,
        experiment: Experiment,
        quick: bool = False,
        replace: bool = False,
        methods: tuple[str, ...] = (),
    ) -> None:
        self._family = family
        asked = family.only(methods)
        self._replaced = set(asked) if replace else set()
        self._about = {
            "family": family.name,
            "experiment": experiment.name,
            "title": experiment.heading,
            "plain": family.plain,
            "score": family.score,
            "threshold": experiment.measure.threshold,
            "steps_per_epoch": experiment.steps_per_epoch,
            "budgets": {name: experiment.method(name).epochs for name in family.methods},
            "changes": list(experiment.changes),
            "quick": quick,
        }
        self.path = folder / f"tuned-{family.name}{apart(self._about)}.json"
        self._kept: set[str] = set()
        self.taken, self.seconds = 0, 0.0
        """Points that the file knew, and seconds of training, since then."""
        found = read_results(self.path) if self.path.exists() else {}
        differing = _differing(found, self._about) if found else None
        if differing is not None and not replace:
            self._refuse(*differing)
        self._others_stay = differing is None
        self.methods: dict[str, Any] = dict(found.get("methods", {})) if self._others_stay else {}
        for method in set(asked) & set(self.methods) - self._replaced:
            self._check(method, self.methods[method])

    @property
    def complete(self) -> bool:
        """Whether every method of the family has been measured on its fresh seeds."""
        return all(self.methods.get(name, {}).get("complete", False) for name in self._family.methods)

    @property
    def kept(self) -> list[str]:
        """Methods of which the file has more than was found now."""
        return sorted(self._kept)

    def known(self, method: str) -> dict[str, Any] | None:
        """What the file says of a method."""
        found: dict[str, Any] | None = None if method in self._replaced else self.methods.get(method)
        return found

    def put(self, method: str, entry: dict[str, Any]) -> None:
        """Writes it down, unless the file has more of it. Another process may be at other methods."""
        self._kept.discard(method)
        with alone(self.path.parent):
            if self.path.exists() and self._others_stay:
                self.methods = read_results(self.path)["methods"]
            self._others_stay = True  # from now on the file is ours
            earlier = None if method in self._replaced else self.methods.get(method)
            if earlier is not None and fullness(entry) < fullness(earlier):
                self._kept.add(method)
                return
            if earlier is not None and lasting(entry) == lasting(earlier):
                entry = {**entry, "environment": earlier["environment"]}  # nothing was found here
            self.methods[method] = entry
            order = [name for name in self._family.methods if name in self.methods]
            methods = {name: self.methods[name] for name in (*order, *(set(self.methods) - set(order)))}
            write(self.path, json.dumps({**self._about, "complete": self.complete, "methods": methods}, indent=1) + "\n")

    def _check(self, method: str, entry: Mapping[str, Any]) -> None:
        """That a method was tuned by the rules of now; how far a search goes may differ."""
        for what, now in rules_of(self._family).items():
            then = entry.get(what)
            if isinstance(now, dict) and isinstance(then, dict):
                rule = next((rule for rule in now if rule not in ("size", "moves") and then.get(rule) != now[rule]), None)
                if rule is not None:
                    self._refuse(f"{method}'s {rule}", now[rule], then.get(rule))
            elif then != now:
                self._refuse(f"{method}'s {what}", now, then)

    def _refuse(self, what: str, now: object, then: object) -> NoReturn:
        raise SpecError(f"{self.path} must be of {what} {now!r}, got {then!r}; name another --out, or --replace it")


def _differing(found: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[str, object, object] | None:
    """The first thing of which a file has another value than it must: what, the one of now, the file's."""
    for what in SAME:
        if found.get(what) != about[what]:
            return what, about[what], found.get(what)
    budgets = found.get("budgets", {})  # the plan may have got or lost a method since
    for method, now in about["budgets"].items():
        if budgets.get(method, now) != now:
            return f"{method}'s epochs", now, budgets[method]
    return None


def rules_of(family: Family) -> dict[str, Any]:
    """All that methods must share to be compared."""
    rules = ("size", "moves", "budget", "cut", "validation", "no_decay", "lr_factor", "decay_factor")
    return {
        "rules": {**{rule: getattr(family, rule) for rule in rules}, "rank": RANK},
        "tuning_seeds": list(family.tuning_seeds),
        "fresh_seeds": list(family.fresh_seeds),
    }


def lasting(entry: Mapping[str, Any]) -> dict[str, Any]:
    """All but what it is called, and where, when and how long it was trained."""
    return {key: value for key, value in entry.items() if key not in ("title", "seconds", "environment")}


def where_and_when(entry: Mapping[str, Any]) -> str:
    """A method was tuned."""
    return f"{entry['environment']['hardware']}, {entry['environment']['when'][:10]}"


def fullness(entry: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Of what is known of a method: whether it was measured, trained seeds of its points, fresh seeds."""
    tried = sum(len(point["seeds"]) for point in entry["points"])
    return bool(entry["complete"]), tried, len(entry["fresh"])


def apart(about: Mapping[str, Any]) -> str:
    """In a file's name: what is quick or changed never takes the place of the real thing."""
    return ("-changed" if about["changes"] else "") + ("-quick" if about["quick"] else "")


def read_results(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["methods"], dict):
            raise TypeError("methods")
        for entry in found["methods"].values():
            fullness(entry)
            where_and_when(entry)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise SpecError(
            f"{path} must be as `egalitarian tune` wrote it, got {type(error).__name__}: {error}; move it away"
        ) from None
    return dict(found)


def all_results(folder: Path, suffix: str, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every family's that is in the folder, the plan's order first."""
    found = [read_results(path) for path in sorted(folder.glob("tuned-*.json"))]
    places = {name: place for place, name in enumerate(order)}
    yield from sorted(
        (each for each in found if apart(each) == suffix), key=lambda each: places.get(each["family"], len(places))
    )


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
        raise SpecError(f"{path} must be writable, got: {reason}; make room, or name another folder with --out") from error
