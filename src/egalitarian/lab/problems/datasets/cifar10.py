"""CIFAR-10, binary version: 10000 rows a file, each a class and the red, green and blue planes, row by row."""

from __future__ import annotations

from pathlib import Path

import torch

from egalitarian.lab.problems.datasets.files import DataError, Dataset, contents
from egalitarian.lab.problems.datasets.images import Images, checked
from egalitarian.lab.problems.datasets.official import CIFAR_10

SHAPE = (3, 32, 32)
ROW = 1 + 3 * 32 * 32
BATCHES = 5


def cifar10(folder: Path, batches: int = 1, dataset: Dataset = CIFAR_10) -> Images:
    """The first training batches, (10000 batches, 3, 32, 32); only their files need be there."""
    if not 1 <= batches <= BATCHES:
        raise DataError(f"batches must be in [1, {BATCHES}], got {batches}; CIFAR-10 has no more")
    parts = [_read(folder, dataset, f"data_batch_{number}.bin") for number in range(1, batches + 1)]
    return parts[0] if batches == 1 else Images(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def cifar10_test(folder: Path, dataset: Dataset = CIFAR_10) -> Images:
    """The test batch, (10000, 3, 32, 32)."""
    return _read(folder, dataset, "test_batch.bin")


def _read(folder: Path, dataset: Dataset, name: str) -> Images:
    return read_batch(contents(folder, dataset, dataset.file(name)), name)


def read_batch(content: bytearray, name: str) -> Images:
    """A file of whole rows."""
    if not content or len(content) % ROW:
        raise DataError(f"{name} must be whole rows of {ROW} bytes, got {len(content)} bytes; fetch it again")
    rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, ROW)
    return checked(Images(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0].clone()), name)
