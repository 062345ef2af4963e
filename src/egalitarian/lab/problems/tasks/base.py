"""What every task is made of: streams of random numbers, data, and the base class."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.config import spec


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

    An input is a point of so many `features`, unless the task says otherwise: places to look up, a sequence of tokens, an
    image. Labels are class numbers, or -1 and 1 where there is one output.
    """

    looked_up: ClassVar[bool] = False
    """Whether an input is a few whole numbers below `features` in no order: the places of its ones, to be looked up and
    added."""
    tokens: ClassVar[int] = 0
    """How many whole numbers below `features` an input is, in an order that matters; 0: it is no sequence."""
    image: ClassVar[tuple[int, ...]] = ()
    """(channels, height, width) of an input, `features` numbers in all; empty: it is flat, or no image."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of the network's output."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Numbers that make up an input; where it is whole numbers, how many of them there are: the vocabulary."""

    @abstractmethod
    def build(self, seed: int) -> Data:
        """The data of one seed; every random number from `stream(seed, ...)`."""

    def era(self, epoch: int) -> int:
        """How often the training labels have changed by then; most tasks never change them."""
        return 0

    def relabelled(self, labels: Tensor, seed: int, era: int) -> Tensor:
        """The training labels of an era, from those of `build`, which are era 0's."""
        return labels
