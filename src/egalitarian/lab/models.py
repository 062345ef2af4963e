"""Networks and their named initialisers. A model says how one network is made and computed; `ensemble.py` stacks many.

A weight is (out, in), as in torch. To add one, subclass `Model`: `start` draws the parameters of one seed, `one` is a pure
function of them. A stack is then computed by `torch.func.vmap`; a model may have a faster way, as the MLP does.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import vmap
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
    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of one network, (points, outputs). Must go through `torch.func.vmap`."""

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of a stack of networks, each for its own inputs: (seeds, points, outputs)."""
        outputs: Tensor = vmap(self.one)(parameters, inputs)
        return outputs


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

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        if not inputs.is_floating_point():  # ones at the places that are named
            inputs = F.one_hot(inputs, weight.shape[1]).sum(-2).to(weight.dtype)
        return F.linear(F.relu(F.linear(inputs, weight, bias)), parameters["output.weight"])

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        hidden = torch.bmm(inputs, weight.mT) if inputs.is_floating_point() else add_columns(weight, inputs)
        outputs: Tensor = _UpperHalf.apply(hidden, bias, parameters["output.weight"])[0]  # type: ignore[no-untyped-call]
        return outputs


class _UpperHalf(torch.autograd.Function):
    """relu(H + b) Wᵀ for a stack, in the memory of H (seeds * points, width) or (seeds, points, width).

    Autograd's own would take new memory for every stage and make W's gradient transposed.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.mark_dirty(hidden)
        ctx.set_materialize_grads(False)
        active = hidden.view(len(bias), -1, hidden.shape[-1]).add_(bias[:, None]).relu_()
        ctx.save_for_backward(hidden, weight)
        return torch.bmm(active, weight.mT), hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        active, below = hidden.view(len(weight), -1, hidden.shape[-1]), torch.bmm(grad, weight)
        torch.ops.aten.threshold_backward(below, active, 0, grad_input=below)
        return below.view(hidden.shape), below.sum(1), torch.bmm(grad.mT, active)


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


def initial(rule: str, shape: tuple[int, ...], fan_in: int, draw: torch.Generator) -> Tensor:
    """A tensor drawn by a named rule."""
    if rule == "zeros":
        return torch.zeros(shape)
    if rule == "torch":
        bound = 1 / math.sqrt(fan_in)
        return torch.empty(shape).uniform_(-bound, bound, generator=draw)
    return torch.empty(shape).normal_(0, math.sqrt(2 / fan_in), generator=draw)
