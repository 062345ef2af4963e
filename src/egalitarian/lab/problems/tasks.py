"""Tasks: what is to be learnt, as tensors: modular arithmetic, sparse parity, MNIST and CIFAR-10.

A seed gives the same data on every device and in any batch of seeds. To add a task, subclass `Task` in a file of your own
and name that file in the experiment: see docs/lab.md.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.config import SpecError, TaskSettings, setting
from egalitarian.lab.problems.datasets import CLASSES, DataError, Images, cifar10, cifar10_test, default_folder, mnist
from egalitarian.lab.problems.groups import Group, is_prime

MOST = 10_000
"""The largest modulus."""
PER_FILE = 10_000
"""Images in a file of CIFAR-10."""


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose of one seed: independent of every other, and the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)


class Split(NamedTuple):
    """Inputs and their labels: (points, ...) and (points,)."""

    inputs: Tensor
    labels: Tensor


class Data(NamedTuple):
    """One seed's data, on the CPU."""

    train: Split
    test: Split


@dataclass(frozen=True, kw_only=True)
class Task(TaskSettings):
    """The base of every task: settings, the network's input and output width, and `build`, which makes one seed's data.

    By default an input is a vector of `features` numbers. A task may declare something else: indices to look up, a sequence
    of tokens, or an image. Labels are class indices, or -1 and 1 where there is one output.
    """

    looked_up: ClassVar[bool] = False
    """Whether an input is a few integers below `features`, in no order: the indices of its ones. The model adds up the
    columns of its first matrix at these indices."""
    tokens: ClassVar[int] = 0
    """The length of an input that is a sequence of integers below `features`; 0 if it is not a sequence."""
    image: ClassVar[tuple[int, ...]] = ()
    """(channels, height, width) of an input, `features` numbers in all; empty if the input is flat or not an image."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of the network's output."""

    @property
    @abstractmethod
    def features(self) -> int:
        """The length of an input vector; for integer inputs, the size of the vocabulary."""

    @property
    def group(self) -> Group | None:
        """The cyclic group in which labels are calculated from pairs of numbers; None if there is none."""
        return None

    @abstractmethod
    def build(self, seed: int) -> Data:
        """The data of one seed. Take every random number from `stream(seed, ...)`."""

    def era(self, epoch: int) -> int:
        """How often the training labels have changed up to this epoch; for most tasks, never."""
        return 0

    def relabelled(self, labels: Tensor, seed: int, era: int) -> Tensor:
        """The training labels of an era, given those of `build`, which are era 0's."""
        return labels


@dataclass(frozen=True, kw_only=True)
class Modular(Task, kind="modular"):
    """a o b mod p for all pairs, some of them for training. Each input is two integers: a and p + b.

    Adding up these two columns of the first matrix equals the paper's product with two concatenated one-hot vectors.
    """

    operation: Literal["+", "-", "*", "/"]
    modulus: int = setting(least=2)
    train_fraction: float = setting(0.5, above=0, below=1)
    looked_up: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modulus > MOST:
            raise SpecError(f"modulus must be at most {MOST}, got {self.modulus}; lower it: all pairs are held in memory")
        if self.operation == "/" and not is_prime(self.modulus):
            raise SpecError(
                f"modulus must be a prime for division, got {self.modulus}; only then has every divisor an inverse"
            )
        if not 1 <= self.train_size < self.pairs:
            raise SpecError(f"train_fraction must leave pairs on both sides, got {self.train_fraction:g}; try 0.5")

    @property
    def outputs(self) -> int:
        return self.modulus

    @property
    def features(self) -> int:
        return 2 * self.modulus

    @property
    def pairs(self) -> int:
        return self.modulus * (self.modulus - self.first)

    @property
    def first(self) -> int:
        """The smallest b."""
        return 1 if self.operation == "/" else 0

    @property
    def train_size(self) -> int:
        return int(self.pairs * self.train_fraction)

    @property
    def group(self) -> Group | None:
        """None for products of a modulus that is no prime above 2, and for a subclass with answers of its own."""
        return Group.of(self.operation, self.modulus) if type(self).answers is Modular.answers else None

    def table(self) -> Split:
        """All pairs, in order, with their labels. Division leaves out b = 0."""
        a, b = torch.cartesian_prod(torch.arange(self.modulus), torch.arange(self.first, self.modulus)).unbind(1)
        return Split(self.encode(a, b), self.answers(a, b))

    def encode(self, a: Tensor, b: Tensor) -> Tensor:
        """The pairs as inputs."""
        return torch.stack([a, self.modulus + b], dim=1)

    def decode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of inputs (..., numbers)."""
        return inputs[..., 0], inputs[..., 1] - self.modulus

    def answers(self, a: Tensor, b: Tensor) -> Tensor:
        p = self.modulus
        inverse = torch.tensor([pow(x, -1, p) if self.operation == "/" and x else 0 for x in range(p)])
        return {"+": a + b, "-": a - b, "*": a * b, "/": a * inverse[b]}[self.operation] % p

    def build(self, seed: int) -> Data:
        inputs, labels = self.table()
        order = torch.randperm(self.pairs, generator=stream(seed, "split"))
        train, test = order[: self.train_size], order[self.train_size :]
        return Data(Split(inputs[train], labels[train]), Split(inputs[test], labels[test]))


@dataclass(frozen=True, kw_only=True)
class ModularSequence(Modular, kind="modular-sequence"):
    """`a o b =`, to be completed by the answer, for all pairs. Tokens are the p numbers, the operator and the equals sign.

    A factor b is never 0, as in the Grokfast code: there, p pairs would share the answer 0.
    """

    looked_up: ClassVar[bool] = False
    tokens: ClassVar[int] = 4

    @property
    def first(self) -> int:
        return 1 if self.operation in ("*", "/") else 0

    @property
    def features(self) -> int:
        return self.modulus + 2

    @property
    def outputs(self) -> int:
        return self.features

    def encode(self, a: Tensor, b: Tensor) -> Tensor:
        operator, equals = torch.full_like(a, self.modulus), torch.full_like(a, self.modulus + 1)
        return torch.stack([a, operator, b, equals], dim=1)

    def decode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[..., 0], inputs[..., 2]


@dataclass(frozen=True, kw_only=True)
class Parity(Task, kind="parity"):
    """The product of k secret signs among n, on samples that every seed draws for itself."""

    bits: int = setting(least=1)
    secret_bits: int = setting(least=1)
    train_size: int = setting(least=1)
    test_size: int = setting(least=1)
    secret: Literal["random", "first"] = "random"
    """Which bits: k drawn by the seed, as in the paper's text, or the first k, as in its code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secret_bits > self.bits:
            raise SpecError(f"secret_bits must be at most bits = {self.bits}, got {self.secret_bits}; lower it")

    @property
    def outputs(self) -> int:
        return 1

    @property
    def features(self) -> int:
        return self.bits

    def subset(self, seed: int) -> Tensor:
        """The indices of the secret bits."""
        if self.secret == "first":
            return torch.arange(self.secret_bits)
        return torch.randperm(self.bits, generator=stream(seed, "secret"))[: self.secret_bits].sort().values

    def build(self, seed: int) -> Data:
        secret = self.subset(seed)

        def draw(part: str, size: int) -> Split:
            signs = torch.randint(0, 2, (size, self.bits), generator=stream(seed, part)).mul_(2).sub_(1)
            return Split(signs.float(), signs[:, secret].prod(1).float())

        return Data(draw("train", self.train_size), draw("test", self.test_size))


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

    train_size: int = setting(least=1, most=5 * PER_FILE)
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
    return _scaled(_first(cifar10(folder, -(-train_size // PER_FILE)), train_size))


@lru_cache(maxsize=1)
def _cifar_test(folder: Path) -> Split:
    return _scaled(cifar10_test(folder))


def _scaled(images: Images) -> Split:
    return Split(images.pixels / 127.5 - 1, images.labels.long())


def _first(images: Images, count: int) -> Images:
    if len(images.labels) < count:
        raise SpecError(f"train_size must be at most the {len(images.labels)} training images, got {count}; lower it")
    return Images(*(part[:count] for part in images))
