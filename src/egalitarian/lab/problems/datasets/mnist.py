"""MNIST: IDX files, which begin with a magic number and the size of every axis, each four bytes, the highest first."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.problems.datasets.files import DataError, Dataset, contents
from egalitarian.lab.problems.datasets.images import Images, checked
from egalitarian.lab.problems.datasets.official import MNIST

UNSIGNED_BYTES = 0x0800
"""The magic number of an array of bytes, less its number of axes."""
SIDE = 28


class Mnist(NamedTuple):
    """Pixels are (images, 28, 28)."""

    train: Images
    test: Images


def mnist(folder: Path, dataset: Dataset = MNIST) -> Mnist:
    """All of MNIST; every file must be there and be the official one."""
    return Mnist(_part(folder, dataset, "train"), _part(folder, dataset, "t10k"))


def _part(folder: Path, dataset: Dataset, part: str) -> Images:
    names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    pixels, labels = (read_idx(contents(folder, dataset, dataset.file(name)), name) for name in names)
    if pixels.shape[1:] != (SIDE, SIDE) or labels.dim() != 1:
        shapes = f"{tuple(pixels.shape)} and {tuple(labels.shape)}"
        raise DataError(f"{part} must have images of {SIDE} x {SIDE} and a list of classes, got {shapes}; fetch it again")
    return checked(Images(pixels, labels), part)


def read_idx(content: bytearray, name: str) -> Tensor:
    """An IDX file of bytes as a tensor with its axes."""
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
