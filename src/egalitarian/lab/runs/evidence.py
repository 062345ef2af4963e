"""Evidence: runs packed into few small files, one for each experiment, for a repository. Reports read it like a store.

    results/evidence/<experiment>.xz

A file is a line of JSON, then numbers. For every run the line has spec.json, the environments, the time that it took, and
where each of its columns is among the numbers. docs/lab.md describes the columns, and reads one without this package.

`packing.py` writes it. It has what reports read: accuracies come back bit for bit, losses and norms as float32.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.config import (
    KEPT,
    LEARNING,
    Record,
    Run,
    Snapshot,
    current_experiment,
    current_spec,
)
from egalitarian.lab.runs.files import StoreError
from egalitarian.lab.runs.provenance import TimeSpent
from egalitarian.lab.runs.recordings import refuse_recordings
from egalitarian.lab.runs.store import Store, folders_of

FORMAT = "egalitarian evidence 1"
ENDING = ".xz"
Array = NDArray[Any]


class StoredRun(Protocol):
    """A run that reports read: of a `Store`, or of `Evidence`."""

    @property
    def folder(self) -> Path:
        """Where it is stored, or was when it was packed: its experiment, its method, its seed and id."""

    @property
    def experiment(self) -> str:
        """The experiment's name, an old one as it is now."""

    @property
    def spec(self) -> dict[str, Any]:
        """Every setting, old spellings as they are now."""

    @property
    def environments(self) -> list[Record]:
        """One entry for each time the run was trained."""

    @property
    def time_spent(self) -> TimeSpent:
        """Seconds, summed as reports need them."""

    @property
    def lacks_checkpoint(self) -> bool:
        """Whether there are records but no checkpoint at all."""

    @property
    def has_checksums(self) -> bool:
        """Whether settings, environments and timings have checksums, as the records do."""

    def epochs(self) -> list[Record]:
        """The record of every epoch, in order."""

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, in order."""


class Source(Protocol):
    """What reports read: a `Store`, or `Evidence`."""

    @property
    def root(self) -> Path: ...

    def folder(self, run: Run) -> Path:
        """The folder of a run, stored or not: by the new names, or by old ones if an older version stored it there."""

    def experiments(self) -> list[str]:
        """The experiments with runs, by the names that they are stored under: old ones, too."""

    def of(self, experiment: str) -> Iterator[StoredRun]:
        """Every run that is stored under this name, begun or not, in no order. StoreError if its evidence is damaged."""


class PackedColumn(NamedTuple):
    """One measure of a run, as it is packed."""

    numbers: Array
    over: int = 0
    """If the numbers are counts: of so many points."""
    inverse: bool = False
    """Whether a count was multiplied by the inverse of `over`, as a GPU divides. It decides about the last bit."""

    @property
    def values(self) -> Array:
        """In float64."""
        if not self.over:
            return self.numbers.astype(float)
        return self.numbers * (1 / self.over) if self.inverse else self.numbers / self.over

    def records(self) -> list[float | None]:
        """As in records: None is what was not finite."""
        return [value if math.isfinite(value) else None for value in self.values.tolist()]

    def same(self, other: PackedColumn) -> bool:
        return np.array_equal(self.values, other.values, equal_nan=True)


@dataclass(frozen=True)
class Packed:
    """A packed run."""

    folder: Path
    """As in a store, below the folder of the evidence. It does not exist."""
    about: Mapping[str, Any]
    """All that is no column: spec, environments, time, and the number of epochs."""
    columns: Mapping[str, PackedColumn]

    @property
    def experiment(self) -> str:
        """The experiment's name, an old one as it is now."""
        return current_experiment(self.folder.parent.parent.name)

    @property
    def seed(self) -> int:
        return self.about["spec"]["seed"]  # type: ignore[no-any-return]

    @property
    def spec(self) -> dict[str, Any]:
        """Every setting, old spellings as they are now."""
        return current_spec(self.about["spec"])  # type: ignore[no-any-return]

    @property
    def environments(self) -> list[Record]:
        """One entry for each time the run was trained."""
        return self.about["environments"]  # type: ignore[no-any-return]

    @property
    def time_spent(self) -> TimeSpent:
        """Seconds, summed as reports need them."""
        return TimeSpent(**{**self.about["time"], "sessions": tuple(self.about["time"]["sessions"])})

    @property
    def lacks_checkpoint(self) -> bool:
        """Never: such a run is not packed."""
        return False

    @property
    def has_checksums(self) -> bool:
        """Whether settings, environments and timings had checksums when they were packed, as the records did."""
        return bool(self.about.get("checksums"))

    def epochs(self) -> list[Record]:
        """The record of every epoch, with the measures that are packed."""
        found = {name: self.columns[name].records() for name in LEARNING if name in self.columns}
        numbers = range(self.about["epochs"])
        records = [dict(zip(("epoch", *found), row, strict=True)) for row in zip(numbers, *found.values(), strict=True)]
        kept = self.columns["kept"].numbers.tolist()
        for name in KEPT:
            if name in self.columns:
                for epoch, value in zip(kept, self.columns[name].records(), strict=True):
                    records[epoch][name] = value
        return records

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, with what is packed of it."""
        if "snapshots" not in self.columns:
            return []
        nothing = [None] * len(epochs := self.columns["snapshots"].numbers.tolist())
        spectra: Any = self.columns["singular_values"].values if "singular_values" in self.columns else nothing
        sketches: Any = nothing
        if "sketches" in self.columns:
            sketches = self.columns["sketches"].values * self.columns["units"].values[:, None]
        power: Any = self.columns["fourier_power"].values if "fourier_power" in self.columns else nothing
        return [Snapshot(*each) for each in zip(epochs, spectra, sketches, power, strict=True)]

    def without(self, *names: str) -> Packed:
        return Packed(self.folder, self.about, {key: each for key, each in self.columns.items() if key not in names})


class Evidence:
    """All packed runs below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run: Run) -> Path:
        """The folder that the run had in its store: by the new names, or by old ones if it was packed with these."""
        folders = folders_of(run, self.root)
        return next((folder for folder in folders if folder in self._of(folder.parent.parent.name)), folders[0])

    def find(self, run: Run) -> Packed | None:
        """The packed run, if there is one."""
        folder = self.folder(run)
        return self._of(folder.parent.parent.name).get(folder)

    def experiments(self) -> list[str]:
        """The experiments with a file, by the names of the files: old ones, too. A file may be damaged."""
        return sorted(path.name.removesuffix(ENDING) for path in self.root.glob(f"*{ENDING}"))

    def of(self, experiment: str) -> Iterator[Packed]:
        """Every packed run of a file, begun or not, in no order. StoreError if the file is damaged."""
        return iter(self._of(experiment).values())

    def each(self) -> Iterator[Packed]:
        """Every packed run, begun or not, in no order. StoreError if a file is damaged."""
        return (run for name in self.experiments() for run in self.of(name))

    def _of(self, experiment: str) -> Mapping[Path, Packed]:
        return read_file(self.root / f"{experiment}{ENDING}")


def open_source(folder: Path) -> Store | Evidence:
    """The runs of a folder: a store, or evidence."""
    refuse_recordings(folder)
    packed, stored = (any(folder.glob(pattern)) for pattern in (f"*{ENDING}", "*/*/seed-*"))
    if packed and stored:
        raise StoreError(f"{folder} must hold stored runs or evidence, got both; move the {ENDING} files to another folder")
    return Evidence(folder) if packed else Store(folder)


def read_file(path: Path) -> Mapping[Path, Packed]:
    """The runs of one experiment, by folder; none without the file. StoreError if it is damaged."""
    if not path.exists():
        return {}
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise StoreError(
            f"{path} must be readable, got: {error.strerror}; fix the permissions, or copy it again"
        ) from error
    except (lzma.LZMAError, LookupError, TypeError, ValueError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{path} is incomplete or damaged: {lacks}; copy it again, or delete it and run `egalitarian pack`"
        ) from error


@lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Mapping[Path, Packed]:
    first, _, body = lzma.decompress(path.read_bytes()).partition(b"\n")
    head = json.loads(first)
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ValueError(f"another format than {FORMAT!r}")
    if head["size"] != len(body):
        raise ValueError(f"{len(body)} bytes of numbers instead of {head['size']}")
    runs = [_unpack(each, body, path.parent / head["experiment"]) for each in head["runs"]]
    return {run.folder: run for run in runs}


def _unpack(head: Mapping[str, Any], body: bytes, folder: Path) -> Packed:
    columns = {}
    for name, about in head["columns"].items():
        numbers = np.frombuffer(body, about["type"], math.prod(about["shape"]), about["at"]).reshape(about["shape"])
        columns[name] = PackedColumn(numbers, about.get("over", 0), about.get("inverse", False))
    about = {key: value for key, value in head.items() if key not in ("folder", "columns")}
    return Packed(folder / head["folder"], about, columns)
