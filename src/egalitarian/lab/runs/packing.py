"""Packing: runs of a store, or of other evidence, into files of evidence. The same runs always give the same bytes.

What is there already is kept: a run with more epochs replaces one with fewer.
"""

from __future__ import annotations

import json
import lzma
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from egalitarian.lab.config import (
    KEPT,
    LEARNING,
    SPECTRUM_BITS,
    Coarse,
    Experiment,
    beyond,
    current_experiment,
    current_method,
    figures_of,
    is_kept,
    load,
    names,
    of_any_version,
    single,
)
from egalitarian.lab.runs.evidence import ENDING, FORMAT, Array, Packed, PackedColumn, Source, StoredRun, read_file
from egalitarian.lab.runs.files import OTHER_FOLDER, StoreError, writable, write_atomically
from egalitarian.lab.runs.outcome import Outcome
from egalitarian.lab.runs.store import Stored

MOST_POINTS = 1 << 20
"""The most points whose accuracies are packed as counts."""
Filters = list[dict[str, int]]
FILTERS: dict[str, Filters] = {
    code: [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": bits, "pb": bits}]
    for code, bits in {"<f4": 2, "<u2": 1, "<u4": 2, "<f8": 3, "|i1": 0}.items()
}
"""The types of columns, in their order in a file, and how xz compresses them: it knows the bytes of a number."""


class Written(NamedTuple):
    """One file of evidence, after packing."""

    experiment: str
    runs: int
    epochs: int
    size: int
    """Bytes."""
    new: int
    """Runs that were not in it."""
    longer: int
    """Runs that had fewer epochs in it."""
    unfinished: int
    """Runs that neither passed nor diverged, with epochs of their budget left: they may still be in training."""


class Packing(NamedTuple):
    """What became of the runs of a source."""

    written: list[Written]
    errors: list[str]
    """Why runs were not packed, with their names."""
    others: Counter[str]
    """By experiment, the runs of other settings, which were left out."""


def pack(source: Source, out: Path, *, replace: bool = False, everything: bool = False) -> Packing:
    """Packs the runs of a source into files in `out`, with the runs that are packed there.

    A run with more epochs replaces one with fewer. What cannot be read is an error, and the rest is packed. So is a run
    with as many epochs as in the file and other records: the file stays as it is.

    Args:
        replace: whether such a run replaces the one in the file.
        everything: whether to pack runs that have other settings than their experiment of the lab, too.
    """
    found: dict[str, list[Packed]] = {}
    packing, known = Packing([], [], Counter()), {*names(), *beyond()}
    for name in source.experiments():
        experiment = load(current) if (current := current_experiment(name)) in known else None
        try:
            own = [run for run in source.of(name) if everything or _has_own_settings(run, experiment, packing)]
            found[name] = _pack_runs(own, out, packing)
        except StoreError as error:
            packing.errors.append(str(error))
    with writable(out, OTHER_FOLDER):
        out.mkdir(parents=True, exist_ok=True)
    for name, runs in found.items():
        try:
            if runs:
                packing.written.append(_pack_file(out / f"{name}{ENDING}", runs, replace))
        except StoreError as error:
            packing.errors.append(f"{name}: {_listed(runs)}: {error}")
    return packing


def _pack_runs(runs: Iterable[StoredRun], root: Path, packing: Packing) -> list[Packed]:
    """The runs of one experiment. One that cannot be read is an error of the packing."""
    found = []
    for stored in runs:
        try:
            found.append(_pack_run(stored, root))
        except StoreError as error:
            packing.errors.append(str(error))
    return found


def _has_own_settings(stored: StoredRun, experiment: Experiment | None, packing: Packing) -> bool:
    """Whether the run is one of its experiment's. What a user's own experiment says is not known: then all are."""
    if experiment is None:
        return True
    try:
        spec = stored.spec
    except StoreError:  # packing it will say so
        return True
    method = current_method(stored.folder.parent.name, experiment.methods)
    runs = of_any_version(experiment, method, spec["seed"]) if method in experiment.methods else []
    if spec["id"] in [run.id for run in runs]:
        return True
    packing.others[experiment.name] += 1
    return False


def _listed(runs: Iterable[Packed]) -> str:
    """Methods and their seeds: `egd 0-7, sgd 0-2 4`."""
    seeds: dict[str, list[int]] = defaultdict(list)
    for method, seed in sorted((run.folder.parent.name, run.seed) for run in runs):
        seeds[method].append(seed)
    texts = []
    for method, own in seeds.items():
        gaps = [(number, following) for number, following in pairwise(own) if following > number + 1]
        ends = zip([own[0], *(begin for _, begin in gaps)], [*(end for end, _ in gaps), own[-1]], strict=True)
        texts.append(" ".join([method, *(f"{begin}-{end}" if begin < end else f"{begin}" for begin, end in ends)]))
    return ", ".join(texts)


def _pack_run(stored: StoredRun, root: Path) -> Packed:
    """One run, with the snapshots that figures show."""
    folder = root / Path(*stored.folder.parts[-3:])
    if isinstance(stored, Packed):
        return Packed(folder, stored.about, stored.columns)
    assert isinstance(stored, Stored)
    if stored.lacks_checkpoint:
        raise StoreError(
            f"{stored.folder} must have a checkpoint, got records without one; restore it, or move the folder away"
        )
    records = stored.epochs()
    if [record["epoch"] for record in records] != list(range(len(records))):
        raise StoreError(f"{stored.folder} must have every epoch once, got others; move the folder away")
    kept = [record for record in records if record is records[-1] or is_kept(record["epoch"])]
    columns = {"kept": PackedColumn(np.array([record["epoch"] for record in kept], "<u4"))}
    for measures, rows in ((LEARNING, records), (KEPT, kept)):
        for name in measures:
            if any(name in record for record in rows):
                values = np.array([record.get(name) for record in rows], dtype=float)
                columns[name] = _counts(values) if name.endswith("_accuracy") else PackedColumn(single(values))
    own = {"spec": stored.spec_as_stored, "environments": stored.environments, "time": stored.time_spent._asdict()}
    about = {**own, "epochs": len(records), "checksums": stored.has_checksums}
    return Packed(folder, about, {**columns, **_snapshots(stored)})


def _counts(values: Array) -> PackedColumn:
    """Accuracies as counts of points, if that gives each back bit for bit; else as they are.

    The points are the least common denominator of the values, or a multiple of it.
    """
    found, least = np.unique(values), 1
    for value in found if np.isfinite(found).all() else ():
        least = math.lcm(least, Fraction(value).limit_denominator(MOST_POINTS).denominator)
        if least > MOST_POINTS:
            return PackedColumn(values)
    for over in range(least, min(64 * least, MOST_POINTS) + 1, least):
        for inverse in (False, True):
            column = PackedColumn(np.rint(found * over), over, inverse)
            if np.array_equal(column.values, found):
                return column._replace(numbers=np.rint(values * over).astype("<u2" if over < 1 << 16 else "<u4"))
    return PackedColumn(values)


def _snapshots(stored: StoredRun) -> dict[str, PackedColumn]:
    """The columns of a run's snapshots: spectra, sketches and Fourier power, where a figure shows them."""
    figures = figures_of(stored.folder.parent.parent.name, stored.folder.parent.name)
    shown = figures & {"spectra", "trajectories", "fourier"}
    snapshots = stored.snapshots() if shown else []
    if not snapshots:
        return {}
    columns = {"snapshots": PackedColumn(np.array([each.epoch for each in snapshots], "<u4"))}
    if "spectra" in shown:
        spectra = [each.singular_values for each in snapshots if each.singular_values is not None]
        columns["singular_values"] = PackedColumn(single(np.stack(spectra), SPECTRUM_BITS))
    powers = [each.fourier_power for each in snapshots]
    measured = [power for power in powers if power is not None]
    if "fourier" in shown and measured:
        nothing = np.full_like(measured[0], np.nan)  # before the measures were asked for
        rows = [nothing if power is None else power for power in powers]
        columns["fourier_power"] = PackedColumn(single(np.stack(rows), SPECTRUM_BITS))
    if "trajectories" in shown:
        coarse = [Coarse.of(each.displacement) for each in snapshots if each.displacement is not None]
        columns["sketches"] = PackedColumn(np.stack([each.numbers for each in coarse]))
        columns["units"] = PackedColumn(np.array([each.unit for each in coarse], "<f8"))
    return columns


def _pack_file(path: Path, found: Sequence[Packed], replace: bool) -> Written:
    known = read_file(path)
    merged = dict(known)
    for run in found:
        merged[run.folder] = _merged(known[run.folder], run, replace) if run.folder in known else run
    sketched = _sketched(merged.values())
    runs = [run if run.seed in sketched else run.without("sketches", "units") for run in merged.values()]
    parts = _lay_out(path.name.removesuffix(ENDING), runs)
    with writable(path, OTHER_FOLDER):
        if not (path.exists() and lzma.decompress(path.read_bytes()) == b"".join(content for content, _ in parts)):
            write_atomically(path, b"".join(lzma.compress(content, filters=filters) for content, filters in parts))
        size = path.stat().st_size
    new = sum(run.folder not in known for run in runs)
    longer = sum(run.folder in known and run.about["epochs"] > known[run.folder].about["epochs"] for run in runs)
    unfinished = sum(map(_is_unfinished, runs))
    epochs = sum(run.about["epochs"] for run in runs)
    return Written(path.name.removesuffix(ENDING), len(runs), epochs, size, new, longer, unfinished)


def _is_unfinished(run: Packed) -> bool:
    spec = run.spec
    if run.about["epochs"] >= spec["settings"]["epochs"]:
        return False
    outcome = Outcome.of(run.epochs(), spec["measure"]["threshold"])
    return outcome.crossed is None and not outcome.diverged


def _merged(known: Packed, found: Packed, replace: bool) -> Packed:
    """The one with more epochs; of equal runs the one that is known, unless the other has more columns."""
    epochs = found.about["epochs"], known.about["epochs"]
    if epochs[0] != epochs[1]:
        return max(found, known, key=lambda run: run.about["epochs"])
    measures = [name for name in (*LEARNING, "kept", *KEPT) if name in known.columns and name in found.columns]
    if all(found.columns[name].same(known.columns[name]) for name in measures):
        return found if set(found.columns) > set(known.columns) else known
    if replace:
        return found
    raise StoreError(
        f"{found.folder} must have the same {epochs[0]} epochs wherever it is stored, got other records than those packed "
        f"before: it was trained twice; pack into another folder with --out, or take the new one with --replace"
    )


def _sketched(runs: Iterable[Packed]) -> set[int]:
    """The seeds whose sketches are kept. A figure draws the paths of one seed: the smallest that its methods share.

    So a seed is kept if it is the smallest of those that all methods share which have it.
    """
    seeds: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        spec = {key: value for key, value in run.about["spec"].items() if key not in ("id", "seed", "measure")}
        if run.about["epochs"]:
            seeds[json.dumps(spec, sort_keys=True)].add(run.seed)
    sharing = {seed: [own for own in seeds.values() if seed in own] for seed in set().union(*seeds.values())}
    return {seed for seed, those in sharing.items() if seed == min(set.intersection(*those))}


def _lay_out(experiment: str, runs: Iterable[Packed]) -> list[tuple[bytes, Filters | None]]:
    """The content of a file, as parts with its filters for xz: the line of JSON, then the numbers by type."""
    ordered = sorted(runs, key=lambda run: run.folder.parts[-2:])
    heads: list[dict[str, Any]] = [
        {"folder": "/".join(run.folder.parts[-2:]), **run.about, "columns": {name: {} for name in run.columns}}
        for run in ordered
    ]
    at = 0
    parts: list[tuple[bytes, Filters | None]] = []
    for code in FILTERS:
        contents = []
        for name in sorted({name for run in ordered for name in run.columns}):  # equal measures side by side
            for run, head in zip(ordered, heads, strict=True):
                column = run.columns.get(name)
                if column is not None and column.numbers.dtype == code:
                    counts = {"over": column.over} if column.over else {}
                    counts |= {"inverse": True} if column.inverse else {}
                    head["columns"][name] = {"type": code, "shape": list(column.numbers.shape), "at": at, **counts}
                    contents.append(column.numbers.tobytes())
                    at += len(contents[-1])
        if contents:
            parts.append((b"".join(contents), FILTERS[code]))
    line = {"format": FORMAT, "experiment": experiment, "size": at, "runs": heads}
    first = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    return [(first, None), *parts]
