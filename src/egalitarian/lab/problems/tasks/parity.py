"""Sparse parity: a product of a few secret signs among many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from egalitarian.lab.config.schema import SpecError, setting
from egalitarian.lab.problems.tasks.base import Data, Split, Task, stream


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
