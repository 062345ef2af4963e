"""Stored runs: one folder per experiment, method and seed, which survives kills, full disks and edited files.

    runs/<experiment>/<method>/seed-<n>-<id>/
        spec.json           every setting
        environment.jsonl   versions, hardware and source, one line for each time the run was trained
        records.jsonl       one line per epoch, only ever appended to
        timings.jsonl       seconds per epoch: the one thing that differs between two equal runs
        checkpoint-<n>.safetensors   all that is needed to resume at epoch n, and a checksum of the records before it
        lock                held by the process that trains the run

Only records with a checksum in the newest checkpoint count; lines after them are trained again. The first checkpoint is
that of epoch 0, before any record. No pickle is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

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
    PATTERN,
    Checkpoint,
    Held,
    StoreError,
    acquire,
    as_line,
    checkpoint_path,
    cut_half_line,
    read_lines,
    readable,
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
        with readable(self.folder / "spec.json") as path:
            return current_spec(json.loads(path.read_text(encoding="utf-8")))  # type: ignore[no-any-return]

    def check(self, run: Run) -> None:
        """Raises StoreError if the folder holds another run than this one."""
        with readable(self.folder / "spec.json") as path:
            if not path.exists():
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
        return read_lines(self.folder / "environment.jsonl")

    @property
    def timings(self) -> list[Record]:
        """One entry per trained epoch; an epoch that was trained twice has two."""
        return read_lines(self.folder / "timings.jsonl")

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
        checkpoint = checkpoint or next(iter(self.checkpoints()), None)
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
            values = np.array(record["snapshot"]["singular_values"], dtype=float)
            found.append(
                Snapshot(record["epoch"], values, np.array(decode(record["snapshot"]["displacement"]), dtype=float))
            )
        return found

    def _lines(self) -> list[bytes]:
        """The records before the newest checkpoint. A run in training may replace it between two reads: then once more."""
        for last in (False, True):
            try:
                newest = next(iter(self.checkpoints()), None)
                return [] if newest is None else self.verified(newest).splitlines()
            except StoreError:
                if last:
                    raise
        raise AssertionError

    def verified(self, checkpoint: Checkpoint) -> bytes:
        """The bytes of all records before a checkpoint; StoreError if their checksum is wrong."""
        path = self.folder / "records.jsonl"
        with readable(path), path.open("rb") as file:
            content = file.read(checkpoint.size)
        if hashlib.sha256(content).hexdigest() != checkpoint.digest:
            state = f"only {len(content)} bytes" if len(content) < checkpoint.size else "other bytes"
            raise StoreError(
                f"{path} must hold the {checkpoint.size} bytes that {checkpoint.path.name} has a checksum of, got {state}: "
                f"it was cut or edited; restore the file, or move the folder away to train this seed again"
            )
        return content

    @property
    def lacks_checkpoint(self) -> bool:
        """Whether there are records but no checkpoint at all: it was removed by hand."""
        path = self.folder / "records.jsonl"
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
            if not (folder / "spec.json").exists():
                write_atomically(folder / "spec.json", json.dumps(run.describe(), indent=1))
            stack.pop_all()
        self._records: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._pending: dict[str, list[str]] = {"environment.jsonl": [], "timings.jsonl": []}

    def begin(self, checkpoint: Checkpoint | None, environment: Mapping[str, Any]) -> None:
        """Resumes at a checkpoint, or starts; records after the checkpoint are cut off, to be trained again."""
        path = self.folder / "records.jsonl"
        if self._records is not None:  # an earlier attempt ran out of memory
            self._records.close()
            self._pending = {name: [] for name in self._pending}
        known = b"" if checkpoint is None else self.verified(checkpoint)
        if checkpoint is None and path.exists() and path.stat().st_size:
            raise StoreError(
                f"{path} must have a checkpoint with its checksum, got none; restore the checkpoint, or move the "
                f"folder away to train this seed again"
            )
        self._digest = hashlib.sha256(known)
        with writable(path):
            for name in self._pending:
                cut_half_line(self.folder / name)
            self._records = path.open("ab")
            self._records.truncate(len(known))
            self._records.seek(0, os.SEEK_END)
        self._pending["environment.jsonl"].append(as_line(environment))

    def append(self, records: Iterable[Record], timing: Record) -> None:
        """The records of one epoch; they count from the next `save` on."""
        assert self._records is not None
        for record in records:
            line = as_line(record).encode()
            self._digest.update(line)
            with writable(self.folder / "records.jsonl"):
                self._records.write(line)
        self._pending["timings.jsonl"].append(as_line(timing))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], batch: Iterable[int]) -> None:
        """A checkpoint: all records so far count. Older ones stay until
        `remove_other_checkpoints`: a batch of seeds needs one in common.
        """
        assert self._records is not None
        with writable(self.folder):
            self._records.flush()
            os.fsync(self._records.fileno())
            for name, lines in self._pending.items():
                with (self.folder / name).open("a") as file:
                    file.writelines(lines)
                lines.clear()
            size, digest = self._records.tell(), self._digest.hexdigest()
            Checkpoint(epoch, tuple(batch), size, digest, checkpoint_path(self.folder, epoch)).write(tensors)

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
        if self._records is not None:
            with contextlib.suppress(OSError):  # a full disk has been reported before
                self._records.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _lock(path: Path, run: Run) -> FileLock:
    try:
        return acquire(path)
    except Held as holder:
        raise StoreError(
            f"{run.experiment.name}, {run.method_name}, seed {run.seed} must be trained by one process at a time, got a "
            f"second one while {holder} trains it; wait for that, or use another --runs folder"
        ) from None
