"""Stored runs: one folder per experiment, method and seed, which survives kills, full disks and edited files.

    runs/<experiment>/<method>/seed-<n>-<id>/
        spec.json           every setting
        environment.jsonl   versions, hardware and source, one line for each time the run was trained
        records.jsonl       one line per epoch, only ever appended to
        timings.jsonl       seconds per epoch: the one thing that differs between two equal runs
        checkpoint-<n>.safetensors   all that is needed to resume at epoch n, and a checksum of each file above
        lock                held by the process that trains the run

Only lines with a checksum in the newest checkpoint count; epochs after them are trained again. The first checkpoint is
that of epoch 0, before any record. Runs of earlier versions have a checksum of the records alone. No pickle is loaded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from filelock import FileLock
from torch import Tensor

from egalitarian.lab.config import (
    Record,
    Run,
    Snapshot,
    current_experiment,
    current_spec,
    decode,
    former_experiments,
    former_methods,
)
from egalitarian.lab.runs.files import (
    DRAFT,
    ENVIRONMENT,
    LATER,
    PATTERN,
    RECORDS,
    SPEC,
    TIMINGS,
    Checkpoint,
    Checksum,
    Held,
    LockedError,
    Log,
    StoreError,
    acquire,
    as_line,
    checkpoint_path,
    readable,
    whole_lines,
    writable,
    write_atomically,
)
from egalitarian.lab.runs.provenance import TimeSpent


@dataclass(frozen=True)
class Stored:
    """A stored run, for reading."""

    folder: Path

    @property
    def experiment(self) -> str:
        """The experiment's name, an old one as it is now."""
        name = self.folder.parent.parent.name
        return current_experiment(name)

    @property
    def spec(self) -> dict[str, Any]:
        """Every setting, old spellings as they are now."""
        return current_spec(self.spec_as_stored)  # type: ignore[no-any-return]

    @property
    def spec_as_stored(self) -> dict[str, Any]:
        """Every setting, in the spellings of the version that stored it."""
        content = self.verified(self.newest, SPEC)
        with readable(self.folder / SPEC):
            return json.loads(content)  # type: ignore[no-any-return]

    def check(self, run: Run) -> None:
        """Raises StoreError if the folder holds another run than this one."""
        newest = self.newest
        with readable(self.folder / SPEC) as path:
            if not path.exists() and (newest is None or SPEC not in newest.checksums):
                return
        spec = self.spec
        found = spec.get("id") if isinstance(spec, dict) else None
        if found != run.id:
            raise StoreError(
                f"{path} must belong to run {run.id}, got {found!r}; restore the file, or move the folder away to "
                f"train this seed again"
            )

    @property
    def environments(self) -> list[Record]:
        """One entry for each time the run was trained."""
        return self._parsed(ENVIRONMENT)

    @property
    def timings(self) -> list[Record]:
        """One entry per trained epoch; in runs of earlier versions an epoch that was trained twice has two."""
        return self._parsed(TIMINGS)

    def _parsed(self, name: str) -> list[Record]:
        newest = self.newest
        if newest is None:
            return []
        content = self.verified(newest, name)
        with readable(self.folder / name):
            return [json.loads(line) for line in content.splitlines()]

    @property
    def newest(self) -> Checkpoint | None:
        return next(iter(self.checkpoints()), None)

    @property
    def has_checksums(self) -> bool:
        """Whether settings, environments and timings have checksums, as the records do: not those of earlier versions."""
        newest = self.newest
        return newest is None or all(name in newest.checksums for name in LATER)

    def checkpoints(self) -> list[Checkpoint]:
        """Newest first. Another process may remove an old one during this call: then a newer one is there."""
        for last in (False, False, True):
            try:
                found = [Checkpoint.read(path) for path in self.folder.glob(PATTERN)]
                return sorted(found, key=lambda checkpoint: -checkpoint.epoch)
            except StoreError as error:
                if last or isinstance(error.__cause__, ValueError | KeyError):
                    raise
        raise AssertionError

    def records(self, checkpoint: Checkpoint | None = None) -> list[Record]:
        """All records before the newest (or the given) checkpoint: epochs, and snapshots among them."""
        checkpoint = checkpoint or self.newest
        return [] if checkpoint is None else [json.loads(line) for line in self.verified(checkpoint).splitlines()]

    @property
    def time_spent(self) -> TimeSpent:
        """Seconds, summed as reports need them."""
        return TimeSpent.of(self.environments, self.timings)

    def epochs(self) -> list[Record]:
        """The record of every epoch before the newest checkpoint."""
        lines = [line for line in self._lines() if b'"snapshot"' not in line]
        return json.loads(b"[" + b",".join(lines) + b"]")  # type: ignore[no-any-return]

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot before the newest checkpoint. They are large, so each call reads them from disk."""
        found = []
        for record in (json.loads(line) for line in self._lines() if b'"snapshot"' in line):
            snapshot = record["snapshot"]
            values, sketch = np.array(snapshot["singular_values"], dtype=float), decode(snapshot["displacement"])
            power = np.array(snapshot["fourier_power"], dtype=float) if "fourier_power" in snapshot else None
            found.append(Snapshot(record["epoch"], values, np.array(sketch, dtype=float), power))
        return found

    def _lines(self) -> list[bytes]:
        """The records before the newest checkpoint. A run in training may replace it between two reads: then once more."""
        for last in (False, True):
            try:
                newest = self.newest
                return [] if newest is None else self.verified(newest).splitlines()
            except StoreError:
                if last:
                    raise
        raise AssertionError

    def verified(self, checkpoint: Checkpoint | None, name: str = RECORDS) -> bytes:
        """What a file held at a checkpoint; all whole lines where it has no checksum. StoreError if it is wrong."""
        path, known = self.folder / name, checkpoint and checkpoint.checksums.get(name)
        with readable(path):
            if known is None:
                return path.read_bytes() if name == SPEC else whole_lines(path)
            with path.open("rb") as file:
                content = file.read(known.size)
        if Checksum.of(content) != known:
            assert checkpoint is not None
            state = f"only {len(content)} bytes" if len(content) < known.size else "other bytes"
            raise StoreError(
                f"{path} must hold the {known.size} bytes that {checkpoint.path.name} has a checksum of, got {state}: "
                f"it was cut or edited; restore the file, or move the folder away to train this seed again"
            )
        return content

    @property
    def lacks_checkpoint(self) -> bool:
        """Whether there are records but no checkpoint at all: it was removed by hand."""
        path = self.folder / RECORDS
        return path.is_file() and path.stat().st_size > 0 and not any(self.folder.glob(PATTERN))

    def seal(self) -> None:
        """Drops the weights: the records stay, small enough to send or to commit, and the run cannot be extended."""
        with writable(self.folder):
            for newest in self.checkpoints()[:1]:
                newest.write({})
            for older in self.checkpoints()[1:]:
                older.path.unlink()


class Store:
    """All runs below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run: Run) -> Path:
        """The folder of a run, stored or not: by the new names, or by old ones if an older version stored it there."""
        folders = folders_of(run, self.root)
        return next((folder for folder in folders if folder.is_dir()), folders[0])

    def experiments(self) -> list[str]:
        """The experiments with runs, by the names of their folders: old ones, too."""
        return sorted({path.parent.parent.name for path in self.root.glob("*/*/seed-*") if path.is_dir()})

    def of(self, experiment: str) -> Iterator[Stored]:
        """Every run in the folder of this name, begun or not, in no order."""
        return (Stored(path) for path in (self.root / experiment).glob("*/seed-*") if path.is_dir())

    def each(self) -> Iterator[Stored]:
        """Every run, begun or not, in no order."""
        return (run for name in self.experiments() for run in self.of(name))

    def find(self, run: Run) -> Stored:
        """For reading; a run that is not stored has no records."""
        stored = Stored(self.folder(run))
        stored.check(run)
        return stored

    def before(self, run: Run) -> Stored | None:
        """What version 1 stored by the same settings, if it trained an epoch. It is read, and never continued."""
        old = run.before
        return Stored(self.folder(old)) if old is not None and self.is_begun(old) else None

    def is_begun(self, run: Run) -> bool:
        """Whether the run has a checkpoint past epoch 0."""
        return _is_begun(self.folder(run))

    def open(self, run: Run) -> Writer:
        """For training: locks the run."""
        return Writer(self.folder(run), run)

    def all(self, experiment: str = "*", method: str = "*") -> Iterator[Stored]:
        """Every run with a checkpoint past epoch 0."""
        names = [experiment, *former_experiments(experiment)]
        for path in sorted(path for name in names for path in self.root.glob(f"{name}/{method}/seed-*")):
            if _is_begun(path):
                yield Stored(path)


def folders_of(run: Run, root: Path) -> list[Path]:
    """Where a run may be stored: by the new names first, then by old ones."""
    experiments = [run.experiment.name, *former_experiments(run.experiment.name)]
    old = [each for each in former_methods(run.method_name) if each not in run.experiment.methods]
    name = f"seed-{run.seed}-{run.id}"
    return [root / experiment / method / name for experiment in experiments for method in (run.method_name, *old)]


def _is_begun(folder: Path) -> bool:
    """Whether the folder has a checkpoint past epoch 0."""
    return any(file != checkpoint_path(folder, 0) for file in folder.glob(PATTERN))


class Writer(Stored):
    """A run that this process trains. The lock is held until `close`."""

    def __init__(self, folder: Path, run: Run) -> None:
        super().__init__(folder)
        with writable(folder), contextlib.ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder / "lock", run)
            stack.callback(self._lock.release)
            self.check(run)
            if not (folder / SPEC).exists():
                write_atomically(folder / SPEC, json.dumps(run.describe(), indent=1))
            stack.pop_all()
        self._logs: dict[str, Log] = {}
        self._spec = Checksum.of(b"")

    def begin(self, checkpoint: Checkpoint | None, environment: Mapping[str, Any]) -> None:
        """Resumes at a checkpoint, or starts; lines after the checkpoint are cut off, and their epochs trained again."""
        path = self.folder / RECORDS
        if checkpoint is None and path.exists() and path.stat().st_size:
            raise StoreError(
                f"{path} must have a checkpoint with its checksum, got none; restore the checkpoint, or move the "
                f"folder away to train this seed again"
            )
        self._spec = Checksum.of(self.verified(checkpoint, SPEC))
        for name in (ENVIRONMENT, RECORDS, TIMINGS):
            known = b"" if checkpoint is None else self.verified(checkpoint, name)
            self._logs[name] = Log(self.folder / name, known)
        self._logs[ENVIRONMENT].append(as_line(environment))

    def append(self, records: Iterable[Record], timing: Record) -> None:
        """The records of one epoch; they count from the next `save` on."""
        for record in records:
            self._logs[RECORDS].append(as_line(record))
        self._logs[TIMINGS].append(as_line(timing))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], batch: Iterable[int]) -> None:
        """A checkpoint: all records so far count. Older ones stay until
        `remove_other_checkpoints`: a batch of seeds needs one in common.
        """
        with writable(self.folder):
            checksums = {SPEC: self._spec, **{name: log.flush() for name, log in self._logs.items()}}
            Checkpoint(epoch, tuple(batch), checksums, checkpoint_path(self.folder, epoch)).write(tensors)

    def remove_other_checkpoints(self, epoch: int) -> None:
        """Removes all checkpoints but the one of this epoch."""
        with writable(self.folder):
            for checkpoint in self.checkpoints():
                if checkpoint.epoch != epoch:
                    checkpoint.path.unlink()
            for draft in self.folder.glob(f"*{DRAFT}"):
                draft.unlink()

    def close(self) -> None:
        """Unlocks the run."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _lock(path: Path, run: Run) -> FileLock:
    try:
        return acquire(path)
    except Held as holder:
        raise LockedError(
            f"{run.experiment.name}, {run.method_name}, seed {run.seed} must be trained by one process at a time, got a "
            f"second one while {holder} trains it; wait for that, or use another --runs folder"
        ) from None
