"""Tasks on MNIST and CIFAR-10. Only `build` needs the data files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from egalitarian.lab.config import SpecError, setting
from egalitarian.lab.problems.datasets import CLASSES, DataError, Images, cifar10, cifar10_test, default_folder, mnist
from egalitarian.lab.problems.tasks import Data, Split, Task, stream

PER_BATCH = 10_000
"""Images in a file of CIFAR-10."""


@dataclass(frozen=True, kw_only=True)
class ImageTask(Task):
    """Ten classes of images. Every seed has the same data: the first training images, and all test images."""

    train_size: int = setting(least=1)

    @property
    def outputs(self) -> int:
        return CLASSES

    def build(self, seed: int) -> Data:
        try:
            return self.read(default_folder())
        except DataError as error:
            raise SpecError(str(error)) from error

    def read(self, folder: Path) -> Data:
        """The data, from the files in this folder."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MNIST(ImageTask, kind="mnist"):
    """Handwritten digits, flat, with pixels from 0 to 1."""

    train_size: int = setting(least=1, most=60_000)

    @property
    def features(self) -> int:
        return 28 * 28

    def read(self, folder: Path) -> Data:
        return _mnist(folder, self.train_size)


@dataclass(frozen=True, kw_only=True)
class CIFAR10(ImageTask, kind="cifar-10"):
    """Small photographs, red, green and blue, with pixels from -1 to 1."""

    train_size: int = setting(least=1, most=5 * PER_BATCH)
    image: ClassVar[tuple[int, ...]] = (3, 32, 32)

    @property
    def features(self) -> int:
        return 3 * 32 * 32

    def read(self, folder: Path) -> Data:
        return Data(_cifar_train(folder, self.train_size), _cifar_test(folder))


@dataclass(frozen=True, kw_only=True)
class ShuffledCIFAR10(CIFAR10, kind="cifar-10-shuffled"):
    """CIFAR-10 whose training labels are shuffled at equally spaced epochs: how fast are they learnt again?

    There is nothing to generalise to. The test points are the first training images with their true labels, so test
    accuracy falls as the network forgets them.
    """

    test_size: int = setting(least=1)
    shuffles: int = setting(least=0)
    epochs: int = setting(least=1)
    """The number of epochs over which the shuffles are spaced equally."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_size > self.train_size:
            raise SpecError(
                f"test_size must be at most train_size = {self.train_size}, got {self.test_size}; they are the same images"
            )
        if self.shuffles >= self.epochs:
            raise SpecError(
                f"shuffles must be fewer than epochs = {self.epochs}, got {self.shuffles}; labels change between epochs"
            )

    def read(self, folder: Path) -> Data:
        train = _cifar_train(folder, self.train_size)
        return Data(train, Split(*(part[: self.test_size] for part in train)))

    def era(self, epoch: int) -> int:
        return min(self.shuffles, epoch * (self.shuffles + 1) // self.epochs)

    def relabelled(self, labels: Tensor, seed: int, era: int) -> Tensor:
        return labels[torch.randperm(len(labels), generator=stream(seed, "shuffle", era))] if era else labels


@lru_cache(maxsize=1)
def _mnist(folder: Path, train_size: int) -> Data:
    found = mnist(folder)
    train, test = _first(found.train, train_size), found.test
    return Data(*(Split(pixels.flatten(1) / 255, labels.long()) for pixels, labels in (train, test)))


@lru_cache(maxsize=1)
def _cifar_train(folder: Path, train_size: int) -> Split:
    return _scaled(_first(cifar10(folder, -(-train_size // PER_BATCH)), train_size))


@lru_cache(maxsize=1)
def _cifar_test(folder: Path) -> Split:
    return _scaled(cifar10_test(folder))


def _scaled(images: Images) -> Split:
    return Split(images.pixels / 127.5 - 1, images.labels.long())


def _first(images: Images, count: int) -> Images:
    if len(images.labels) < count:
        raise SpecError(f"train_size must be at most the {len(images.labels)} training images, got {count}; lower it")
    return Images(*(part[:count] for part in images))
