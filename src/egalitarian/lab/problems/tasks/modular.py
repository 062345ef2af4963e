"""Modular arithmetic: all pairs and their answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from egalitarian.lab.config.schema import SpecError, setting
from egalitarian.lab.problems.tasks.base import Data, Split, Task, stream

MOST = 10_000
"""The largest modulus."""


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
        """The least b."""
        return 1 if self.operation == "/" else 0

    @property
    def train_size(self) -> int:
        return int(self.pairs * self.train_fraction)

    def table(self) -> Split:
        """All pairs, in order, with their labels. Division leaves out b = 0."""
        a, b = torch.cartesian_prod(torch.arange(self.modulus), torch.arange(self.first, self.modulus)).unbind(1)
        return Split(self.spelled(a, b), self.answers(a, b))

    def spelled(self, a: Tensor, b: Tensor) -> Tensor:
        """The pairs as inputs."""
        return torch.stack([a, self.modulus + b], dim=1)

    def answers(self, a: Tensor, b: Tensor) -> Tensor:
        p = self.modulus
        inverse = torch.tensor([pow(x, -1, p) if self.operation == "/" and x else 0 for x in range(p)])
        return {"+": a + b, "-": a - b, "*": a * b, "/": a * inverse[b]}[self.operation] % p

    def build(self, seed: int) -> Data:
        table = self.table()
        order = torch.randperm(self.pairs, generator=stream(seed, "split"))
        train, test = order[: self.train_size], order[self.train_size :]
        return Data(
            Split(table.inputs[train], table.labels[train]),
            Split(table.inputs[test], table.labels[test]),
        )


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
