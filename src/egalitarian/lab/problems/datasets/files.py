"""Files of a data set: where each belongs, and whether what lies there is the official one, byte for byte."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Literal

State = Literal["present", "missing", "corrupt", "unreadable"]


class DataError(RuntimeError):
    """A data file that cannot be used or got: what, the rule, what was found, the way out."""


@dataclass(frozen=True)
class DataFile:
    """A file as it is used."""

    path: str
    """Below the data folder; in a tar archive, the member's name."""
    size: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A file as it is published: one gzipped data file, or a tar of several."""

    path: str
    """Below the data folder: where it is downloaded to, and looked for first."""
    size: int
    sha256: str
    urls: tuple[str, ...]
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Dataset:
    name: str
    title: str
    archives: tuple[Archive, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(file for archive in self.archives for file in archive.files)

    def file(self, name: str) -> DataFile:
        """By the last part of its path."""
        return next(file for file in self.files if Path(file.path).name == name)

    def archive_of(self, file: DataFile) -> Archive:
        return next(archive for archive in self.archives if file in archive.files)


@dataclass(frozen=True)
class Verdict:
    """What became of looking at a file."""

    path: Path
    state: State
    reason: str = ""
    """What is there instead of the official bytes."""


def default_folder() -> Path:
    """`$EGALITARIAN_DATA`, else `egalitarian` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    chosen = os.environ.get("EGALITARIAN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "egalitarian"


def inspect(folder: Path, file: DataFile | Archive) -> Verdict:
    """Whether a file is there and right. What was hashed once in this process is hashed again only if it changed."""
    return _look(folder / file.path, file)[0]


def contents(folder: Path, dataset: Dataset, file: DataFile) -> bytearray:
    """The bytes of a file that is right; anything else is an error that says what to do."""
    verdict, content = _look(folder / file.path, file, take=True)
    if verdict.state != "present":
        raise DataError(_refusal(verdict, folder, dataset, file))
    return content


def _look(path: Path, file: DataFile | Archive, take: bool = False) -> tuple[Verdict, bytearray]:
    """The verdict and, to take only what was judged, the content from the same handle."""
    try:
        with path.open("rb") as handle:
            verdict = _judged(path, handle, file)
            handle.seek(0)
            return verdict, bytearray(handle.read()) if take and verdict.state == "present" else bytearray()
    except FileNotFoundError:
        return Verdict(path, "missing"), bytearray()
    except OSError as error:
        return Verdict(path, "unreadable", error.strerror or str(error)), bytearray()


def _refusal(verdict: Verdict, folder: Path, dataset: Dataset, file: DataFile) -> str:
    fetch = f"`egalitarian data --fetch {dataset.name} --data {shlex.quote(str(folder))}`"
    if verdict.state == "missing":
        archive = dataset.archive_of(file)
        return (
            f"{verdict.path} must exist for {dataset.title}, got no such file; {fetch} downloads it. Without a network: "
            f"put {archive.urls[0]} at {folder / archive.path} and run the same. If you have the data elsewhere: name the "
            f"folder with --data or EGALITARIAN_DATA"
        )
    if verdict.state == "corrupt":
        return (
            f"{verdict.path} must be the official file of {dataset.title}, got {verdict.reason}; {fetch} renames it "
            f"to {verdict.path.name}.corrupt and downloads the right one"
        )
    return f"{verdict.path} must be readable, got: {verdict.reason}; fix that, or name another folder with EGALITARIAN_DATA"


def _judged(path: Path, handle: IO[bytes], file: DataFile | Archive) -> Verdict:
    size = os.fstat(handle.fileno()).st_size
    if size != file.size:
        return Verdict(path, "corrupt", f"{size} bytes instead of {file.size}")
    digest = _digest(path, handle)
    if digest != file.sha256:
        return Verdict(path, "corrupt", f"other bytes: SHA-256 {digest[:12]}... instead of {file.sha256[:12]}...")
    return Verdict(path, "present")


_Look = tuple[str, int, int, int, int]
_digests: dict[_Look, str] = {}


def _digest(path: Path, handle: IO[bytes]) -> str:
    stat = os.fstat(handle.fileno())
    look = (str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    if look not in _digests:
        _digests[look] = hashlib.file_digest(handle, "sha256").hexdigest()  # type: ignore[arg-type]
    return _digests[look]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk or a folder without permission: nothing to do with the network, and told at once."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} must be writable, got: {error.strerror or error}; free some space or fix the permissions and run "
            f"the same command again to resume, or choose another folder with --data"
        ) from error


def write(file: FileIO, block: bytes, path: Path) -> None:
    """All of it, at once: a buffer would find the disk full when it is too late to say so."""
    rest = memoryview(block)
    with writing(path):
        while rest:
            rest = rest[file.write(rest) :]
