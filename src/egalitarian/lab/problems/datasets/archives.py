"""Getting a data set: valid files stay, missing or corrupt ones are downloaded, unpacked and checked.

One process at a time fetches into a folder. A data file is written under a temporary name, checked, and then renamed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from filelock import FileLock, Timeout

from egalitarian.lab.problems.datasets.download import FetchListener, Patience, SilentFetch, download, part_of
from egalitarian.lab.problems.datasets.files import Archive, DataError, DataFile, Dataset, check_file, write, writing

LOCK = ".fetching"
BLOCK = 1 << 20
"""Bytes unpacked at a time."""


def fetch(dataset: Dataset, folder: Path, listener: FetchListener | None = None, patience: Patience | None = None) -> None:
    """Ensures that every file of the data set is in the folder and valid. On an error, what was downloaded is kept.

    A corrupt file is kept as `<name>.corrupt`. An archive that is already in the folder is used.
    """
    listener, patience = listener or SilentFetch(), patience or Patience()
    if not any(_wanted(folder, archive) for archive in dataset.archives):
        return
    with _locked(folder, listener):
        for archive in dataset.archives:
            _fetch_archive(folder, archive, listener, patience)


def _fetch_archive(folder: Path, archive: Archive, listener: FetchListener, patience: Patience) -> None:
    wanted = _wanted(folder, archive)
    part = folder / part_of(archive).path
    if wanted:
        given = check_file(folder, archive)
        if given.state in ("corrupt", "unreadable"):
            listener.note(f"{given.path}: {given.reason}; this archive is not used, and stays as it is")
        source = given.path if given.state == "present" else download(folder, archive, listener, patience)
        unpack(source, archive, folder, wanted, listener)
    with writing(part):
        part.unlink(missing_ok=True)


def _wanted(folder: Path, archive: Archive) -> list[DataFile]:
    """The archive's files that are missing or corrupt."""
    checks = [(file, check_file(folder, file)) for file in archive.files]
    for _, check in checks:
        if check.state == "unreadable":
            raise DataError(f"{check.path} must be a readable file, got: {check.reason}; fix that, or move it away")
    return [file for file, check in checks if check.state != "present"]


@contextmanager
def _locked(folder: Path, listener: FetchListener) -> Iterator[None]:
    """Waits for another process that fetches into this folder. The lock file stays; its presence means nothing."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            listener.note(f"Waiting for another process that downloads into {folder}")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def unpack(source: Path, archive: Archive, folder: Path, wanted: Sequence[DataFile], listener: FetchListener) -> None:
    """Writes the wanted files; everything else in the archive is ignored."""
    left = {file.path: file for file in wanted}
    try:
        for name, stream in _members(source, archive):
            if name in left:
                _write_file(folder, left.pop(name), stream, listener)
            if not left:
                break
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{source} must be a complete archive, got {type(error).__name__}: {error}; remove it") from error
    if left:
        raise DataError(f"{source} must contain {', '.join(left)}, got an archive without; remove it")


def _members(source: Path, archive: Archive) -> Iterator[tuple[str, IO[bytes]]]:
    """Plain files by name. A tar is read as a stream, and no name in it is ever used as a path."""
    if not archive.path.endswith(".tar.gz"):
        with gzip.open(source) as unzipped:
            yield archive.files[0].path, cast("IO[bytes]", unzipped)
        return
    with tarfile.open(source, "r|gz") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name.removeprefix("./"), stream


def _write_file(folder: Path, file: DataFile, stream: IO[bytes], listener: FetchListener) -> None:
    path = folder / file.path
    draft = path.with_name(f"{path.name}.draft")
    with writing(draft):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if _copy(stream, draft, file.size) != file.sha256:
            raise DataError(f"{file.path} in the archive must be the official file, got other bytes; report this")
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with writing(path):
        if check_file(folder, file).state == "corrupt":
            aside = _free_name(path)
            path.rename(aside)
            listener.note(f"{path} was corrupt; it is now {aside.name}")
        draft.rename(path)
    listener.note(f"{path}: written and checked")


def _copy(stream: IO[bytes], draft: Path, size: int) -> str:
    """The digest of what was written. At most one byte more than `size` is, which changes the digest."""
    digest = hashlib.sha256()
    left = size + 1
    with writing(draft):
        file = draft.open("wb", buffering=0)
    with file:
        while block := stream.read(min(left, BLOCK)):
            digest.update(block)
            write(file, block, draft)
            left -= len(block)
        with writing(draft):
            os.fsync(file.fileno())
    return digest.hexdigest()


def _free_name(path: Path) -> Path:
    """`<name>.corrupt`, or the first of `<name>.corrupt-2`, ... that does not exist."""
    aside, number = path.with_name(f"{path.name}.corrupt"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{number}")
    return aside
