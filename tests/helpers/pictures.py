"""Small files in the formats of MNIST and CIFAR-10, with pictures of noise that tell their class by their bright rows."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import torch
from torch import Tensor

from egalitarian.lab.problems import stream
from egalitarian.lab.problems.datasets.files import Archive, DataFile, Dataset

TRAIN, TEST = 60, 40


def pictures(part: str, count: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Bytes: pixels and classes."""
    draw = stream(0, "pictures", part)
    classes = torch.randint(0, 10, (count,), generator=draw)
    noise = torch.randint(0, 20, (count, *shape), generator=draw)
    bright = classes.view(-1, *(1 for _ in shape)) == torch.arange(shape[-2])[:, None] % 10
    return (noise + 200 * bright).to(torch.uint8), classes.to(torch.uint8)


def write_mnist(folder: Path) -> Dataset:
    files = []
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        pixels, classes = pictures(part, count, 28, 28)
        files.append(
            _write(folder, f"MNIST/raw/{part}-images-idx3-ubyte", struct.pack(">4I", 0x803, count, 28, 28), pixels)
        )
        files.append(_write(folder, f"MNIST/raw/{part}-labels-idx1-ubyte", struct.pack(">2I", 2049, count), classes))
    return Dataset("mnist", "MNIST", (Archive("mnist.gz", 0, "", ("nowhere",), tuple(files)),))


def write_cifar(folder: Path) -> Dataset:
    files = []
    for part, count in (("data_batch_1", TRAIN), ("test_batch", TEST)):
        pixels, classes = pictures(part, count, 3, 32, 32)
        rows = torch.cat([classes[:, None], pixels.flatten(1)], 1)
        files.append(_write(folder, f"cifar-10-batches-bin/{part}.bin", b"", rows))
    return Dataset("cifar-10", "CIFAR-10", (Archive("cifar.tar.gz", 0, "", ("nowhere",), tuple(files)),))


def _write(folder: Path, path: str, head: bytes, body: Tensor) -> DataFile:
    content = head + body.numpy().tobytes()
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return DataFile(path, len(content), hashlib.sha256(content).hexdigest())
