"""All runs of a store: a `RunSummary` for each, with its curve and snapshots.

Runs that count have exactly the settings of the catalogue. Others are variants: runs changed with --set, or of an
experiment that the lab does not have. They are listed with what differs, and never mixed with the rest.

A method whose polar factor has precision `auto` may have two runs of a seed, one for each tier, and an older record of
version 1. One of them counts: see `_one_of_each_seed`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egalitarian.lab.analysis.counts import Value
from egalitarian.lab.analysis.reading import Reading, RunSummary, read_run
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.config import (
    OLD_FAST,
    OLD_VERSION,
    VERSION,
    Experiment,
    Run,
    Snapshot,
    beyond,
    current_experiment,
    current_method,
    everything,
    load_each,
    names,
    of_any_version,
)
from egalitarian.lab.runs import Source, StoredRun, StoreError, recordings_in

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

KEY = ["experiment", "method", "seed"]
PARTS = ("version", "task.", "model.", "training.", "settings.optim.", "settings.hidden",
         "settings.groups", "settings.transform", "settings.targets", "settings.decay", "settings.clip",
         "settings.orthograd", "settings.until")  # fmt: skip
"""The parts of a stored spec that decide a run's numbers."""


@dataclass(frozen=True)
class Gathered:
    """All that was read from a store."""

    experiments: tuple[Experiment, ...]
    named: bool
    """Whether the user named these experiments."""
    runs: tuple[RunSummary, ...]
    variants: tuple[RunSummary, ...]
    warnings: tuple[str, ...]
    """Runs that could not be read."""
    not_begun: tuple[str, ...]
    """Folders without a trained epoch. They are not in `runs`."""
    readings: tuple[Reading, ...] = field(repr=False)
    """Of `runs`, in their order."""
    recordings: tuple[str, ...] = ()
    """Names of recordings, whose settings changed on the way. They are not in `runs`."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is stored and counts nowhere, what counts as an older record, and what nobody could see edited."""
        found = []
        if self.not_begun:
            found.append(f"Not begun, without a trained epoch, and counted nowhere: {', '.join(self.not_begun)}")
        if self.recordings:
            what = "Recordings, whose settings changed while they trained, are counted nowhere"
            found.append(f"{what}: {', '.join(self.recordings)}")
        old = Counter(f"{run.experiment} {run.method}" for run in self.runs if run.old)
        if old:
            counts = ", ".join(f"{name} ({count})" for name, count in old.items())
            found.append(f"Older records, of version {OLD_VERSION}, count where there are no others: {counts}")
        bare = Counter(f"{run.experiment} {run.method}" for run in self.runs if not run.has_checksums)
        if bare:
            counts = ", ".join(f"{name} ({count})" for name, count in bare.items())
            found.append(f"Without checksums of settings, environment and times, as earlier versions stored them: {counts}")
        return tuple(found)

    def of(self, experiment: str, method: str) -> list[RunSummary]:
        """The seeds of a method, in order."""
        return [run for run in self.runs if (run.experiment, run.method) == (experiment, method)]

    def first(self, seeds: int) -> Gathered:
        """With seeds 0 to `seeds` - 1 alone, which verdicts read."""
        kept = [(run, own) for run, own in zip(self.runs, self.readings, strict=True) if run.seed < seeds]
        return replace(self, runs=tuple(run for run, _ in kept), readings=tuple(own for _, own in kept))

    def named_in(self, names: Sequence[str]) -> list[Experiment]:
        """The experiments with these names, in their order."""
        by_name = {experiment.name: experiment for experiment in self.experiments}
        return [by_name[name] for name in names]

    def methods_run(self, experiment: str, methods: Sequence[str]) -> list[str]:
        """Those of the methods that have runs of the experiment."""
        return [method for method in methods if self.of(experiment, method)]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per run and kept epoch: experiment, method, seed, epoch, and every measure."""
        import pandas as pd  # slow to import, and most commands do not need it

        frames = [
            reading.curve.assign(experiment=run.experiment, method=run.method, seed=run.seed)
            for run, reading in zip(self.runs, self.readings, strict=True)
            if len(reading.curve)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*KEY, "epoch"])

    def curves_of(self, experiment: str, method: str) -> pd.DataFrame:
        """The curves of one method's seeds."""
        return self.curves[(self.curves.experiment == experiment) & (self.curves.method == method)]

    def snapshots(self, experiment: str, method: str, seeds: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per run and snapshot, read from disk: seed, epoch, and the parts of a `Snapshot`."""
        import pandas as pd

        rows = [
            {"seed": run.seed, **snapshot._asdict()}
            for run, reading in zip(self.runs, self.readings, strict=True)
            if (run.experiment, run.method) == (experiment, method) and (seeds is None or run.seed in seeds)
            for snapshot in reading.snapshots()
        ]
        return pd.DataFrame(rows, columns=["seed", *Snapshot._fields])

    def estimates(self) -> dict[str, dict[str, dict[str, Value]]]:
        """Epochs to the threshold by experiment and method, as plain values for summary.json."""
        found: dict[str, dict[str, dict[str, Value]]] = {}
        for experiment, method in dict.fromkeys((run.experiment, run.method) for run in self.runs):
            numbers = estimate(self.of(experiment, method))
            counts = {key: getattr(numbers, key) for key in ("n", "passed", "diverged", "unfinished")}
            ends = {"median": numbers.median, "min": numbers.low, "max": numbers.high}
            ends |= {"lower_quartile": numbers.lower_quartile, "upper_quartile": numbers.upper_quartile}
            plain = {key: None if count is None else count.plain for key, count in ends.items()}
            found.setdefault(experiment, {})[method] = {**counts, **plain}
        return found


def gather(store: Source, experiments: Sequence[str] = ()) -> Gathered:
    """Reads all runs of the named experiments (names, or paths of TOML files), or of all that the lab has.

    A run, or a file of evidence, that cannot be read becomes a warning, and the others are read.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
    """
    loaded = {each.name: each for each in load_each(experiments or (*names(), *beyond())).values()}
    counted: list[tuple[RunSummary, Reading]] = []
    variants: list[RunSummary] = []
    warnings: list[str] = []
    not_begun: list[str] = []
    for stored in _in_order(store, loaded, bool(experiments), warnings):
        try:
            summary, reading = _summarize(stored, loaded.get(stored.experiment), store)
        except (StoreError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
            damaged = f"{stored.folder} must be as the lab wrote it, got {error!r}; move it away"
            warnings.append((str(error) if isinstance(error, StoreError) else damaged).replace(f"{store.root}/", ""))
            continue
        folder = stored.folder.relative_to(store.root)
        if not summary.outcome.epochs and stored.lacks_checkpoint:
            warnings.append(f"{folder} has records, and no checkpoint with their checksum")
        elif not summary.outcome.epochs:
            not_begun.append(folder.as_posix())
        elif summary.differs:
            variants.append(summary)
        else:
            counted.append((summary, reading))
    counted, others = _one_of_each_seed(counted)
    variants += others
    runs, readings = tuple(run for run, _ in counted), tuple(reading for _, reading in counted)
    rest = (tuple(variants), tuple(warnings), tuple(not_begun))
    recordings = tuple(path.relative_to(store.root).as_posix() for path in recordings_in(store.root))
    return Gathered(tuple(loaded.values()), bool(experiments), runs, *rest, readings, recordings)


def _one_of_each_seed(
    counted: Sequence[tuple[RunSummary, Reading]],
) -> tuple[list[tuple[RunSummary, Reading]], list[RunSummary]]:
    """One run for each seed of a method; the others, as variants.

    An older record counts where there is no other. Of two tiers that one counts which more of the method's seeds have:
    seeds that are not unfinished, then all seeds. If both have as many, it is exact.
    """
    present = [(run.experiment, run.method, run.polar) for run, _ in counted if not run.old]
    whole = [(run.experiment, run.method, run.polar) for run, _ in counted if not run.old and run.state != "unfinished"]
    seeds, finished = Counter(present), Counter(whole)

    def rank(run: RunSummary) -> tuple[bool, int, int, bool]:
        key = (run.experiment, run.method, run.polar)
        return run.old, -finished[key], -seeds[key], run.polar != "exact"

    best: dict[tuple[str, str, int], RunSummary] = {}
    for run, _ in counted:
        key = (run.experiment, run.method, run.seed)
        best[key] = min(best.get(key, run), run, key=rank)
    kept: list[tuple[RunSummary, Reading]] = []
    others: list[RunSummary] = []
    for run, reading in counted:
        counts = best[run.experiment, run.method, run.seed]
        if run is counts:
            kept.append((run, reading))
        else:
            ours = counts.polar or f"version {VERSION}"
            others.append(replace(run, differs=f"polar factor {run.polar}: of this seed the run with {ours} counts"))
    return kept, others


def _in_order(store: Source, loaded: Mapping[str, Experiment], named: bool, warnings: list[str]) -> Sequence[StoredRun]:
    """By experiment, method, seed and id; with `named`, those of the loaded experiments alone. Damage is a warning."""

    def key(stored: StoredRun) -> tuple[str, str, int, str, Path]:
        name = stored.folder.name
        seed = name.split("-")[1]
        number = int(seed) if re.fullmatch(r"[0-9]+", seed) else 0
        return stored.experiment, _method(stored, loaded.get(stored.experiment)), number, name, stored.folder

    found: list[StoredRun] = []
    for name in store.experiments():
        if not named or current_experiment(name) in loaded:
            try:
                found += store.of(name)
            except StoreError as error:
                warnings.append(str(error).replace(f"{store.root}/", ""))
    return sorted(found, key=key)


def _method(stored: StoredRun, experiment: Experiment | None) -> str:
    """The method's name; an old one as it is now."""
    name = stored.folder.parent.name
    return name if experiment is None else current_method(name, experiment.methods)


def _summarize(stored: StoredRun, experiment: Experiment | None, store: Source) -> tuple[RunSummary, Reading]:
    spec, method = stored.spec, _method(stored, experiment)
    run = None if experiment is None or method not in experiment.methods else _meant(spec, experiment, method)
    current = spec if run is None else run.describe()  # threshold and budget do not change a run: today's count
    measure, budget = current["measure"], current["settings"]["epochs"]
    reading = read_run(stored, measure["threshold"], budget)
    summary = RunSummary(
        experiment=stored.experiment,
        method=method,
        seed=spec["seed"],
        id=spec["id"],
        outcome=reading.outcome,
        budget=budget,
        past=measure["past"],
        platform=reading.platform,
        end=reading.end,
        mean_train_accuracy=reading.mean_train_accuracy,
        seconds=reading.seconds,
        sessions=reading.sessions,
        polar=_polar(spec, run, reading),
        old=run is not None and run.old,
        has_checksums=stored.has_checksums,
        differs=_differences(spec, experiment, run, stored.folder, store),
    )
    return summary, reading


def _meant(spec: dict[str, Any], experiment: Experiment, method: str) -> Run:
    """The run of the catalogue that a stored one is: the one with its id, or else the one that differs in least."""
    runs = of_any_version(experiment, method, spec["seed"])
    same = [run for run in runs if run.id == spec["id"]]
    return same[0] if same else min(runs, key=lambda run: len(_changed(spec, run)))


def _polar(spec: dict[str, Any], run: Run | None, reading: Reading) -> str:
    """The tier of the polar factor, with the version of an older record.

    Version 1 stored no tier for `auto`: then it is what the environment says. Its Muon has no tier, and is named, too.
    """
    links = spec["settings"]["transform"]
    tiers = ", ".join(dict.fromkeys(link.get("precision", "auto") for link in links if link["name"] == "polar"))
    if not tiers and run is not None and run.old:
        return f"version {OLD_VERSION}"
    if not tiers or spec["version"] > OLD_VERSION:
        return tiers
    if tiers == "auto":
        tiers = "" if reading.platform is None else reading.platform.polar
    return f"{tiers.replace('fast', OLD_FAST) or 'not said'} (version {OLD_VERSION})"


def _differences(spec: dict[str, Any], experiment: Experiment | None, run: Run | None, folder: Path, store: Source) -> str:
    """How a stored run differs from the catalogue's; empty if it does not."""
    if experiment is None:
        return "an experiment that is not the lab's: name its .toml file to report on it"
    if run is None:
        return "a method that the experiment does not have"
    own = everything(experiment.method(run.method_name))  # its precision may be auto, which a run's is not
    theirs, ours = dict(_leaves(spec)), dict(_leaves({**run.describe(), "settings": own}))
    found = [f"{name.removeprefix('settings.')} = {theirs[name]} (catalogue: {ours[name]})" for name in _changed(spec, run)]
    if not found and run.id != spec["id"]:
        found = ["another id: settings that this version does not know, or other defaults"]
    if not found and folder.name != f"seed-{run.seed}-{run.id}":
        found = ["its folder has another name than the lab gave it: a copy"]
    if not found and (counts := store.folder(run)) != folder:
        found = [f"a copy under an old name: {counts.relative_to(store.root).as_posix()} counts"]
    return ", ".join(found)


def _changed(spec: dict[str, Any], run: Run) -> list[str]:
    """The dotted names of the settings that a stored spec has otherwise than the run."""
    theirs, ours = dict(_leaves(spec)), dict(_leaves(run.describe()))
    return [name for name in theirs if name.startswith(PARTS) and theirs[name] != ours.get(name, theirs[name])]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables, and of lists of tables, with its dotted name."""
    tables = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if isinstance(value, dict) or tables:
        for key, item in enumerate(value) if tables else value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
