"""Reading MNIST and CIFAR-10: right pixels and classes from right files, and from nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from webserver import cifar_batches, idx, lay_out, lay_out_cifar, lay_out_mnist, mnist_files

from egalitarian.lab.problems.datasets.files import (
    DataError,
)
from egalitarian.lab.problems.datasets.images import Images, checked, cifar10, cifar10_test, mnist, parse_batch, parse_idx

REAL = Path(os.environ.get("EGALITARIAN_DATA", "/nowhere"))


needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason="needs the real data: EGALITARIAN_DATA")


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
        parse_idx(bytearray(content), "name")


def test_idx_keeps_its_axes() -> None:
    assert parse_idx(bytearray(idx((2, 3), b"abcdef")), "name").tolist() == [[97, 98, 99], [100, 101, 102]]
    assert parse_idx(bytearray(idx((0, 3), b"")), "name").shape == (0, 3)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_batches_are_whole_rows(size: int) -> None:
    with pytest.raises(DataError, match="whole rows of 3073 bytes"):
        parse_batch(bytearray(size), "name")


def test_classes_are_checked() -> None:
    with pytest.raises(DataError, match="classes from 0 to 9, got 10"):
        parse_batch(bytearray(b"\x0a" + bytes(3072)), "name")
    with pytest.raises(DataError, match="a class for each image, got 1 for 2"):
        checked(Images(torch.zeros(2, 4), torch.zeros(1)), "name")


def test_mnist_is_28_by_28(tmp_path: Path) -> None:
    contents = {f"MNIST/raw/{name}": content for name, content in mnist_files().items()}
    contents["MNIST/raw/train-images-idx3-ubyte"] = idx((6, 28, 27), bytes(6 * 28 * 27))
    with pytest.raises(DataError, match="28 x 28"):
        mnist(tmp_path, lay_out(tmp_path, "MNIST", contents))


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
