"""Getting a data set: what is right stays, what is missing or corrupt is fetched, one process at a time in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from egalitarian.lab.problems.datasets.download import Listener, Patience, Silent, download, part_of
from egalitarian.lab.problems.datasets.files import Archive, DataError, DataFile, Dataset, inspect, writing
from egalitarian.lab.problems.datasets.unpack import unpack

LOCK = ".fetching"


def fetch(dataset: Dataset, folder: Path, listener: Listener | None = None, patience: Patience | None = None) -> None:
    """Leaves every file of the data set in the folder, checked; else an error, and what has come is kept for next time.

    A corrupt file is kept beside as `<name>.corrupt`. An archive that lies in the folder already is used.
    """
    listener, patience = listener or Silent(), patience or Patience()
    if not any(_wanted(folder, archive) for archive in dataset.archives):
        return
    with _alone(folder, listener):
        for archive in dataset.archives:
            _fetch_archive(folder, archive, listener, patience)


def _fetch_archive(folder: Path, archive: Archive, listener: Listener, patience: Patience) -> None:
    wanted = _wanted(folder, archive)
    part = folder / part_of(archive).path
    if wanted:
        given = inspect(folder, archive)
        if given.state in ("corrupt", "unreadable"):
            listener.says(f"{given.path}: {given.reason}; this archive is not used, and stays as it is")
        source = given.path if given.state == "present" else download(folder, archive, listener, patience)
        unpack(source, archive, folder, wanted, listener)
    with writing(part):
        part.unlink(missing_ok=True)


def _wanted(folder: Path, archive: Archive) -> list[DataFile]:
    verdicts = [(file, inspect(folder, file)) for file in archive.files]
    for _, verdict in verdicts:
        if verdict.state == "unreadable":
            raise DataError(f"{verdict.path} must be a readable file, got: {verdict.reason}; fix that, or move it away")
    return [file for file, verdict in verdicts if verdict.state != "present"]


@contextmanager
def _alone(folder: Path, listener: Listener) -> Iterator[None]:
    """Waits for another process that fetches into this folder. The lock file is left: it says nothing by being there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            listener.says(f"Waiting for another process that downloads into {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
