"""Reading MNIST and CIFAR-10: right pixels and classes from right files, and from nothing else."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from webserver import cifar_batches, described, idx, mnist_files, published

from egalitarian.lab.problems.datasets import files
from egalitarian.lab.problems.datasets.cifar10 import cifar10, cifar10_test, read_batch
from egalitarian.lab.problems.datasets.files import DataError, Dataset, default_folder, inspect
from egalitarian.lab.problems.datasets.images import Images, checked
from egalitarian.lab.problems.datasets.mnist import mnist, read_idx
from egalitarian.lab.problems.datasets.official import CIFAR_10, DATASETS, MNIST

REAL = Path(os.environ.get("EGALITARIAN_DATA", "/nowhere"))
needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="needs the real data: EGALITARIAN_DATA")


def lay_out(folder: Path, title: str, contents: dict[str, bytes]) -> Dataset:
    """Writes the files, and describes them as the official ones are described."""
    archives = []
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        archives.append(published(f"{path}.gz", b"", (f"http://source/{path}.gz",), described(path, content)))
    return Dataset(title.lower(), title, tuple(archives))


def lay_out_mnist(folder: Path) -> Dataset:
    return lay_out(folder, "MNIST", {f"MNIST/raw/{name}": content for name, content in mnist_files().items()})


def lay_out_cifar(folder: Path) -> Dataset:
    batches = {f"cifar-10-batches-bin/{name}": content for name, content in cifar_batches().items()}
    return lay_out(folder, "CIFAR-10", batches)


def test_mnist_has_the_files_pixels_and_classes(tmp_path: Path) -> None:
    train, test = mnist(tmp_path, lay_out_mnist(tmp_path))
    made = mnist_files()
    assert train.pixels.shape == (6, 28, 28)
    assert test.pixels.shape == (4, 28, 28)
    assert train.pixels.dtype == train.labels.dtype == torch.uint8
    assert test.labels.tolist() == [0, 1, 2, 3]
    image = made["train-images-idx3-ubyte"][16 + 5 * 784 :]
    assert train.pixels[5, 3, 7] == image[3 * 28 + 7]  # row by row
    assert bytes(train.pixels.flatten().tolist()) == made["train-images-idx3-ubyte"][16:]


def test_cifar_has_the_files_pixels_and_classes(tmp_path: Path) -> None:
    dataset = lay_out_cifar(tmp_path)
    pixels, labels = cifar10(tmp_path, batches=2, dataset=dataset)
    assert pixels.shape == (6, 3, 32, 32)
    assert labels.tolist() == [0, 1, 2, 1, 2, 3]
    assert pixels.dtype == labels.dtype == torch.uint8
    row = cifar_batches()["data_batch_2.bin"][3073:6146]
    assert pixels[4, 2, 5, 9] == row[1 + 2 * 1024 + 5 * 32 + 9]  # red, green and blue planes, row by row
    assert cifar10_test(tmp_path, dataset).labels.tolist() == [5, 6, 7]


def test_only_the_batches_that_are_asked_for_need_be_there(tmp_path: Path) -> None:
    dataset = lay_out_cifar(tmp_path)
    for path in (tmp_path / "cifar-10-batches-bin").iterdir():
        if path.name != "data_batch_1.bin":
            path.unlink()
    assert len(cifar10(tmp_path, dataset=dataset).labels) == 3
    with pytest.raises(DataError, match=r"data_batch_2\.bin must exist"):
        cifar10(tmp_path, 2, dataset)
    with pytest.raises(DataError, match=r"batches must be in \[1, 5\], got 6"):
        cifar10(tmp_path, 6, dataset)


def test_a_missing_file_says_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as told:
        mnist(tmp_path)
    assert str(tmp_path / "MNIST/raw/train-images-idx3-ubyte") in str(told.value)
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz" in str(told.value)
    assert f"egalitarian data --fetch mnist --data {tmp_path}" in str(told.value)
    assert "EGALITARIAN_DATA" in str(told.value)


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty"])
def test_a_corrupt_file_is_never_used_and_never_touched(damage: str, tmp_path: Path) -> None:
    dataset = lay_out_mnist(tmp_path)
    mnist(tmp_path, dataset)
    path = tmp_path / "MNIST/raw/t10k-images-idx3-ubyte"
    right = path.read_bytes()
    wrong = {"flipped": right[:-1] + bytes([right[-1] ^ 1]), "cut": right[:-1], "longer": right + b"0", "empty": b""}[
        damage
    ]
    path.write_bytes(wrong)
    with pytest.raises(
        DataError, match=r"must be the official file of MNIST, got .* instead of .*; `egalitarian data --fetch mnist"
    ):
        mnist(tmp_path, dataset)
    assert path.read_bytes() == wrong


def test_a_file_is_hashed_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lay_out_cifar(tmp_path)
    hashed: list[str] = []
    digest = hashlib.file_digest

    def counted(handle: object, kind: str) -> object:
        hashed.append(kind)
        return digest(handle, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(files.hashlib, "file_digest", counted)
    first, second = cifar10(tmp_path, dataset=dataset), cifar10(tmp_path, dataset=dataset)
    assert len(hashed) == 1
    assert torch.equal(first.pixels, second.pixels)
    first.pixels.zero_()  # what one reader does is not the next one's
    assert torch.equal(cifar10(tmp_path, dataset=dataset).pixels, second.pixels)
    path = tmp_path / "cifar-10-batches-bin/data_batch_1.bin"
    times = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as old and as large as before, and yet
    assert inspect(tmp_path, dataset.file("data_batch_1.bin")).state == "corrupt"


def test_what_is_no_file_is_unreadable(tmp_path: Path) -> None:
    file = MNIST.files[0]
    assert inspect(tmp_path, file).state == "missing"
    (tmp_path / file.path).mkdir(parents=True)
    assert inspect(tmp_path, file).state == "unreadable"
    with pytest.raises(DataError, match="must be readable, got: Is a directory"):
        mnist(tmp_path)


NOT_IDX = {
    "empty": b"",
    "magic": b"\0\0\x09\x01\0\0\0\x01x",
    "first bytes": b"\x01\0\x08\x01\0\0\0\x01x",
    "no axes": b"\0\0\x08\0x",
    "cut sizes": b"\0\0\x08\x03\0\0\0\x01",
    "short": idx((3,), b"xx"),
    "long": idx((3,), b"xxxx"),
    "huge": idx((2**32 - 1, 2**32 - 1), b"xxxx"),
}


@pytest.mark.parametrize("content", NOT_IDX.values(), ids=NOT_IDX)
def test_idx_is_read_strictly(content: bytes) -> None:
    with pytest.raises(DataError, match="name must"):
        read_idx(bytearray(content), "name")


def test_idx_keeps_its_axes() -> None:
    assert read_idx(bytearray(idx((2, 3), b"abcdef")), "name").tolist() == [[97, 98, 99], [100, 101, 102]]
    assert read_idx(bytearray(idx((0, 3), b"")), "name").shape == (0, 3)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_batches_are_whole_rows(size: int) -> None:
    with pytest.raises(DataError, match="whole rows of 3073 bytes"):
        read_batch(bytearray(size), "name")


def test_classes_are_checked() -> None:
    with pytest.raises(DataError, match="classes from 0 to 9, got 10"):
        read_batch(bytearray(b"\x0a" + bytes(3072)), "name")
    with pytest.raises(DataError, match="a class for each image, got 1 for 2"):
        checked(Images(torch.zeros(2, 4), torch.zeros(1)), "name")


def test_mnist_is_28_by_28(tmp_path: Path) -> None:
    contents = {f"MNIST/raw/{name}": content for name, content in mnist_files().items()}
    contents["MNIST/raw/train-images-idx3-ubyte"] = idx((6, 28, 27), bytes(6 * 28 * 27))
    with pytest.raises(DataError, match="28 x 28"):
        mnist(tmp_path, lay_out(tmp_path, "MNIST", contents))


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EGALITARIAN_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.cache/egalitarian")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the XDG specification says to ignore
    assert default_folder() == Path("/home/somebody/.cache/egalitarian")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "egalitarian"
    monkeypatch.setenv("EGALITARIAN_DATA", "~/data")
    assert default_folder() == Path("/home/somebody/data")


def test_the_official_files_are_described_whole() -> None:
    assert [len(dataset.files) for dataset in DATASETS.values()] == [4, 6]
    for dataset in DATASETS.values():
        for item in (*dataset.archives, *dataset.files):
            assert len(bytes.fromhex(item.sha256)) == 32
        assert len({item.sha256 for item in (*dataset.archives, *dataset.files)}) == len(dataset.archives + dataset.files)
    assert [file.size for file in MNIST.files] == [16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000]
    assert {file.size for file in CIFAR_10.files} == {10_000 * 3073}


@needs_real_data
def test_the_real_mnist() -> None:
    train, test = mnist(REAL)
    assert train.pixels.shape == (60_000, 28, 28)
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]


@needs_real_data
def test_the_real_cifar() -> None:
    train, test = cifar10(REAL, batches=5), cifar10_test(REAL)
    assert train.pixels.shape == (50_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    assert cifar10(REAL).labels[:5].tolist() == [6, 9, 9, 4, 1]


def test_a_data_set_of_other_bytes_is_another(tmp_path: Path) -> None:
    """That the table of digests is what decides: the same files under another digest are corrupt."""
    dataset = lay_out_cifar(tmp_path)
    file = replace(dataset.files[0], sha256="0" * 64)
    assert inspect(tmp_path, dataset.files[0]).state == "present"
    assert inspect(tmp_path, file).state == "corrupt"
