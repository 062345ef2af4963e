"""The group in which a modular task calculates, with its elements in the order in which Fourier's waves run over them.

Addition and subtraction run over all numbers below the modulus, multiplication and division over all but 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Operation = Literal["+", "-", "*", "/"]


@dataclass(frozen=True)
class Group:
    """A cyclic group: g^0, g^1, g^2, ... The exponent is an element's logarithm.

    For + and -, the sum mod p, g is 1 and a number is its own logarithm. For * and /, the product mod a prime p, g is the
    smallest primitive root. A wave of frequency k has the value exp(2πi k t / size) at the element with logarithm t: these
    are the characters of the group.
    """

    operation: Operation
    modulus: int

    def __post_init__(self) -> None:
        if self.modulus < 2:
            raise ValueError(f"modulus must be at least 2, got {self.modulus}; a single number has no waves")
        if self.operation in ("*", "/") and (self.modulus == 2 or not is_prime(self.modulus)):
            raise ValueError(
                f"modulus must be a prime above 2 for {self.operation!r}, got {self.modulus}; only then do all numbers "
                f"but 0 form a cyclic group with waves"
            )

    @staticmethod
    def of(operation: Operation, modulus: int) -> Group | None:
        """None where the numbers form no such group."""
        try:
            return Group(operation, modulus)
        except ValueError:
            return None

    @property
    def size(self) -> int:
        return self.modulus - 1 if self.operation in ("*", "/") else self.modulus

    @property
    def frequencies(self) -> int:
        """How many there are above 0: real waves of frequency k and of size - k are the same."""
        return self.size // 2

    @cached_property
    def elements(self) -> Tensor:
        """The elements by logarithm, (size,)."""
        if self.operation in ("+", "-"):
            return torch.arange(self.modulus)
        powers = (torch.tensor([pow(g, t, self.modulus) for t in range(self.size)]) for g in range(2, self.modulus))
        return next(found for found in powers if len(set(found.tolist())) == self.size)

    @cached_property
    def logarithms(self) -> Tensor:
        """The logarithms by element, (modulus,); -1 for a number that is not in the group."""
        found = torch.full((self.modulus,), -1)
        found[self.elements] = torch.arange(self.size)
        return found

    @cached_property
    def answers(self) -> Tensor:
        """The answer's logarithm for each pair of logarithms, (size, size)."""
        first, second = torch.arange(self.size)[:, None], torch.arange(self.size)
        return (first - second if self.operation in ("-", "/") else first + second) % self.size

    @cached_property
    def partners(self) -> Tensor:
        """The second number's logarithm for each answer and first number, (size, size)."""
        answer, first = torch.arange(self.size)[:, None], torch.arange(self.size)
        return (first - answer if self.operation in ("-", "/") else answer - first) % self.size


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
