"""Files of runs: locks, atomic writes, and errors with a way out for the user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

DRAFT = ".draft"
"""Ending of a file that is being written; a killed process may leave one behind."""


class Held(Exception):  # noqa: N818  # the caller decides whether it is an error
    """Another process has the lock; the text names it."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes a draft, flushes it to the disk and renames it to `path`: a reader sees the old or the new file."""
    draft = path.with_name(path.name + DRAFT)
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    _sync(draft)
    draft.replace(path)
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


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """A full disk or a missing permission becomes a StoreError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"{path} must be writable, got: {reason}; the last checkpoint is safe: free some space or fix the "
            f"permissions and run the same command again, or choose another folder with --runs"
        ) from error


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
