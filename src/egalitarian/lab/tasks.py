"""Tasks: what is to be learnt, as tensors. A seed means the same data on every device and in any company.

To add one, subclass `Task` in a file of your own and name that file in the experiment: see docs/lab.md.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab import spec
from egalitarian.lab.settings import SpecError, setting

MOST = 10_000
"""The largest modulus."""


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A generator on the CPU for one purpose of one seed: independent of every other, the same everywhere."""
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
class Task(spec.Task):
    """The base of every task: settings, the network's shape, and `build`, which makes one seed's data.

    Inputs are whole numbers that a network looks up (`vocabulary` of them), or points of so many `features`. Labels are
    class numbers, or -1 and 1 where there is one output.
    """

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of the network's output."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Width of the network's input; for looked-up inputs, of the vocabulary."""

    looked_up: ClassVar[bool] = False
    """Whether inputs are whole numbers: rows of a vocabulary, to be looked up and added."""

    @abstractmethod
    def build(self, seed: int) -> Data:
        """The data of one seed; every random number from `stream(seed, ...)`."""

    def era(self, epoch: int) -> int:
        """How often the training labels have changed by then; most tasks never change them."""
        return 0

    def relabelled(self, labels: Tensor, seed: int, era: int) -> Tensor:
        """The training labels of an era, from those of `build`, which are era 0's."""
        return labels


@dataclass(frozen=True, kw_only=True)
class Modular(Task, kind="modular"):
    """a o b mod p for all pairs, a part of them for training. Each input is two numbers: a and p + b.

    Looked up and added, they are the two one-hots side by side of the paper times the first matrix.
    """

    operation: Literal["+", "-", "*", "/"]
    modulus: int = setting(least=2)
    train_fraction: float = setting(0.5, above=0, below=1)
    looked_up: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modulus > MOST:
            raise SpecError(f"modulus must be at most {MOST}, got {self.modulus}; all its pairs are held in memory")
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
        return self.modulus * (self.modulus - 1 if self.operation == "/" else self.modulus)

    @property
    def train_size(self) -> int:
        return int(self.pairs * self.train_fraction)

    def table(self) -> Split:
        """All pairs, in order, with their labels. Division leaves out b = 0."""
        p = self.modulus
        a, b = torch.cartesian_prod(torch.arange(p), torch.arange(1 if self.operation == "/" else 0, p)).unbind(1)
        inverse = torch.tensor([pow(x, -1, p) if self.operation == "/" and x else 0 for x in range(p)])
        answers = {"+": a + b, "-": a - b, "*": a * b, "/": a * inverse[b]}
        return Split(torch.stack([a, p + b], dim=1), answers[self.operation] % p)

    def build(self, seed: int) -> Data:
        table = self.table()
        order = torch.randperm(self.pairs, generator=stream(seed, "split"))
        train, test = order[: self.train_size], order[self.train_size :]
        return Data(
            Split(table.inputs[train], table.labels[train]),
            Split(table.inputs[test], table.labels[test]),
        )


@dataclass(frozen=True, kw_only=True)
class Parity(Task, kind="parity"):
    """The product of k secret ones among n signs, from samples drawn anew for every seed."""

    bits: int = setting(least=1)
    secret_bits: int = setting(least=1)
    train_size: int = setting(least=1)
    test_size: int = setting(least=1)
    secret: Literal["random", "first"] = "random"
    """Which bits: k of them drawn by the seed, as the paper says, or the first k, as its code does."""

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
        """The secret."""
        if self.secret == "first":
            return torch.arange(self.secret_bits)
        return torch.randperm(self.bits, generator=stream(seed, "secret"))[: self.secret_bits].sort().values

    def build(self, seed: int) -> Data:
        secret = self.subset(seed)

        def draw(part: str, size: int) -> Split:
            signs = torch.randint(0, 2, (size, self.bits), generator=stream(seed, part)).mul_(2).sub_(1)
            return Split(signs.float(), signs[:, secret].prod(1).float())

        return Data(draw("train", self.train_size), draw("test", self.test_size))


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
