"""What every model is made of: the base class, named initialisers, and layers of a stack of networks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from egalitarian.lab.config import spec
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.problems.tasks import Task

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model(spec.Model):
    """The base of every model."""

    @abstractmethod
    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        """The parameters of one seed before training, by name, on the CPU."""

    @abstractmethod
    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of one network, (points, outputs). Must go through `torch.func.vmap`."""

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of a stack of networks, each for its own inputs: (seeds, points, outputs)."""
        outputs: Tensor = vmap(self.one)(parameters, inputs)
        return outputs


def refuse_sequences(model: Model, task: Task) -> None:
    """For a model that would lose the order of tokens."""
    if task.tokens:
        raise SpecError(f"model must take tokens for task {task.kind!r}, got {model.kind!r}; use 'transformer'")


def linear(layer: str, parameters: Parameters, inputs: Tensor) -> Tensor:
    """W x + b for a stack: inputs are (seeds, points, in)."""
    return torch.baddbmm(parameters[f"{layer}.bias"][:, None], inputs, parameters[f"{layer}.weight"].mT)


def add_columns(weight: Tensor, inputs: Tensor) -> Tensor:
    """W x for x that is 1 at the few places `inputs` names, by adding up columns of W; for a stack, (seeds * points, out).

    All columns of the stack are in one table. These lookups have a deterministic backward, indexing with a tensor has not.
    Which is faster differs: one lookup of all where there is a backward or no GPU, otherwise one after the other.
    """
    seeds, _, columns = weight.shape
    table = weight.mT.flatten(0, 1)
    places = (inputs + columns * torch.arange(seeds, device=inputs.device)[:, None, None]).flatten(0, 1)
    if weight.device.type == "cpu" or (weight.requires_grad and torch.is_grad_enabled()):
        return F.embedding_bag(places, table, mode="sum")
    first, *rest = places.unbind(-1)
    total = F.embedding(first, table)
    for place in rest:
        total = total.add_(F.embedding(place, table))
    return total


def torch_layer(name: str, shape: tuple[int, ...], draw: torch.Generator) -> dict[str, Tensor]:
    """Weight and bias as `nn.Linear` and `nn.Conv2d` draw them."""
    fan_in = math.prod(shape[1:])
    return {
        f"{name}.weight": initial("torch", shape, fan_in, draw),
        f"{name}.bias": initial("torch", shape[:1], fan_in, draw),
    }


def initial(rule: str, shape: tuple[int, ...], fan_in: int, draw: torch.Generator) -> Tensor:
    """A tensor drawn by a named rule."""
    if rule == "zeros":
        return torch.zeros(shape)
    if rule == "torch":
        bound = 1 / math.sqrt(fan_in)
        return torch.empty(shape).uniform_(-bound, bound, generator=draw)
    return torch.empty(shape).normal_(0, math.sqrt(2 / fan_in), generator=draw)
