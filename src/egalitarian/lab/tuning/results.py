"""A family's results file: one entry per method, all of one experiment and one set of rules. Nothing in it gets lost."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock

from egalitarian.lab.config import (
    Experiment,
    Run,
    SpecError,
    current_change,
    current_experiment,
    current_method,
    current_title,
)
from egalitarian.lab.runs import write_atomically
from egalitarian.lab.tuning.plan import QUICK_EPOCHS, Family
from egalitarian.lab.tuning.points import Grid, SeedResult, point_ids, polar_text

SHARED = ("family", "experiment", "changes", "score", "threshold", "quick")
"""Fields that hold for all entries of a file."""
REACH = ("size", "moves")
"""Rules for how far a search goes: the entries of a file may differ in them."""
RANK = "failures, then the median"
"""The order of points by `Point.rank`. A file names it, since older files have another one."""
LOCK = "tuned.lock"


class Results:
    """One family's file, which several processes may write.

    A fuller entry is replaced only with `replace`, and then once the new one is complete.
    """

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
        self.path = folder / f"tuned-{family.name}{file_suffix(self._about)}.json"
        self._kept: set[str] = set()
        self._written_seconds: dict[str, float] = {}
        """By method: this process's seconds that are in the file."""
        self._runs: dict[tuple[str, float, float], dict[str, list[Run]]] = {}
        self.reused, self.seconds = 0, 0.0
        """Points that this process took from the file, and its seconds of training."""
        self.methods = self._read()

    @property
    def complete(self) -> bool:
        """Whether every method of the family has results of its fresh seeds, and no entry waits to be replaced."""
        return not self._replaced and all(
            self.methods.get(name, {}).get("complete", False) for name in self._family.methods
        )

    @property
    def finished(self) -> bool:
        """Whether the file has all results of the methods that were asked for."""
        return all(self.up_to_date(method) for method in self._asked)

    @property
    def kept(self) -> list[str]:
        """Methods whose entry in the file is complete or has more points than this process's, and was kept."""
        return sorted(self._kept)

    def entry(self, method: str) -> dict[str, Any] | None:
        """The entry to resume from."""
        found: dict[str, Any] | None = None if method in self._replaced else self.methods.get(method)
        return found

    def up_to_date(self, method: str) -> bool:
        """Whether the file has a complete entry of the method by the present rules."""
        entry = self.entry(method)
        if entry is None or not entry["complete"]:
            return False
        rules, title = rules_of(self._family)["rules"], self._family.methods[method].title
        return bool(entry["rules"] == rules and entry["title"] == title)

    def put(self, method: str, entry: dict[str, Any], seconds: float = 0.0) -> None:
        """Writes an entry, unless the file has a fuller one. The seconds of this process are added in any case.

        Args:
            method: its name.
            entry: all that is known of it.
            seconds: of training by this process so far, those of earlier calls included.
        """
        self._kept.discard(method)
        with locked(self.path.parent):
            self.methods = self._read()  # another process may have written other methods
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
                if earlier is not None and findings(entry) == findings(earlier):
                    kept = {**entry, "environment": earlier["environment"]}  # nothing was trained here
            spent = self._with_seconds((earlier or {}).get("spent", {}), method, hardware_and_day(entry), seconds)
            if kept is earlier and spent == earlier["spent"]:
                return
            self._write(method, {**kept, "spent": spent})

    def _with_seconds(self, spent: Mapping[str, float], method: str, here: str, seconds: float) -> dict[str, float]:
        """The seconds in the file, with those of this process that are not in it."""
        new, self._written_seconds[method] = seconds - self._written_seconds.get(method, 0.0), seconds
        return {**spent, here: round(spent.get(here, 0.0) + new, 3)} if new or not spent else dict(spent)

    def _write(self, method: str, entry: dict[str, Any]) -> None:
        self.methods[method] = entry
        order = [name for name in self._family.methods if name in self.methods]
        order += [name for name in self.methods if name not in order]
        methods = {name: self.methods[name] for name in order}
        text = json.dumps({**self._about, "complete": self.complete, "methods": methods}, indent=1) + "\n"
        with writable(self.path):
            write_atomically(self.path, text)

    def _read(self) -> dict[str, Any]:
        """The file's entries. All but those to be replaced must be of the present experiment and rules."""
        if not self.path.exists():
            return {}
        found = self._in_new_names(read_results(self.path))
        methods = dict(found["methods"])
        staying = [name for name in methods if name not in self._replaced]
        for field in SHARED if staying else ():
            if found[field] != self._about[field]:
                self._refuse(field, self._about[field], found[field], staying[0])
        for name in staying:
            self._check(name, methods[name])
        return methods

    def _in_new_names(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """An older version's file in the present names."""
        known = self._family.methods
        methods = {current_method(name, known): entry for name, entry in found["methods"].items()}
        return {
            **found,
            "experiment": current_experiment(found["experiment"]),
            "changes": [current_change(change, known) for change in found["changes"]],
            "methods": {name: self._entry_in_new_names(name, entry) for name, entry in methods.items()},
        }

    def _entry_in_new_names(self, method: str, entry: dict[str, Any]) -> dict[str, Any]:
        if method not in self._family.methods:
            return entry
        title = current_title(entry["title"])
        if title == self._family.methods[method].title:
            entry = {**entry, "title": title}
        if entry["best"] is not None and "changes" in entry["best"]:
            changes = [current_change(change, self._family.methods) for change in entry["best"]["changes"]]
            entry = {**entry, "best": {**entry["best"], "changes": changes}}
        return entry

    def _check(self, method: str, entry: Mapping[str, Any]) -> None:
        """Refuses an entry of other rules, except for the reach of its search, or of other runs."""
        for part, now in rules_of(self._family).items():
            then = entry.get(part)
            if isinstance(now, dict) and isinstance(then, dict):
                rule = next((rule for rule in now if rule not in REACH and then.get(rule) != now[rule]), None)
                if rule is not None:
                    self._refuse(f"{method}'s {rule}", now[rule], then.get(rule), method)
            elif then != now:
                self._refuse(f"{method}'s {part}", now, then, method)
        if method not in self._family.methods or not entry["points"]:
            return
        best, epochs = entry["best"], self._about["budgets"][method]
        if best is not None and best["budget"] != epochs:
            self._refuse(f"{method}'s epochs", epochs, best["budget"], method)
        point = entry["points"][0]
        if self._runs_of(method, point) is None:
            where = f"at lr {point['lr']:g} and decay {point['decay']:g}"
            now = [run.id for run in next(iter(self._stored_runs(method, point).values()))]
            self._refuse(f"{method}'s runs {where}, as the experiment is now:", now, list(point_ids(point)), method)

    def refuse_other_runs(self, method: str, device: str) -> None:
        """Refuses to continue an entry of version 1, or with another polar factor than this type of device has."""
        entry = self.entry(method)
        if entry is None or not entry["points"]:
            return
        point = entry["points"][0]
        there, here = self._runs_of(method, point), self._stored_runs(method, point)[device]
        if there is not None and [run.id for run in there] != [run.id for run in here]:
            self._refuse(f"{method}'s polar factor", polar_text(here[0]), polar_text(there[0]), method)

    def _runs_of(self, method: str, point: Mapping[str, Any]) -> list[Run] | None:
        """The runs that a stored point was made of; None if the experiment has no such runs now."""
        ids = point_ids(point)
        several = self._stored_runs(method, point).values()
        return next((runs for runs in several if tuple(run.id for run in runs) == ids), None)

    def _stored_runs(self, method: str, point: Mapping[str, Any]) -> dict[str, list[Run]]:
        key = (method, point["lr"], point["decay"])
        if key not in self._runs:
            self._runs[key] = Grid(self._family, method, self._changes).stored_runs(point["lr"], point["decay"])
        return self._runs[key]

    def _refuse(self, field: str, now: object, then: object, method: str) -> NoReturn:
        hint = f"name another --out, or overwrite the entry with --replace --method {method}"
        raise SpecError(f"{self.path} must have {field} {now!r}, got {then!r}; {hint}")


def file_suffix(about: Mapping[str, Any]) -> str:
    """The end of a file's name: quick or changed results never overwrite those of the plan."""
    return ("-changed" if about["changes"] else "") + ("-quick" if about["quick"] else "")


def rules_of(family: Family) -> dict[str, Any]:
    """The rules that entries must share to be compared."""
    rules = (*REACH, "budget", "cut", "validation", "no_decay", "lr_factor", "decay_factor")
    return {
        "rules": {**{rule: getattr(family, rule) for rule in rules}, "rank": RANK},
        "tuning_seeds": list(family.tuning_seeds),
        "fresh_seeds": list(family.fresh_seeds),
    }


def findings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without its title, the reach of its search, and where, when and how long it was trained."""
    rules = {key: value for key, value in entry["rules"].items() if key not in REACH}
    found = {key: value for key, value in entry.items() if key not in ("title", "spent", "environment", "further", "polar")}
    return {**found, "rules": rules}


def with_further(entry: dict[str, Any], points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An entry with new points of an unfinished search that reaches further; the same entry if none is new."""
    known = {point_ids(point): point["budget"] for point in (*entry["points"], *entry.get("further", ()))}
    new = [point for point in points if known.get(point_ids(point), 0) < point["budget"]]
    return {**entry, "further": [*entry.get("further", ()), *new]} if new else entry


def hardware_and_day(entry: Mapping[str, Any]) -> str:
    environment = entry["environment"]
    return f"{environment['hardware']}, {environment['when'][:10]}"


def fullness(entry: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Orders entries: complete or not, then trained seeds of its points, then fresh seeds."""
    tried = sum(len(point["seeds"]) for point in entry["points"])
    return bool(entry["complete"]), tried, len(entry["fresh"])


def read_results(path: Path) -> dict[str, Any]:
    """A results file, with every field that is read later present and of its type."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _check_type(found, str, "family", "experiment", "title", "plain", "score")
        _check_type(found, bool, "complete", "quick")
        _check_type(found, list, "changes")
        _check_type(found, float, "threshold")
        _check_type(found, dict, "methods")
        for entry in found["methods"].values():
            _check_entry(entry)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SpecError(
            f"{path} must be as `egalitarian tune` wrote it, got {type(error).__name__}: {error}; move it away"
        ) from None
    return dict(found)


def _check_entry(entry: Mapping[str, Any]) -> None:
    _check_type(entry, str, "title")
    _check_type(entry, bool, "inside", "complete")
    _check_type(entry, list, "windows", "points", "fresh", "tuning_seeds", "fresh_seeds")
    _check_type(entry, dict, "rules", "environment", "spent")
    _check_type(entry["rules"], float, "size", "validation", "lr_factor", "decay_factor")
    _check_type(entry["rules"], bool, "no_decay")
    _check_type(entry["environment"], str, "hardware", "when")
    _check_type(entry["spent"], float, *entry["spent"])
    if min(entry["spent"].values(), default=0.0) < 0:
        raise ValueError(f"spent {entry['spent']!r}")
    points = [*entry["points"], *entry.get("further", [])]
    for point in points:
        _check_type(point, float, "lr", "decay", "budget")
        _check_type(point, list, "seeds")
    for seed in (*entry["fresh"], *(seed for point in points for seed in point["seeds"])):
        SeedResult(**seed)
        _check_type(seed, float, "epochs", "accuracy", "mean_train_accuracy")
        _check_type(seed, float, *(["crossed"] if seed["crossed"] is not None else []))
    if entry["complete"] and not (entry["fresh"] and entry["best"]):
        raise ValueError("complete without fresh seeds")
    if entry["best"] is not None:
        _check_type(entry["best"], float, "lr", "decay", "budget")
        _check_type(entry["best"], bool, "passes")


def _check_type(table: Mapping[str, Any], kind: type, *fields: str) -> None:
    """`float` is any finite number."""
    for field in fields:
        value = table[field]
        number = isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
        if not (number if kind is float else isinstance(value, kind)):
            raise TypeError(f"{field} {value!r}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other processes that ask for the same lock out."""
    with contextlib.ExitStack() as stack:
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / LOCK))
        yield


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """An error of the file system names the path and another option."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError(
            f"{path} must be writable, got: {reason}; free some space, or name another folder with --out"
        ) from error
