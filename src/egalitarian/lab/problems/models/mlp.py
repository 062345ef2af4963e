"""The paper's two-layer network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from egalitarian.lab.config.schema import setting
from egalitarian.lab.problems.models.base import Model, Parameters, add_columns, initial, refuse_sequences
from egalitarian.lab.problems.tasks import Task, stream


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
        refuse_sequences(self, task)
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
        return F.linear(F.relu(F.linear(inputs.flatten(1), weight, bias)), parameters["output.weight"])

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        weight, bias = parameters["hidden.weight"], parameters["hidden.bias"]
        hidden = torch.bmm(inputs.flatten(2), weight.mT) if inputs.is_floating_point() else add_columns(weight, inputs)
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
