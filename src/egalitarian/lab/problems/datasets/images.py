"""MNIST and CIFAR-10: their official files fetched and unpacked, and read as uint8 tensors.

MNIST's IDX files begin with a magic number and the size of every axis, four bytes each, big-endian. A file of CIFAR-10 has
10000 rows, each a class followed by the red, green and blue planes.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from egalitarian.lab.problems.datasets.download import FetchListener, Patience, SilentFetch, download, part_of
from egalitarian.lab.problems.datasets.files import (
    CIFAR_10,
    MNIST,
    Archive,
    DataError,
    DataFile,
    Dataset,
    check_file,
    contents,
    write,
    writing,
)

LOCK = ".fetching"
"""The lock file of a folder."""
BLOCK = 1 << 20
"""Bytes unpacked at a time."""
CLASSES = 10
UNSIGNED_BYTES = 0x0800
"""The magic number of an IDX array of bytes, less its number of axes."""
SIDE = 28
"""Height and width of MNIST's images."""
SHAPE = (3, 32, 32)
"""Channels, height and width of CIFAR-10's images."""
ROW = 1 + math.prod(SHAPE)
"""Bytes of an image of CIFAR-10, with its class."""
BATCHES = 5
"""Training files of CIFAR-10."""


class Images(NamedTuple):
    """uint8 pixels (images, ..., height, width), and a uint8 class (images,) of each."""

    pixels: Tensor
    labels: Tensor


class Mnist(NamedTuple):
    """Pixels are (images, 28, 28)."""

    train: Images
    test: Images


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
            renamed = _free_name(path)
            path.rename(renamed)
            listener.note(f"{path} was corrupt; it is now {renamed.name}")
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
    renamed, number = path.with_name(f"{path.name}.corrupt"), 1
    while os.path.lexists(renamed):
        number += 1
        renamed = path.with_name(f"{path.name}.corrupt-{number}")
    return renamed


def mnist(folder: Path, dataset: Dataset = MNIST) -> Mnist:
    """All of MNIST. Every file must be present and be the official one."""
    return Mnist(_read_part(folder, dataset, "train"), _read_part(folder, dataset, "t10k"))


def cifar10(folder: Path, batches: int = 1, dataset: Dataset = CIFAR_10) -> Images:
    """The first training batches, (10000 batches, 3, 32, 32). Only their files need to be present."""
    if not 1 <= batches <= BATCHES:
        raise DataError(f"batches must be in [1, {BATCHES}], got {batches}; CIFAR-10 has no more")
    parts = [_read_batch(folder, dataset, f"data_batch_{number}.bin") for number in range(1, batches + 1)]
    return parts[0] if batches == 1 else Images(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def cifar10_test(folder: Path, dataset: Dataset = CIFAR_10) -> Images:
    """The test batch, (10000, 3, 32, 32)."""
    return _read_batch(folder, dataset, "test_batch.bin")


def _read_part(folder: Path, dataset: Dataset, part: str) -> Images:
    names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    pixels, labels = (parse_idx(contents(folder, dataset, dataset.file(name)), name) for name in names)
    if pixels.shape[1:] != (SIDE, SIDE) or labels.dim() != 1:
        shapes = f"{tuple(pixels.shape)} and {tuple(labels.shape)}"
        raise DataError(f"{part} must have images of {SIDE} x {SIDE} and a list of classes, got {shapes}; fetch it again")
    return checked(Images(pixels, labels), part)


def _read_batch(folder: Path, dataset: Dataset, name: str) -> Images:
    return parse_batch(contents(folder, dataset, dataset.file(name)), name)


def parse_idx(content: bytearray, name: str) -> Tensor:
    """The bytes of an IDX file as a tensor with the file's axes."""
    kind = content[:4]
    axes = kind[3] if len(kind) == 4 else 0
    if axes == 0 or int.from_bytes(kind) != UNSIGNED_BYTES + axes:
        raise DataError(f"{name} must begin with the magic number 000008nn, got {kind.hex() or 'nothing'}; it is not IDX")
    start = 4 * (1 + axes)
    if len(content) < start:
        raise DataError(
            f"{name} must have the size of its {axes} axes, got {len(content)} bytes; it is cut; fetch it again"
        )
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise DataError(
            f"{name} must have {start + math.prod(shape)} bytes for {' x '.join(map(str, shape))}, got {len(content)}; "
            f"fetch it again"
        )
    return torch.frombuffer(content, dtype=torch.uint8)[start:].reshape(shape)


def parse_batch(content: bytearray, name: str) -> Images:
    """The images of a CIFAR-10 file."""
    if not content or len(content) % ROW:
        raise DataError(f"{name} must be whole rows of {ROW} bytes, got {len(content)} bytes; fetch it again")
    rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, ROW)
    return checked(Images(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0].clone()), name)


def checked(images: Images, where: object) -> Images:
    """The images, if each has a class below 10; else an error."""
    pixels, labels = images
    if len(pixels) != len(labels):
        raise DataError(f"{where} must have a class for each image, got {len(labels)} for {len(pixels)}; fetch both again")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise DataError(f"{where} must have classes from 0 to {CLASSES - 1}, got {int(labels.max())}; fetch it again")
    return images
