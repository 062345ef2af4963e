"""Files of the data sets: URLs, sizes and checksums of the official ones, and whether a file on disk is one of them."""

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

FileState = Literal["present", "missing", "corrupt", "unreadable"]


class DataError(RuntimeError):
    """A data file that cannot be used or downloaded. The message gives the file, the rule, the finding and a remedy."""


@dataclass(frozen=True)
class DataFile:
    """A file of the data set, as it is read."""

    path: str
    """Relative to the data folder; in a tar archive, the member's name."""
    size: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A published file: one gzipped data file, or a tar of several."""

    path: str
    """Relative to the data folder: where it is downloaded to, and looked for first."""
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
        """The file whose path ends in this name."""
        return next(file for file in self.files if Path(file.path).name == name)

    def archive_of(self, file: DataFile) -> Archive:
        return next(archive for archive in self.archives if file in archive.files)


@dataclass(frozen=True)
class FileCheck:
    """Whether a file is present and valid."""

    path: Path
    state: FileState
    reason: str = ""
    """How the file differs from the official one, or why it cannot be read."""


def default_folder() -> Path:
    """`$EGALITARIAN_DATA`, else `egalitarian` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    chosen = os.environ.get("EGALITARIAN_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "egalitarian"


def check_file(folder: Path, file: DataFile | Archive) -> FileCheck:
    """Whether a file is present and valid. A file is hashed once per process, and again only if it has changed."""
    return _check(folder / file.path, file)[0]


def contents(folder: Path, dataset: Dataset, file: DataFile) -> bytearray:
    """The bytes of a valid file; anything else is a `DataError` with a remedy."""
    check, content = _check(folder / file.path, file, take=True)
    if check.state != "present":
        raise DataError(_refusal(check, folder, dataset, file))
    return content


def _check(path: Path, file: DataFile | Archive, take: bool = False) -> tuple[FileCheck, bytearray]:
    """The check, and with `take` the content. Both use one handle, so that the bytes are those that were checked."""
    try:
        with path.open("rb") as handle:
            check = _compare(path, handle, file)
            handle.seek(0)
            return check, bytearray(handle.read()) if take and check.state == "present" else bytearray()
    except FileNotFoundError:
        return FileCheck(path, "missing"), bytearray()
    except OSError as error:
        return FileCheck(path, "unreadable", error.strerror or str(error)), bytearray()


def _refusal(check: FileCheck, folder: Path, dataset: Dataset, file: DataFile) -> str:
    fetch = f"`egalitarian data --fetch {dataset.name} --data {shlex.quote(str(folder))}`"
    if check.state == "missing":
        archive = dataset.archive_of(file)
        return (
            f"{check.path} must exist for {dataset.title}, got no such file; {fetch} downloads it. Without a network: "
            f"put {archive.urls[0]} at {folder / archive.path} and run the same. If you have the data elsewhere: name the "
            f"folder with --data or EGALITARIAN_DATA"
        )
    if check.state == "corrupt":
        return (
            f"{check.path} must be the official file of {dataset.title}, got {check.reason}; {fetch} renames it "
            f"to {check.path.name}.corrupt and downloads the right one"
        )
    return f"{check.path} must be readable, got: {check.reason}; fix that, or name another folder with EGALITARIAN_DATA"


def _compare(path: Path, handle: IO[bytes], file: DataFile | Archive) -> FileCheck:
    size = os.fstat(handle.fileno()).st_size
    if size != file.size:
        return FileCheck(path, "corrupt", f"{size} bytes instead of {file.size}")
    digest = _digest(path, handle)
    if digest != file.sha256:
        return FileCheck(path, "corrupt", f"other bytes: SHA-256 {digest[:12]}... instead of {file.sha256[:12]}...")
    return FileCheck(path, "present")


_digests: dict[tuple[str, int, int, int, int], str] = {}
"""By absolute path, size, times of modification and of change, and inode."""


def _digest(path: Path, handle: IO[bytes]) -> str:
    stat = os.fstat(handle.fileno())
    key = (str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    if key not in _digests:
        _digests[key] = hashlib.file_digest(handle, "sha256").hexdigest()  # type: ignore[arg-type]
    return _digests[key]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing permission into a `DataError` at once; the network is not to blame."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} must be writable, got: {error.strerror or error}; free some space or fix the permissions and run "
            f"the same command again to resume, or choose another folder with --data"
        ) from error


def write(file: FileIO, block: bytes, path: Path) -> None:
    """Writes the whole block without a buffer, which would report a full disk too late."""
    rest = memoryview(block)
    with writing(path):
        while rest:
            rest = rest[file.write(rest) :]


MNIST_SOURCES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist")
CIFAR_SOURCES = ("https://www.cs.toronto.edu/~kriz",)


def _gzipped(name: str, size: int, sha256: str, unzipped_size: int, unzipped_sha256: str) -> Archive:
    path = f"MNIST/raw/{name}"
    urls = tuple(f"{source}/{name}.gz" for source in MNIST_SOURCES)
    return Archive(f"{path}.gz", size, sha256, urls, (DataFile(path, unzipped_size, unzipped_sha256),))


def _batch(name: str, sha256: str) -> DataFile:
    return DataFile(f"cifar-10-batches-bin/{name}.bin", 30_730_000, sha256)


MNIST = Dataset(
    "mnist",
    "MNIST",
    (
        _gzipped(
            "train-images-idx3-ubyte",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _gzipped(
            "train-labels-idx1-ubyte",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _gzipped(
            "t10k-images-idx3-ubyte",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _gzipped(
            "t10k-labels-idx1-ubyte",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

CIFAR_10 = Dataset(
    "cifar-10",
    "CIFAR-10",
    (
        Archive(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            tuple(f"{source}/cifar-10-binary.tar.gz" for source in CIFAR_SOURCES),
            (
                _batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                _batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                _batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                _batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                _batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                _batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            ),
        ),
    ),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, CIFAR_10)}
