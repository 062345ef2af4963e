"""A checked archive into its data files: each is written beside its place, checked, and put there in one step."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from egalitarian.lab.problems.datasets.download import Listener
from egalitarian.lab.problems.datasets.files import Archive, DataError, DataFile, inspect, write, writing

AT_ONCE = 1 << 20


def unpack(source: Path, archive: Archive, folder: Path, wanted: Sequence[DataFile], listener: Listener) -> None:
    """Puts the wanted files in their places; nothing else in the archive is looked at."""
    left = {file.path: file for file in wanted}
    try:
        for name, stream in _members(source, archive):
            if name in left:
                _place(folder, left.pop(name), stream, listener)
            if not left:
                break
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{source} must be a complete archive, got {type(error).__name__}: {error}; remove it") from error
    if left:
        raise DataError(f"{source} must contain {', '.join(left)}, got an archive without; remove it")


def _members(source: Path, archive: Archive) -> Iterator[tuple[str, IO[bytes]]]:
    """Plain files by name. A tar is read as a stream; no name in it is ever used as a path."""
    if not archive.path.endswith(".tar.gz"):
        with gzip.open(source) as unzipped:
            yield archive.files[0].path, cast("IO[bytes]", unzipped)
        return
    with tarfile.open(source, "r|gz") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name.removeprefix("./"), stream


def _place(folder: Path, file: DataFile, stream: IO[bytes], listener: Listener) -> None:
    path = folder / file.path
    draft = path.with_name(f"{path.name}.draft")
    with writing(draft):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if _copied(stream, draft, file.size) != file.sha256:
            raise DataError(f"{file.path} in the archive must be the official file, got other bytes; report this")
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with writing(path):
        if inspect(folder, file).state == "corrupt":
            aside = _free_name(path)
            path.rename(aside)
            listener.says(f"{path} was corrupt; it is now {aside.name}")
        draft.rename(path)
    listener.says(f"{path}: written and checked")


def _copied(stream: IO[bytes], draft: Path, most: int) -> str:
    """The digest of what was written, which is at most one byte too many."""
    digest = hashlib.sha256()
    left = most + 1
    with writing(draft):
        file = draft.open("wb", buffering=0)
    with file:
        while block := stream.read(min(left, AT_ONCE)):
            digest.update(block)
            write(file, block, draft)
            left -= len(block)
        with writing(draft):
            os.fsync(file.fileno())
    return digest.hexdigest()


def _free_name(path: Path) -> Path:
    """`<name>.corrupt`, or the first of `<name>.corrupt-2`, ... that is not taken."""
    aside, number = path.with_name(f"{path.name}.corrupt"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{number}")
    return aside
