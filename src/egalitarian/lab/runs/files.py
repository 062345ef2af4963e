"""Files of runs: locks, atomic writes, lines of JSON, checkpoints with checksums, and errors with a way out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

DRAFT = ".draft"
"""Ending of a file that is being written; a killed process may leave one behind."""


class Held(Exception):  # noqa: N818  # the caller decides whether it is an error
    """Another process has the lock; the text names it."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes a draft, flushes it to the disk and renames it to `path`: a reader sees the old or the new file."""
    draft = path.with_name(path.name + DRAFT)
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        _sync(draft)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # half a draft would keep a full disk full
            draft.unlink()
        raise
    _sync(path.parent)  # else the rename itself may be lost


def acquire(path: Path) -> FileLock:
    """The lock of this file, with the process's number in it, until `release` or the end of the process."""
    holder = path.read_text() if path.exists() else ""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if holder and path.exists() and not path.read_text():  # filelock 3 truncates the file before it tries
            path.write_text(holder)
        raise Held(holder.strip() or "another process") from None
    path.write_text(f"process {os.getpid()}")
    return lock


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class StoreError(RuntimeError):
    """A problem of stored runs that the user must decide about."""


class LockedError(StoreError):
    """Another process trains the run at this moment."""


KEPT = (
    "the last checkpoint is safe: free some space or fix the permissions and run the same command again, or choose "
    "another folder with --runs"
)
"""What to do when a run cannot be written."""
PUT_BACK = "it was moved or deleted: put its folder back, or run the same command again, which trains what is gone"
"""What to do when a run is no longer where it was."""
OTHER_FOLDER = "free some space, fix the permissions, or name another folder with --out"
"""What to do when results cannot be written."""


@contextlib.contextmanager
def writable(path: Path, way_out: str = KEPT) -> Iterator[None]:
    """A full disk, a missing permission or folder becomes a StoreError, which names the file, or else `path`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        name = str(getattr(error, "filename", None) or path).removesuffix(DRAFT)
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and way_out == KEPT:
            raise StoreError(f"{name} must stay in place while its run is trained, got: {reason}; {PUT_BACK}") from error
        raise StoreError(f"{name} must be writable, got: {reason}; {way_out}") from error


LONGEST = 2000
"""Characters of a message that are shown: half of them from its beginning, half from its end, where the way out is."""


def message_of(error: Exception) -> str:
    """The text of an error for the user. Python's own about a file begins with a number and has no way out."""
    if not isinstance(error, OSError) or error.strerror is None:
        text, half = str(error), LONGEST // 2
        left_out = len(text) - LONGEST
        return text if left_out <= 0 else f"{text[:half]} [... {left_out} characters ...] {text[-half:]}"
    what = "a file" if error.filename is None else str(error.filename)
    return f"{what} must be usable, got: {error.strerror}; correct the path, the permissions or the disk's free space"


@contextlib.contextmanager
def readable(path: Path) -> Iterator[Path]:
    """A damaged or missing file becomes a StoreError."""
    try:
        yield path
    except StoreError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{path} must be as the lab wrote it, got {type(error).__name__}: {error}; restore it, or move it away"
        ) from error


def as_line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), separators=(",", ":"), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """None for what is not finite: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def whole_lines(path: Path) -> bytes:
    """The file without a last line that has no end; nothing if there is no file."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


class Checksum(NamedTuple):
    """Of a file, or of its beginning if lines are appended to it."""

    size: int
    """Bytes."""
    digest: str
    """SHA-256 of those bytes."""

    @staticmethod
    def of(content: bytes) -> Checksum:
        return Checksum(len(content), hashlib.sha256(content).hexdigest())

    @staticmethod
    def read(text: str) -> Checksum:
        size, digest = text.split(" ")
        return Checksum(int(size), digest)

    def __str__(self) -> str:
        return f"{self.size} {self.digest}"


class Log:
    """A file that lines are appended to, all at once by `flush`, and its checksum. It is open only for that moment."""

    def __init__(self, path: Path, known: bytes) -> None:
        """Continues after `known`, its beginning. What follows there is cut off by the first `flush`."""
        self._path = path
        self._size, self._digest = len(known), hashlib.sha256(known)
        self._pending: list[bytes] = []

    def append(self, line: str) -> None:
        self._pending.append(line.encode())

    def flush(self) -> Checksum:
        """Writes to the disk what was appended. Returns the checksum of all of it."""
        content = b"".join(self._pending)
        with self._path.open("ab") as file:
            if file.tell() > self._size:
                file.truncate(self._size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(content)
        self._digest.update(content)
        self._pending.clear()
        return Checksum(self._size, self._digest.hexdigest())


SPEC, ENVIRONMENT, RECORDS, TIMINGS = "spec.json", "environment.jsonl", "records.jsonl", "timings.jsonl"
LATER = (SPEC, ENVIRONMENT, TIMINGS)
"""Files without a checksum in runs of earlier versions."""
PATTERN = "checkpoint-*.safetensors"


class Checkpoint(NamedTuple):
    """A seed between two epochs."""

    epoch: int
    """The next one to train."""
    batch: tuple[int, ...]
    """The seeds it was trained with, itself included."""
    checksums: Mapping[str, Checksum]
    """Of the other files of the run, by name: of what was in them at this epoch."""
    path: Path

    def tensors(self) -> dict[str, Tensor]:
        """Weights and optimizer state; an error if their checksum is wrong, or the run is sealed."""
        with readable(self.path), safe_open(self.path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if file.metadata().get("weights", digest := _digest(tensors)) != digest:  # the format itself has no checksum
                raise ValueError("its weights are not those that were saved")
        if not tensors:
            raise StoreError(
                f"{self.path.parent} must have its weights to be trained further, got a sealed run; train it again in "
                f"another --runs folder"
            )
        return tensors

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """With these weights; none seal the run."""
        saved = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        metadata = {
            "epoch": str(self.epoch),
            "company": ",".join(map(str, self.batch)),  # the key of every version so far
            "size": str(self.checksums[RECORDS].size),
            "digest": self.checksums[RECORDS].digest,
            **{name: str(self.checksums[name]) for name in LATER if name in self.checksums},
            "folder": self.path.parent.name,
            "weights": _digest(saved),
        }
        write_atomically(self.path, save(saved, {**metadata, "header": _header(metadata)}))

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """The header alone, by its checksum."""
        with readable(path), safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("header", header := _header(metadata)) != header:
                raise ValueError("its header is not the one that was saved")
            if not path.parent.name.startswith(metadata.get("folder", "")):
                raise ValueError(f"it is a checkpoint of {metadata['folder']}")
            batch = tuple(int(seed) for seed in metadata["company"].split(","))
            checksums = {name: Checksum.read(metadata[name]) for name in LATER if name in metadata}
            checksums[RECORDS] = Checksum(int(metadata["size"]), metadata["digest"])
            return Checkpoint(int(metadata["epoch"]), batch, checksums, path)


def checkpoint_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint-{epoch}.safetensors"


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode() + tensors[key].numpy().tobytes())
    return digest.hexdigest()


def _header(metadata: Mapping[str, str]) -> str:
    """A checksum of all other entries."""
    text = "\n".join(f"{key}={metadata[key]}" for key in sorted(metadata) if key != "header")
    return hashlib.sha256(text.encode()).hexdigest()
