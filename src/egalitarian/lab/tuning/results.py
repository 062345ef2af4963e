"""What is known of a family's methods: a file that never loses any of it, of one experiment and one set of rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from egalitarian.lab.config import renamed
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.tuning.files import alone, apart, read_results, write
from egalitarian.lab.tuning.plan import QUICK_EPOCHS, Family
from egalitarian.lab.tuning.points import point_ids
from egalitarian.lab.tuning.trials import tuning_runs

SAME = ("family", "experiment", "changes", "score", "threshold", "quick")
"""What a file's methods share."""
FAR = ("size", "moves")
"""Rules for how far a search goes: a file's methods may differ in them."""
RANK = "failures, then the median"
"""How points are ranked (`Point.rank`); a file says so, since it once was otherwise."""


class Results:
    """One family's file. Its methods are of one experiment and one set of rules; a fuller one is only replaced when that is
    asked for, and then once there is something whole to take its place."""

    def __init__(
        self,
        folder: Path,
        family: Family,
        experiment: Experiment,
        quick: bool = False,
        replace: bool = False,
        methods: tuple[str, ...] = (),
    ) -> None:
        self._family, self._changes = family, experiment.changes
        self._asked = family.only(methods)
        self._replaced = set(self._asked) if replace else set()
        self._about: dict[str, Any] = {
            "family": family.name,
            "experiment": experiment.name,
            "title": experiment.heading,
            "plain": family.plain,
            "score": family.score,
            "threshold": experiment.measure.threshold,
            "steps_per_epoch": experiment.steps_per_epoch,
            "budgets": {name: QUICK_EPOCHS if quick else experiment.method(name).epochs for name in family.methods},
            "changes": list(experiment.changes),
            "quick": quick,
        }
        self.path = folder / f"tuned-{family.name}{apart(self._about)}.json"
        self._kept: set[str] = set()
        self._booked: dict[str, float] = {}
        """Seconds of each method that are in the file already."""
        self._ids: dict[tuple[str, float, float], list[str]] = {}
        self.taken, self.seconds = 0, 0.0
        """Points that the file knew, and seconds of training, since then."""
        self.methods = self._read()

    @property
    def complete(self) -> bool:
        """Whether every method of the family has been measured on its fresh seeds, and none is to be replaced yet."""
        return not self._replaced and all(
            self.methods.get(name, {}).get("complete", False) for name in self._family.methods
        )

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to be found of the methods that were asked for."""
        return all(self.whole(method) for method in self._asked)

    @property
    def kept(self) -> list[str]:
        """Methods of which the file has a whole one while another is under way, or more points than were found now."""
        return sorted(self._kept)

    def known(self, method: str) -> dict[str, Any] | None:
        """What the file says of a method."""
        found: dict[str, Any] | None = None if method in self._replaced else self.methods.get(method)
        return found

    def whole(self, method: str) -> bool:
        """Whether the file has all of it that there is to be found by the rules of now."""
        entry = self.known(method)
        if entry is None or not entry["complete"]:
            return False
        rules, title = rules_of(self._family)["rules"], self._family.methods[method].title
        return bool(entry["rules"] == rules and entry["title"] == title)

    def put(self, method: str, entry: dict[str, Any], seconds: float = 0.0) -> None:
        """Writes it down, unless the file has more of it; the seconds that this process has spent on it in any case.

        Another process may be at other methods.
        """
        self._kept.discard(method)
        with alone(self.path.parent):
            self.methods = self._read()
            earlier = self.methods.get(method)
            if earlier is None and not entry["points"] and not entry["complete"]:
                return
            fewer = not entry["complete"] if method in self._replaced else fullness(entry) < fullness(earlier or entry)
            if earlier is not None and fewer:
                self._kept.add(method)
                kept = earlier if method in self._replaced else with_further(earlier, entry["points"])
            else:
                self._replaced.discard(method)
                kept = entry
                if earlier is not None and lasting(entry) == lasting(earlier):
                    kept = {**entry, "environment": earlier["environment"]}  # nothing was found here
            spent = self._with_seconds(
                (earlier or {}).get("spent", {}), method, where_and_when(entry["environment"]), seconds
            )
            if kept is earlier and spent == earlier["spent"]:
                return
            self._write(method, {**kept, "spent": spent})

    def _with_seconds(self, spent: Mapping[str, float], method: str, here: str, seconds: float) -> dict[str, float]:
        """What is spent, with those of this process that are not in it yet."""
        new, self._booked[method] = seconds - self._booked.get(method, 0.0), seconds
        return {**spent, here: round(spent.get(here, 0.0) + new, 3)} if new or not spent else dict(spent)

    def _write(self, method: str, entry: dict[str, Any]) -> None:
        self.methods[method] = entry
        order = [name for name in self._family.methods if name in self.methods]
        order += [name for name in self.methods if name not in order]
        methods = {name: self.methods[name] for name in order}
        write(self.path, json.dumps({**self._about, "complete": self.complete, "methods": methods}, indent=1) + "\n")

    def _read(self) -> dict[str, Any]:
        """What the file has, all of it of the experiment and the rules of now but what is to be replaced."""
        if not self.path.exists():
            return {}
        found = self._as_now(read_results(self.path))
        methods = dict(found["methods"])
        staying = [name for name in methods if name not in self._replaced]
        for what in SAME if staying else ():
            if found[what] != self._about[what]:
                self._refuse(what, self._about[what], found[what], staying[0])
        for name in staying:
            self._check(name, methods[name])
        return methods

    def _as_now(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What an older version wrote, under the new names."""
        known = self._family.methods
        methods = {renamed.now(name, renamed.METHODS, known): entry for name, entry in found["methods"].items()}
        return {
            **found,
            "experiment": renamed.EXPERIMENTS.get(found["experiment"], found["experiment"]),
            "changes": [renamed.change_now(change, known) for change in found["changes"]],
            "methods": {name: self._entry_now(name, entry) for name, entry in methods.items()},
        }

    def _entry_now(self, method: str, entry: dict[str, Any]) -> dict[str, Any]:
        if method not in self._family.methods:
            return entry
        title = renamed.title_now(entry["title"])
        if title == self._family.methods[method].title:
            entry = {**entry, "title": title}
        if entry["best"] is not None and "changes" in entry["best"]:
            changes = [renamed.change_now(change, self._family.methods) for change in entry["best"]["changes"]]
            entry = {**entry, "best": {**entry["best"], "changes": changes}}
        return entry

    def _check(self, method: str, entry: Mapping[str, Any]) -> None:
        """That a method was tuned by the rules of now, how far a search goes apart, and by the runs of now."""
        for what, now in rules_of(self._family).items():
            then = entry.get(what)
            if isinstance(now, dict) and isinstance(then, dict):
                rule = next((rule for rule in now if rule not in FAR and then.get(rule) != now[rule]), None)
                if rule is not None:
                    self._refuse(f"{method}'s {rule}", now[rule], then.get(rule), method)
            elif then != now:
                self._refuse(f"{method}'s {what}", now, then, method)
        if method not in self._family.methods or not entry["points"]:
            return
        best, epochs = entry["best"], self._about["budgets"][method]
        if best is not None and best["budget"] != epochs:
            self._refuse(f"{method}'s epochs", epochs, best["budget"], method)
        point = entry["points"][0]
        now = self._runs(method, point["lr"], point["decay"])
        then = [seed["id"] for seed in point["seeds"]]
        if then != now:
            where = f"at lr {point['lr']:g} and decay {point['decay']:g}"
            self._refuse(f"{method}'s runs {where}, as the experiment is now:", now, then, method)

    def _runs(self, method: str, lr: float, decay: float) -> list[str]:
        """The ids of a point's."""
        place = (method, lr, decay)
        if place not in self._ids:
            self._ids[place] = [run.id for run in tuning_runs(self._family, method, self._changes, lr, decay)]
        return self._ids[place]

    def _refuse(self, what: str, now: object, then: object, method: str) -> NoReturn:
        way = f"name another --out, or overwrite the entry with --replace --method {method}"
        raise SpecError(f"{self.path} must have {what} {now!r}, got {then!r}; {way}")


def rules_of(family: Family) -> dict[str, Any]:
    """All that methods must share to be compared."""
    rules = (*FAR, "budget", "cut", "validation", "no_decay", "lr_factor", "decay_factor")
    return {
        "rules": {**{rule: getattr(family, rule) for rule in rules}, "rank": RANK},
        "tuning_seeds": list(family.tuning_seeds),
        "fresh_seeds": list(family.fresh_seeds),
    }


def lasting(entry: Mapping[str, Any]) -> dict[str, Any]:
    """All that was found: not what it is called, how far the search may go, and where, when and how long it was trained."""
    rules = {key: value for key, value in entry["rules"].items() if key not in FAR}
    found = {key: value for key, value in entry.items() if key not in ("title", "spent", "environment", "further")}
    return {**found, "rules": rules}


def with_further(entry: dict[str, Any], points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A method with what a search has tried that goes further and is not at its end; itself where nothing is new."""
    known = {point_ids(point): point["budget"] for point in (*entry["points"], *entry.get("further", ()))}
    new = [point for point in points if known.get(point_ids(point), 0) < point["budget"]]
    return {**entry, "further": [*entry.get("further", ()), *new]} if new else entry


def where_and_when(environment: Mapping[str, Any]) -> str:
    """Hardware and day."""
    return f"{environment['hardware']}, {environment['when'][:10]}"


def fullness(entry: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Of what is known of a method: whether it was measured, trained seeds of its points, fresh seeds."""
    tried = sum(len(point["seeds"]) for point in entry["points"])
    return bool(entry["complete"]), tried, len(entry["fresh"])
