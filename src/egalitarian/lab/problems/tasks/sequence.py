"""Modular arithmetic as a sequence of tokens, for a transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from egalitarian.lab.problems.tasks.modular import Modular


@dataclass(frozen=True, kw_only=True)
class ModularSequence(Modular, kind="modular-sequence"):
    """`a o b =`, to be followed by the answer, for all pairs. Tokens are the p numbers, the operator and the equals sign.

    A factor b is never 0, as in the Grokfast code: 0 is the answer of p pairs at once.
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

    def spelled(self, a: Tensor, b: Tensor) -> Tensor:
        operator, equals = torch.full_like(a, self.modulus), torch.full_like(a, self.modulus + 1)
        return torch.stack([a, operator, b, equals], dim=1)
