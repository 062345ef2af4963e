"""From the store to values: one `Summary` per run, thinned curves, full snapshots. Reads and never trains.

What counts for the paper's tables are runs of exactly the catalogue's settings. Others (changed with --set, of an older
version, of an experiment the lab does not know) are variants: listed with what differs, never mixed in, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd  # type: ignore[import-untyped]

from egalitarian.lab.analysis.reading import Platform, Reading, read_run
from egalitarian.lab.analysis.sittings import Sitting
from egalitarian.lab.config import catalog, renamed
from egalitarian.lab.config.spec import Experiment, Run
from egalitarian.lab.runs.store import Store, Stored, StoreError

State = Literal["passed", "not passed", "diverged", "unfinished"]
KEY = ["experiment", "method", "seed"]
PARTS = ("version", "task.", "model.", "training.", "settings.optim.", "settings.hidden",
         "settings.groups", "settings.transform", "settings.targets", "settings.decay", "settings.until")  # fmt: skip
"""Of a stored spec: all that decides a run's numbers."""


@dataclass(frozen=True)
class Summary:
    """What one run comes to."""

    experiment: str
    method: str
    seed: int
    id: str
    state: State
    crossed: int | None
    """The first epoch, counted from 0, whose test accuracy is past the threshold."""
    bound: int
    """Without a crossing: the epochs within which there was none. The budget of a run that diverged."""
    epochs: int
    """Trained."""
    train_accuracy: float | None
    test_accuracy: float | None
    """After the last epoch."""
    best_test_accuracy: float | None
    platform: Platform | None
    full: bool = False
    """Whether it went through its whole budget, past the threshold or not, and did not diverge."""
    extended: bool = False
    """Whether it went on for longer than runs do that have passed."""
    diverged: bool = False
    """At its end; a run may have passed before."""
    end: tuple[float, float] | None = None
    """Smallest and largest test accuracy over the last tenth of the epochs."""
    mean_train_accuracy: float | None = None
    """Over all epochs."""
    seconds: float | None = None
    """Its share of the time it took, training and measuring."""
    sittings: tuple[Sitting, ...] = ()
    differs: str = ""
    """A variant's differences from the catalogue; empty for a run that counts."""


@dataclass(frozen=True)
class Gathered:
    """All that was read from a store."""

    experiments: tuple[Experiment, ...]
    named: bool
    """Whether somebody asked for these experiments by name."""
    runs: tuple[Summary, ...]
    variants: tuple[Summary, ...]
    warnings: tuple[str, ...]
    """What could not be read; the rest is there."""
    not_begun: tuple[str, ...]
    """Folders of runs without a trained epoch: no runs yet, and none of `runs`."""
    readings: tuple[Reading, ...] = field(repr=False)
    """Of `runs`, in their order."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is stored and counts nowhere, in words."""
        if not self.not_begun:
            return ()
        return (f"Not begun, without a trained epoch, and counted nowhere: {', '.join(self.not_begun)}",)

    def of(self, experiment: str, method: str) -> list[Summary]:
        """The seeds of a method, in order."""
        return [run for run in self.runs if (run.experiment, run.method) == (experiment, method)]

    def named_in(self, names: Sequence[str]) -> list[Experiment]:
        """The experiments with these names, in their order."""
        by_name = {experiment.name: experiment for experiment in self.experiments}
        return [by_name[name] for name in names]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per run and kept epoch: experiment, method, seed, epoch, and every measure."""
        frames = [
            reading.curve.assign(experiment=run.experiment, method=run.method, seed=run.seed)
            for run, reading in zip(self.runs, self.readings, strict=True)
            if len(reading.curve)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*KEY, "epoch"])

    def curves_of(self, experiment: str, method: str) -> pd.DataFrame:
        """Those of one method's seeds."""
        return self.curves[(self.curves.experiment == experiment) & (self.curves.method == method)]

    def snapshots(self, experiment: str, method: str, seeds: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per run and snapshot: seed, epoch, singular_values, displacement (a sketch). Read anew each time."""
        rows = [
            {"seed": run.seed, **snapshot}
            for run, reading in zip(self.runs, self.readings, strict=True)
            if (run.experiment, run.method) == (experiment, method) and (seeds is None or run.seed in seeds)
            for snapshot in reading.snapshots()
        ]
        return pd.DataFrame(rows, columns=["seed", "epoch", "singular_values", "displacement"])


def gather(store: Store, experiments: Sequence[str] = ()) -> Gathered:
    """Everything the store has of the named experiments (names, or paths of TOML files), or of all that the lab has.

    A run that cannot be read becomes a warning, and the others are read all the same.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
    """
    loaded = {
        experiment.name: experiment
        for experiment in catalog.load_each(experiments or (*catalog.names(), *catalog.beyond())).values()
    }
    counted: list[tuple[Summary, Reading]] = []
    variants: list[Summary] = []
    warnings: list[str] = []
    not_begun: list[str] = []
    for stored in _in_order(store, loaded, bool(experiments)):
        try:
            summary, reading = _summary(stored, loaded.get(stored.experiment), store)
        except (StoreError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
            told = (
                error
                if isinstance(error, StoreError)
                else f"{stored.folder} must be as the lab wrote it, got {error!r}; move it away"
            )
            warnings.append(str(told).replace(f"{store.root}/", ""))
            continue
        if not summary.epochs and stored.unvouched:
            warnings.append(f"{stored.folder.relative_to(store.root)} has records, and no checkpoint with their checksum")
        elif not summary.epochs:
            not_begun.append(stored.folder.relative_to(store.root).as_posix())
        elif summary.differs:
            variants.append(summary)
        else:
            counted.append((summary, reading))
    runs, readings = tuple(run for run, _ in counted), tuple(reading for _, reading in counted)
    apart = (tuple(variants), tuple(warnings), tuple(not_begun))
    return Gathered(tuple(loaded.values()), bool(experiments), runs, *apart, readings)


def _in_order(store: Store, loaded: Mapping[str, Experiment], named: bool) -> Iterator[Stored]:
    """By experiment, method, seed and id; where experiments were named, of these."""

    def key(stored: Stored) -> tuple[str, str, int, str, Path]:
        name = stored.folder.name
        seed = name.split("-")[1]
        number = int(seed) if re.fullmatch(r"[0-9]+", seed) else 0
        return stored.experiment, _method(stored, loaded.get(stored.experiment)), number, name, stored.folder

    for stored in sorted((Stored(path) for path in store.root.glob("*/*/seed-*") if path.is_dir()), key=key):
        if not named or stored.experiment in loaded:
            yield stored


def _method(stored: Stored, experiment: Experiment | None) -> str:
    """The method's name; an old one as it is now."""
    name = stored.folder.parent.name
    return name if experiment is None else renamed.now(name, renamed.METHODS, experiment.methods)


def _summary(stored: Stored, experiment: Experiment | None, store: Store) -> tuple[Summary, Reading]:
    spec, method = stored.spec, _method(stored, experiment)
    run = Run(experiment, method, spec["seed"]) if experiment is not None and method in experiment.methods else None
    differs = _differences(spec, experiment, run, stored.folder, store)
    told = spec if run is None else run.describe()  # threshold and budget are no part of a run: today's count
    budget = told["settings"]["epochs"]
    reading = read_run(stored, told["measure"]["threshold"], budget)
    state, bound = _state(reading, budget)
    last = reading.last or {}
    return (
        Summary(
            experiment=stored.experiment,
            method=method,
            seed=spec["seed"],
            id=spec["id"],
            state=state,
            crossed=reading.crossed,
            bound=bound,
            epochs=reading.epochs,
            train_accuracy=last.get("train_accuracy"),
            test_accuracy=last.get("test_accuracy"),
            best_test_accuracy=reading.best_test_accuracy,
            platform=reading.platform,
            full=reading.epochs >= budget and not reading.diverged,
            extended=reading.crossed is not None and reading.epochs > reading.crossed + 1 + told["measure"]["past"],
            diverged=reading.diverged,
            end=reading.end,
            mean_train_accuracy=reading.mean_train_accuracy,
            seconds=reading.seconds,
            sittings=reading.sittings,
            differs=differs,
        ),
        reading,
    )


def _state(reading: Reading, budget: int) -> tuple[State, int]:
    """How a run ended, and the epochs within which it did not pass."""
    if reading.crossed is not None:
        return "passed", reading.epochs
    if reading.diverged:
        return "diverged", max(budget, reading.epochs)
    return ("not passed" if reading.epochs >= budget else "unfinished"), reading.epochs


def _differences(spec: dict[str, Any], experiment: Experiment | None, run: Run | None, folder: Path, store: Store) -> str:
    """What makes a stored run another than the catalogue's, in words; empty where nothing does."""
    if experiment is None:
        return "an experiment that is not the lab's: name its .toml file to report on it"
    if run is None:
        return "a method that the experiment does not have"
    theirs, ours = dict(_leaves(spec)), dict(_leaves(run.describe()))
    names = [name for name in theirs if name.startswith(PARTS) and theirs[name] != ours.get(name, theirs[name])]
    said = [f"{name.removeprefix('settings.')} = {theirs[name]} (catalogue: {ours[name]})" for name in names]
    if not said and run.id != spec["id"]:
        said = ["another id: settings that this version does not know, or other defaults"]
    if not said and folder.name != f"seed-{run.seed}-{run.id}":
        said = ["its folder has another name than the lab gave it: a copy"]
    if not said and (counts := store.folder(run)) != folder:
        said = [f"a copy under an old name: {counts.relative_to(store.root).as_posix()} counts"]
    return ", ".join(said)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    chain = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if isinstance(value, dict) or chain:
        for key, item in enumerate(value) if chain else value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
