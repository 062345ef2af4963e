"""Models: networks and their initialisers, for one seed and for a batch of seeds; networks of linear layers.

A weight is (out, in), as in torch. To add a model, subclass `Model`: `start` draws the parameters of one seed, `one` is a
pure function of them. A batch is then computed by `torch.func.vmap`, unless `forward` is overridden by something faster.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import vmap
from torch.nn import functional as F

from egalitarian.lab.config import ModelSettings, SpecError, setting
from egalitarian.lab.problems.tasks import Task, stream

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model(ModelSettings):
    """The base of every model."""

    @abstractmethod
    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        """The initial parameters of one seed, by name, on the CPU."""

    @abstractmethod
    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of one network, (points, outputs). `torch.func.vmap` must be able to batch it."""

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """The outputs of a batch of networks, each for its own inputs: (seeds, points, outputs)."""
        outputs: Tensor = vmap(self.one)(parameters, inputs)
        return outputs

    def reading(self, parameters: Parameters) -> Tensor | None:
        """The weights whose columns one-hot inputs select, (seeds, out, features); None if the model has none."""
        return None

    def masks(self, points: int, draw: torch.Generator) -> Tensor | None:
        """Dropout masks for so many points, (points, ...) on the CPU, False where a value is dropped; None without dropout.
        Every pass over the data draws them for each seed."""
        return None

    def forward_masked(self, parameters: Parameters, inputs: Tensor, masks: Tensor) -> Tensor:
        """The outputs in training, with dropout; `masks` are (seeds, points, ...)."""
        raise NotImplementedError


def refuse_sequences(model: Model, task: Task) -> None:
    """An error for a model that would lose the order of tokens."""
    if task.tokens:
        raise SpecError(f"model must take tokens for task {task.kind!r}, got {model.kind!r}; use 'transformer'")


def linear(layer: str, parameters: Parameters, inputs: Tensor) -> Tensor:
    """W x + b for a batch of networks: inputs are (seeds, points, in)."""
    return torch.baddbmm(parameters[f"{layer}.bias"][:, None], inputs, parameters[f"{layer}.weight"].mT)


def add_columns(weight: Tensor, inputs: Tensor) -> Tensor:
    """W x for x that is 1 at the indices in `inputs`, by adding up columns of W: (seeds * points, out).

    The columns of all networks form one table, since a lookup has a deterministic backward and tensor indexing does not.
    One lookup of everything is faster with a backward or without a GPU; otherwise one lookup per index is.
    """
    seeds, _, columns = weight.shape
    table = weight.mT.flatten(0, 1)
    indices = (inputs + columns * torch.arange(seeds, device=inputs.device)[:, None, None]).flatten(0, 1)
    if weight.device.type == "cpu" or (weight.requires_grad and torch.is_grad_enabled()):
        return F.embedding_bag(indices, table, mode="sum")
    first, *rest = indices.unbind(-1)
    total = F.embedding(first, table)
    for index in rest:
        total = total.add_(F.embedding(index, table))
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


@dataclass(frozen=True, kw_only=True)
class MLP(Model, kind="mlp"):
    """Two layers: W2 relu(W1 x + b1), without an output bias."""

    width: int = setting(least=1)
    weights: Literal["he", "torch"] = "he"
    """he: N(0, 2 / fan_in); torch: as nn.Linear."""
    bias: Literal["zeros", "he", "torch"] = "zeros"
    scale: float = setting(1.0, above=0)
    """Every parameter is multiplied by it."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        refuse_sequences(self, task)
        fan_in = task.features
        draw = stream(seed, "init")
        hidden = initial(self.weights, (self.width, fan_in), fan_in, draw)
        bias = initial(self.bias, (self.width,), fan_in, draw)
        output = initial(self.weights, (task.outputs, self.width), self.width, draw)
        if task.looked_up:
            hidden = hidden.mT.contiguous().mT  # a lookup reads columns: make each contiguous
        start = {"hidden.weight": hidden, "hidden.bias": bias, "output.weight": output}
        return {name: tensor.mul_(self.scale) for name, tensor in start.items()}

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        if not inputs.is_floating_point():  # indices of ones
            inputs = F.one_hot(inputs, weight.shape[1]).sum(-2).to(weight.dtype)
        return F.linear(F.relu(F.linear(inputs.flatten(1), weight, bias)), parameters["output.weight"])

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        hidden = torch.bmm(inputs.flatten(2), weight.mT) if inputs.is_floating_point() else add_columns(weight, inputs)
        outputs: Tensor = _UpperHalf.apply(hidden, bias, parameters["output.weight"])[0]  # type: ignore[no-untyped-call]
        return outputs

    def reading(self, parameters: Parameters) -> Tensor:
        return parameters["hidden.weight"]


@dataclass(frozen=True, kw_only=True)
class Layers(Model, kind="layers"):
    """Linear layers with ReLU between them, as an `nn.Sequential`. Every layer has a bias; initialised as in torch, times
    `scale`."""

    widths: tuple[int, ...] = setting(least=1)
    """Widths of the hidden layers."""
    scale: float = setting(1.0, above=0)
    """Every parameter is multiplied by it."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        refuse_sequences(self, task)
        draw = stream(seed, "init")
        start: dict[str, Tensor] = {}
        for index, (width, above) in enumerate(pairwise((task.features, *self.widths, task.outputs))):
            start |= torch_layer(f"layers.{index}", (above, width), draw)
        return {name: tensor.mul_(self.scale) for name, tensor in start.items()}

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight = parameters["layers.0.weight"]
        if not inputs.is_floating_point():  # indices of ones
            inputs = F.one_hot(inputs, weight.shape[1]).sum(-2).to(weight.dtype)
        values = F.linear(inputs.flatten(1), weight, parameters["layers.0.bias"])
        for layer in self._upper:
            values = F.linear(F.relu(values), parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
        return values

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        values = self._lowest(parameters, inputs)
        for layer in self._upper:
            values = linear(layer, parameters, values.relu_())
        return values

    def reading(self, parameters: Parameters) -> Tensor:
        return parameters["layers.0.weight"]

    @property
    def _upper(self) -> list[str]:
        return [f"layers.{index}" for index in range(1, len(self.widths) + 1)]

    def _lowest(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            return linear("layers.0", parameters, inputs.flatten(2))
        weight, bias = parameters["layers.0.weight"], parameters["layers.0.bias"]
        columns = add_columns(weight, inputs)
        return columns.view(len(weight), -1, columns.shape[-1]) + bias[:, None]


class _UpperHalf(torch.autograd.Function):
    """relu(H + b) Wᵀ for a batch of networks, in place in H: (seeds * points, width) or (seeds, points, width).

    Autograd would allocate a tensor for every operation, and return W's gradient transposed.
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
