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

from egalitarian.lab.config import Record

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


def message_of(error: Exception) -> str:
    """The text of an error for the user. Python's own about a file begins with a number and has no way out."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
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


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a file; a killed process may leave a last one without its end."""
    if not path.exists():
        return []
    with readable(path):
        *whole, _ = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in whole]


def as_line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), separators=(",", ":"), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """None for what is not finite: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cut_half_line(path: Path) -> None:
    """Removes a last line without its end, which a killed process left."""
    size = path.stat().st_size if path.exists() else 0
    if size:
        with path.open("r+b") as file:
            file.truncate(file.read(size).rfind(b"\n") + 1)


PATTERN = "checkpoint-*.safetensors"


class Checkpoint(NamedTuple):
    """A seed between two epochs."""

    epoch: int
    """The next one to train."""
    batch: tuple[int, ...]
    """The seeds it was trained with, itself included."""
    size: int
    """Bytes of the records before it."""
    digest: str
    """SHA-256 of those bytes."""
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
            "size": str(self.size),
            "digest": self.digest,
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
            return Checkpoint(int(metadata["epoch"]), batch, int(metadata["size"]), metadata["digest"], path)


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
