"""Files of a data set: one that is missing, corrupt or unreadable is never used, and the message says what to do."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from webserver import lay_out_cifar, lay_out_mnist

from egalitarian.lab.problems.datasets import files
from egalitarian.lab.problems.datasets.files import (
    CIFAR_10,
    DATASETS,
    MNIST,
    DataError,
    check_file,
    default_folder,
)
from egalitarian.lab.problems.datasets.images import cifar10, mnist


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
    assert check_file(tmp_path, dataset.file("data_batch_1.bin")).state == "corrupt"


def test_what_is_no_file_is_unreadable(tmp_path: Path) -> None:
    file = MNIST.files[0]
    assert check_file(tmp_path, file).state == "missing"
    (tmp_path / file.path).mkdir(parents=True)
    assert check_file(tmp_path, file).state == "unreadable"
    with pytest.raises(DataError, match="must be readable, got: Is a directory"):
        mnist(tmp_path)


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


def test_a_data_set_of_other_bytes_is_another(tmp_path: Path) -> None:
    """That the table of digests is what decides: the same files under another digest are corrupt."""
    dataset = lay_out_cifar(tmp_path)
    file = replace(dataset.files[0], sha256="0" * 64)
    assert check_file(tmp_path, dataset.files[0]).state == "present"
    assert check_file(tmp_path, file).state == "corrupt"
