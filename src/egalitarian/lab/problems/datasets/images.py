"""MNIST and CIFAR-10 as uint8 tensors, read from their official files.

MNIST's IDX files begin with a magic number and the size of every axis, four bytes each, big-endian. A file of CIFAR-10 has
10000 rows, each a class followed by the red, green and blue planes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.problems.datasets.files import CIFAR_10, MNIST, DataError, Dataset, contents

CLASSES = 10
UNSIGNED_BYTES = 0x0800
"""The magic number of an IDX array of bytes, less its number of axes."""
SIDE = 28
"""Height and width of MNIST's images."""
SHAPE = (3, 32, 32)
"""Of CIFAR-10's images."""
ROW = 1 + math.prod(SHAPE)
BATCHES = 5


class Images(NamedTuple):
    """uint8 pixels (images, ..., height, width), and a uint8 class (images,) of each."""

    pixels: Tensor
    labels: Tensor


class Mnist(NamedTuple):
    """Pixels are (images, 28, 28)."""

    train: Images
    test: Images


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
