"""What is kept of a run: one folder per experiment, method and seed, that survives kills, full disks and careless hands.

    runs/<experiment>/<method>/seed-<n>-<id>/
        spec.json           every setting
        environment.jsonl   versions, hardware and source, one line for each time the run was trained
        records.jsonl       one line per epoch, only ever appended to
        timings.jsonl       seconds per epoch: the one thing that differs between two equal runs
        checkpoint-<n>.safetensors   all that is needed to go on with epoch n, and a digest of the records before it
        lock                held by the process that trains it, and left when it is done

What counts are the records that the newest checkpoint vouches for; lines after them are trained again. The first checkpoint
is that of epoch 0, before any record. No pickle is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from egalitarian.lab.config import renamed
from egalitarian.lab.config.spec import Run

Record = dict[str, Any]


class StoreError(RuntimeError):
    """Something about the stored runs that a person must decide."""


class Checkpoint(NamedTuple):
    """A run between two epochs."""

    epoch: int
    """The next one to train."""
    company: tuple[int, ...]
    """The seeds it was trained with."""
    size: int
    """Bytes of records that belong to it."""
    digest: str
    """Of those bytes."""
    path: Path

    def tensors(self) -> dict[str, Tensor]:
        with _readable(self.path), safe_open(self.path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if file.metadata().get("weights", digest := _digest(tensors)) != digest:  # the format itself has no checksum
                raise ValueError("its weights are not those that were saved")
        if not tensors:
            raise StoreError(
                f"{self.path.parent} must have its weights to be trained further, got a sealed run; train it again in "
                f"another --runs folder"
            )
        return tensors


@dataclass(frozen=True)
class Stored:
    """A run as it lies on the disk, for reading."""

    folder: Path

    @property
    def experiment(self) -> str:
        """Its name; an old one as it is now."""
        name = self.folder.parent.parent.name
        return renamed.EXPERIMENTS.get(name, name)

    @property
    def spec(self) -> dict[str, Any]:
        """Every setting, old spellings as they are now."""
        with _readable(self.folder / "spec.json") as path:
            return renamed.as_now(json.loads(path.read_text(encoding="utf-8")))  # type: ignore[no-any-return]

    def check(self, run: Run) -> None:
        """That what lies here, if anything does, is of this run."""
        with _readable(self.folder / "spec.json") as path:
            if not path.exists():
                return
        said = self.spec
        found = said.get("id") if isinstance(said, dict) else None
        if found != run.id:
            raise StoreError(
                f"{path} must belong to run {run.id}, got {found!r}; restore the file, or move the folder away to "
                f"train this seed again"
            )

    @property
    def environments(self) -> list[Record]:
        return _lines(self.folder / "environment.jsonl")

    @property
    def timings(self) -> list[Record]:
        return _lines(self.folder / "timings.jsonl")

    def checkpoints(self) -> list[Checkpoint]:
        """Newest first. While another process trains, an old one may go as it is looked at: then a newer one is there."""
        for last in (False, False, True):
            try:
                found = [_describe(path) for path in self.folder.glob("checkpoint-*.safetensors")]
                return sorted(found, key=lambda checkpoint: -checkpoint.epoch)
            except StoreError as error:
                if last or isinstance(error.__cause__, ValueError | KeyError):
                    raise
        raise AssertionError

    def records(self, checkpoint: Checkpoint | None = None) -> list[Record]:
        """All that the newest (or the given) checkpoint vouches for: epochs, and snapshots among them."""
        checkpoint = checkpoint or next(iter(self.checkpoints()), None)
        return [] if checkpoint is None else [json.loads(line) for line in self.vouched(checkpoint).splitlines()]

    @property
    def unvouched(self) -> bool:
        """Whether there are records and no checkpoint at all: somebody took it away."""
        path = self.folder / "records.jsonl"
        return path.is_file() and path.stat().st_size > 0 and not any(self.folder.glob("checkpoint-*.safetensors"))

    def seal(self) -> None:
        """Drops the weights: the records stay, small enough to send or to commit, and the run cannot be extended."""
        with _writable(self.folder):
            for place, checkpoint in enumerate(self.checkpoints()):
                if place:
                    checkpoint.path.unlink()
                else:
                    _write_checkpoint(checkpoint.path, {}, checkpoint)

    def vouched(self, checkpoint: Checkpoint) -> bytes:
        path = self.folder / "records.jsonl"
        with _readable(path), path.open("rb") as file:
            content = file.read(checkpoint.size)
        if hashlib.sha256(content).hexdigest() != checkpoint.digest:
            state = f"only {len(content)} bytes" if len(content) < checkpoint.size else "other bytes"
            raise StoreError(
                f"{path} must hold the {checkpoint.size} bytes that {checkpoint.path.name} has a checksum of, got {state}: "
                f"it was cut or edited; restore the file, or move the folder away to train this seed again"
            )
        return content


class Store:
    """All runs below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run: Run) -> Path:
        """Where a run lies or will: by the new names, or where an older version stored it under old ones."""
        name = f"seed-{run.seed}-{run.id}"
        experiments = [run.experiment.name, *renamed.former(run.experiment.name, renamed.EXPERIMENTS)]
        old = [each for each in renamed.former(run.method_name, renamed.METHODS) if each not in run.experiment.methods]
        places = [
            self.root / experiment / method / name for experiment in experiments for method in (run.method_name, *old)
        ]
        return next((place for place in places if place.is_dir()), places[0])

    def find(self, run: Run) -> Stored:
        stored = Stored(self.folder(run))
        stored.check(run)
        return stored

    def open(self, run: Run) -> Writer:
        """For training: locks the run."""
        return Writer(self.folder(run), run)

    def all(self, experiment: str = "*", method: str = "*") -> Iterator[Stored]:
        """Every run that has begun: that has a checkpoint past epoch 0."""
        names = [experiment, *renamed.former(experiment, renamed.EXPERIMENTS)]
        for path in sorted(path for name in names for path in self.root.glob(f"{name}/{method}/seed-*")):
            if any(file.name != "checkpoint-0.safetensors" for file in path.glob("checkpoint-*.safetensors")):
                yield Stored(path)


class Writer(Stored):
    """A run that is being trained by this process."""

    def __init__(self, folder: Path, run: Run) -> None:
        super().__init__(folder)
        with _writable(folder), contextlib.ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = stack.enter_context(_locked(folder / "lock", run))
            self.check(run)
            if not (folder / "spec.json").exists():
                _replace(folder / "spec.json", json.dumps(run.describe(), indent=1).encode())
            stack.pop_all()  # all went well: the lock is held until `close`
        self._records: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._pending: dict[str, list[str]] = {"environment.jsonl": [], "timings.jsonl": []}

    def begin(self, checkpoint: Checkpoint | None, environment: Mapping[str, Any]) -> None:
        """Goes on after a checkpoint, or from nothing; what was recorded after it will be trained again."""
        path = self.folder / "records.jsonl"
        if self._records is not None:  # begun before, in vain
            self._records.close()
            self._pending = {name: [] for name in self._pending}
        known = b"" if checkpoint is None else self.vouched(checkpoint)
        if checkpoint is None and path.exists() and path.stat().st_size:
            raise StoreError(
                f"{path} must have a checkpoint with its checksum, got none; restore the checkpoint, or move the "
                f"folder away to train this seed again"
            )
        self._digest = hashlib.sha256(known)
        with _writable(path):
            for name in self._pending:
                _cut_half_line(self.folder / name)
            self._records = path.open("ab")
            self._records.truncate(len(known))
            self._records.seek(0, os.SEEK_END)
        self._pending["environment.jsonl"].append(_line(environment))

    def append(self, records: Iterable[Record], timing: Record) -> None:
        assert self._records is not None
        for record in records:
            line = _line(record).encode()
            self._digest.update(line)
            with _writable(self.folder / "records.jsonl"):
                self._records.write(line)
        self._pending["timings.jsonl"].append(_line(timing))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], company: Iterable[int]) -> None:
        """Makes all records so far count. Older checkpoints stay until `keep`: a company must have one in common."""
        assert self._records is not None
        with _writable(self.folder):
            self._records.flush()
            os.fsync(self._records.fileno())
            for name, lines in self._pending.items():
                with (self.folder / name).open("a") as file:
                    file.writelines(lines)
                lines.clear()
            path = self.folder / f"checkpoint-{epoch}.safetensors"
            about = Checkpoint(epoch, tuple(company), self._records.tell(), self._digest.hexdigest(), path)
            _write_checkpoint(path, tensors, about)

    def keep(self, epoch: int) -> None:
        """Removes all checkpoints but the one of this epoch."""
        with _writable(self.folder):
            for checkpoint in self.checkpoints():
                if checkpoint.epoch != epoch:
                    checkpoint.path.unlink()
            for draft in self.folder.glob("*.draft"):
                draft.unlink()

    def close(self) -> None:
        if self._records is not None:
            with contextlib.suppress(OSError):  # a full disk has been told of before
                self._records.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _locked(path: Path, run: Run) -> IO[str]:
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise StoreError(
            f"{run.experiment.name}, {run.method_name}, seed {run.seed} must be trained by one process at a time, got a "
            f"second one while {holder} trains it; wait for that, or use another --runs folder"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()}")
    file.flush()
    return file


def _write_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Checkpoint) -> None:
    saved = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    company = ",".join(map(str, about.company))
    metadata = {"epoch": str(about.epoch), "company": company, "size": str(about.size), "digest": about.digest}
    metadata |= {"folder": path.parent.name, "weights": _digest(saved)}
    draft = path.with_suffix(".draft")
    save_file(saved, draft, {**metadata, "header": _header(metadata)})
    draft.chmod(0o644)
    _sync(draft)
    draft.replace(path)
    _sync(path.parent)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode() + tensors[key].numpy().tobytes())
    return digest.hexdigest()


def _header(metadata: Mapping[str, str]) -> str:
    """A digest of all that a checkpoint says of itself."""
    text = "\n".join(f"{key}={metadata[key]}" for key in sorted(metadata) if key != "header")
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(path: Path) -> Checkpoint:
    with _readable(path), safe_open(path, "pt") as file:
        about = file.metadata() or {}
        if about.get("header", header := _header(about)) != header:
            raise ValueError("its header is not the one that was saved")
        if not path.parent.name.startswith(about.get("folder", "")):
            raise ValueError(f"it is a checkpoint of {about['folder']}")
        company = tuple(int(seed) for seed in about["company"].split(","))
        return Checkpoint(int(about["epoch"]), company, int(about["size"]), about["digest"], path)


def _lines(path: Path) -> list[Record]:
    """The whole lines of a file; a last one without its end was being written when the process was killed."""
    if not path.exists():
        return []
    with _readable(path):
        *whole, _ = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in whole]


def _line(record: Mapping[str, Any]) -> str:
    """JSON has no NaN: what is not finite is null."""
    return json.dumps(_finite(record), separators=(",", ":"), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut_half_line(path: Path) -> None:
    """Takes off a last line that a kill left without its end, so that the next one stands alone."""
    size = path.stat().st_size if path.exists() else 0
    if size:
        with path.open("r+b") as file:
            file.truncate(file.read(size).rfind(b"\n") + 1)


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    draft.write_bytes(content)
    _sync(draft)
    draft.replace(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"{path} must be writable, got: {reason}; the last checkpoint is safe: free some space or fix the "
            f"permissions and run the same command again, or choose another folder with --runs"
        ) from error


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[Path]:
    try:
        yield path
    except StoreError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{path} must be as the lab wrote it, got {type(error).__name__}: {error}; restore it, or move it away"
        ) from error
