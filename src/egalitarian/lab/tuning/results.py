"""A family's results file: one entry per method, all of one experiment and one set of rules. Nothing in it gets lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock

from egalitarian.lab.config import DEVICES, Experiment, Run, SpecError, everything, load
from egalitarian.lab.runs import write_atomically
from egalitarian.lab.tuning.plan import Family
from egalitarian.lab.tuning.points import Grid, Position, SeedResult, point_ids, polar_text

SHARED = ("family", "experiment", "changes", "score", "threshold", "quick", "stock", "forms")
"""Fields that hold for all entries of a file."""
RULES = (
    *("budget", "readings", "fresh_readings", "lrs", "decays", "lr_factor", "decay_factor", "basins", "around"),
    *("thirds", "further", "patience", "validation"),
)
"""What entries must share to be compared."""
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
        searches_only: bool = False,
    ) -> None:
        self._family, self._changes, self._searches_only = family, experiment.changes, searches_only
        self._asked = family.only(methods)
        self._replaced = set(self._asked) if replace else set()
        self._about: dict[str, Any] = {
            "family": family.name,
            "experiment": experiment.name,
            "titles": titles(family, experiment),
            "stock": list(family.stock),
            "forms": list(family.forms),
            "ours": family.ours,
            "score": family.score,
            "threshold": experiment.measure.threshold,
            "steps_per_pass": (experiment.steps_per_epoch or 0) * experiment.training.readings or None,
            "changes": list(experiment.changes),
            "quick": quick,
        }
        self.path = folder / f"tuned-{family.name}{file_suffix(self._about)}.json"
        self._kept: set[str] = set()
        self._written_seconds: dict[str, float] = {}
        """By method: this process's seconds that are in the file."""
        self._runs: dict[tuple[str, Position], list[list[Run]]] = {}
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
        """Whether the file has all that the present rules ask for: a search, and the fresh seeds once `ours` is named."""
        entry = self.entry(method)
        if entry is None or not (entry["complete"] or (entry["searched"] and self.fresh_wait)):
            return False
        rules, title = rules_of(self._family, method)["rules"], self._family.methods[method].title
        return bool(entry["rules"] == rules and entry["title"] == title)

    @property
    def fresh_wait(self) -> bool:
        """Whether no fresh seed may be trained now: other processes would disturb its seconds, or `ours` is not named."""
        return self._searches_only or bool(self.waits)

    @property
    def waits(self) -> tuple[str, ...]:
        """The forms of which one must be named before any fresh seed is trained; empty if none is missing."""
        return () if self._family.ours else self._family.forms

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
                kept = earlier
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
        found = read_results(self.path)
        methods = dict(found["methods"])
        staying = [name for name in methods if name not in self._replaced]
        for field in SHARED if staying else ():
            if found[field] != self._about[field]:
                self._refuse(field, self._about[field], found[field], staying[0])
        for name in staying:
            self._check(name, methods[name])
            if methods[name]["fresh"] and found["ours"] != self._about["ours"]:
                self._refuse("ours", self._about["ours"], found["ours"], name)
        return methods

    def _check(self, method: str, entry: Mapping[str, Any]) -> None:
        """Refuses an entry of other rules, or of other runs."""
        if method not in self._family.methods:
            return
        for part, now in rules_of(self._family, method).items():
            then = entry.get(part)
            if isinstance(now, dict) and isinstance(then, dict):
                rule = next((rule for rule in now if then.get(rule) != now[rule]), None)
                if rule is not None:
                    self._refuse(f"{method}'s {rule}", now[rule], then.get(rule), method)
            elif then != now:
                self._refuse(f"{method}'s {part}", now, then, method)
        if not entry["points"]:
            return
        point = entry["points"][0]
        if self._runs_of(method, point) is None:
            where = f"at lr {point['lr']:g} and decay {point['decay']:g}"
            now = [run.id for run in self._stored_runs(method, point)[0]]
            self._refuse(f"{method}'s runs {where}, as the experiment is now:", now, list(point_ids(point)), method)

    def refuse_other_runs(self, method: str, device: str) -> None:
        """Refuses to continue an entry with another polar factor than this type of device has."""
        entry = self.entry(method)
        if entry is None or not entry["points"]:
            return
        point = entry["points"][0]
        there, here = self._runs_of(method, point), self._stored_runs(method, point)[DEVICES.index(device)]
        if there is not None and [run.id for run in there] != [run.id for run in here]:
            self._refuse(f"{method}'s polar factor", polar_text(here[0]), polar_text(there[0]), method)

    def _runs_of(self, method: str, point: Mapping[str, Any]) -> list[Run] | None:
        """The runs that a stored point was made of; None if the experiment has no such runs now."""
        ids = point_ids(point)
        several = self._stored_runs(method, point)
        return next((runs for runs in several if tuple(run.id for run in runs) == ids), None)

    def _stored_runs(self, method: str, point: Mapping[str, Any]) -> list[list[Run]]:
        key = (method, Position(*point["position"]))
        if key not in self._runs:
            self._runs[key] = Grid(self._family, method, self._changes).stored_runs(key[1])
        return self._runs[key]

    def _refuse(self, field: str, now: object, then: object, method: str) -> NoReturn:
        hint = f"name another --out, or overwrite the entry with --replace --method {method}"
        raise SpecError(f"{self.path} must have {field} {now!r}, got {then!r}; {hint}")


def file_suffix(about: Mapping[str, Any]) -> str:
    """The end of a file's name: quick or changed results never overwrite those of the plan."""
    return ("-changed" if about["changes"] else "") + ("-quick" if about["quick"] else "")


def titles(family: Family, experiment: Experiment) -> dict[str, str]:
    """Of the family's experiments, by name; `experiment` is the one that is searched."""
    others = [load(path, experiment.changes, added=family.added) for path in family.also]
    return {each.name: each.heading for each in (experiment, *others)}


def rules_of(family: Family, method: str) -> dict[str, Any]:
    """The rules that entries must share to be compared, and what the plan says of the method, as a digest."""
    own = {**everything(family.methods[method].replace(title="")), "matrices": family.matrices, "hidden": family.hidden}
    return {
        "plan": hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12],
        "rules": {rule: getattr(family, rule) for rule in RULES},
        "tuning_seeds": list(family.tuning_seeds),
        "fresh_seeds": list(family.fresh_seeds),
    }


def findings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without its title, and without where, when and how long it was trained."""
    apart = ("title", "spent", "environment", "seconds", "polar")
    return {key: value for key, value in entry.items() if key not in apart}


def hardware_and_day(entry: Mapping[str, Any]) -> str:
    environment = entry["environment"]
    return f"{environment['hardware']}, {environment['when'][:10]}"


def fullness(entry: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
    """Orders entries: complete or not, searched or not, then trained seeds of its points, then fresh seeds."""
    tried = sum(len(point["seeds"]) for point in entry["points"])
    return bool(entry["complete"]), bool(entry["searched"]), tried, sum(map(len, entry["fresh"].values()))


def read_results(path: Path) -> dict[str, Any]:
    """A results file, with every field that is read later present and of its type."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if "plain" in found:
            raise ValueError("it is of the search before this one, which moved a window")
        _check_type(found, str, "family", "experiment", "score", "ours")
        _check_type(found, bool, "complete", "quick")
        _check_type(found, list, "changes", "stock", "forms")
        _check_type(found, float, "threshold")
        _check_type(found, dict, "methods", "titles")
        for entry in found["methods"].values():
            _check_entry(entry)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SpecError(
            f"{path} must be as `egalitarian tune` wrote it, got {type(error).__name__}: {error}; move it away"
        ) from None
    return dict(found)


def _check_entry(entry: Mapping[str, Any]) -> None:
    _check_type(entry, str, "title", "polar")
    _check_type(entry, bool, "inside", "complete", "searched")
    _check_type(entry, list, "points", "tuning_seeds", "fresh_seeds")
    _check_type(entry, dict, "rules", "environment", "spent", "fresh", "seconds")
    _check_type(entry["rules"], float, *RULES)
    _check_type(entry["environment"], str, "hardware", "when")
    _check_type(entry["spent"], float, *entry["spent"])
    if min(entry["spent"].values(), default=0.0) < 0:
        raise ValueError(f"spent {entry['spent']!r}")
    for point in entry["points"]:
        Position(*point["position"])
        _check_type(point, float, "lr", "decay", "budget")
        _check_type(point, list, "seeds")
    tried = [seed for point in entry["points"] for seed in point["seeds"]]
    for seed in (*tried, *(seed for seeds in entry["fresh"].values() for seed in seeds)):
        SeedResult(**seed)
        _check_type(seed, float, "epochs", "accuracy", "mean_train_accuracy")
        _check_type(seed, float, *(["crossed"] if seed["crossed"] is not None else []))
    for seconds in entry["seconds"].values():
        _check_type(seconds, str, "hardware")
        _check_type(seconds, list, "seeds")
    if entry["complete"] and not (entry["fresh"] and entry["best"]):
        raise ValueError("complete without fresh seeds")
    if entry["best"] is not None:
        _check_type(entry["best"], float, "lr", "decay", "budget")
        _check_type(entry["best"], str, "third")
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
