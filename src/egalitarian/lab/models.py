"""Networks and their named initialisers. A model says how one network is made; `ensemble.py` stacks many.

A weight is (out, in), as in torch. To add one, subclass `Model`: `start` draws the parameters of one seed, `forward` is a
pure function of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab import spec
from egalitarian.lab.settings import setting
from egalitarian.lab.tasks import Task, stream

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model(spec.Model):
    """The base of every model."""

    @abstractmethod
    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        """The parameters of one seed before training, by name, on the CPU."""

    @abstractmethod
    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """(points, outputs). Must go through `torch.func.vmap`."""


@dataclass(frozen=True, kw_only=True)
class MLP(Model, kind="mlp"):
    """Two layers: W2 relu(W1 x + b1), without an output bias."""

    width: int = setting(least=1)
    weights: Literal["he", "torch"] = "he"
    """he: N(0, 2 / fan_in); torch: what nn.Linear does."""
    bias: Literal["zeros", "he", "torch"] = "zeros"
    scale: float = setting(1.0, above=0)
    """Every parameter is multiplied by it."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        fan_in = task.features
        draw = stream(seed, "init")
        hidden = initial(self.weights, (self.width, fan_in), fan_in, draw)
        bias = initial(self.bias, (self.width,), fan_in, draw)
        output = initial(self.weights, (task.outputs, self.width), self.width, draw)
        if task.looked_up:
            hidden = hidden.mT.contiguous().mT  # a lookup reads columns: let each be whole in memory
        start = {"hidden.weight": hidden, "hidden.bias": bias, "output.weight": output}
        return {name: tensor.mul_(self.scale) for name, tensor in start.items()}

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        if inputs.is_floating_point():
            hidden = F.linear(inputs, weight, bias)
        else:
            hidden = add_columns(weight, inputs).add_(bias)
        return F.linear(hidden.relu_(), parameters["output.weight"])


def add_columns(weight: Tensor, inputs: Tensor) -> Tensor:
    """W x for x that is 1 at the few places `inputs` names, by looking its columns up. The backward is deterministic."""
    first, *rest = inputs.unbind(-1)
    total = F.embedding(first, weight.mT)
    for column in rest:
        total.add_(F.embedding(column, weight.mT))
    return total


def initial(rule: str, shape: tuple[int, ...], fan_in: int, draw: torch.Generator) -> Tensor:
    """A tensor drawn by a named rule."""
    if rule == "zeros":
        return torch.zeros(shape)
    if rule == "torch":
        bound = 1 / math.sqrt(fan_in)
        return torch.empty(shape).uniform_(-bound, bound, generator=draw)
    return torch.empty(shape).normal_(0, math.sqrt(2 / fan_in), generator=draw)
