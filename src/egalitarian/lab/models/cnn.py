"""A small convolutional network: convolutions that halve the image, one hidden layer, classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from egalitarian.lab.models.base import Model, Parameters, linear, torch_layer
from egalitarian.lab.settings import SpecError, setting
from egalitarian.lab.tasks import Task, stream

KERNEL = 3


class _Pooled(torch.autograd.Function):
    """relu(max_pool2d(x, 2)), or the other way round, which is the same: the first of the largest of each 2 x 2.

    torch's own backward writes all of x's gradient twice and looks for its places one by one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _quarters(x)
        top, bottom = torch.maximum(a, b), torch.maximum(c, d)
        largest = torch.maximum(top, bottom)
        place = torch.where(top < bottom, (c < d).to(torch.int8) + 2, (a < b).to(torch.int8))
        ctx.save_for_backward(place.masked_fill_(largest <= 0, -1))
        ctx.shape = x.shape
        return largest.relu_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        below = grad.new_empty(ctx.shape)
        for number, quarter in enumerate(_quarters(below)):
            torch.mul(grad, place == number, out=quarter)
        return below


def pooled(x: Tensor) -> Tensor:
    if x.shape[-2] % 2 or x.shape[-1] % 2:  # the last row or column is left out
        return F.max_pool2d(x, 2).relu()
    values: Tensor = _Pooled.apply(x)  # type: ignore[no-untyped-call]
    return values


def _quarters(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of every 2 x 2, in the order in which they are read: views."""
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


@dataclass(frozen=True, kw_only=True)
class CNN(Model, kind="cnn"):
    """3 x 3 convolutions, each with ReLU and the maximum of 2 x 2, then W2 relu(W1 x + b1) + b2; the start is torch's."""

    channels: tuple[int, ...] = setting(least=1)
    """Of the convolutions."""
    width: int = setting(least=1)
    """Of the hidden layer."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        channels, pixels = self._below(task)
        draw = stream(seed, "init")
        start: dict[str, Tensor] = {}
        for place, above in enumerate(self.channels):
            start |= torch_layer(f"conv.{place}", (above, channels, KERNEL, KERNEL), draw)
            channels = above
        start |= torch_layer("hidden", (self.width, channels * pixels), draw)
        return start | torch_layer("output", (task.outputs, self.width), draw)

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        for layer in self._convolutions:
            values = F.conv2d(inputs, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"], padding=KERNEL // 2)
            inputs = F.max_pool2d(F.relu(values), 2)
        hidden = F.relu(F.linear(inputs.flatten(1), parameters["hidden.weight"], parameters["hidden.bias"]))
        return F.linear(hidden, parameters["output.weight"], parameters["output.bias"])

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """A stack's channels side by side, (points, seeds * channels, height, width): one convolution in groups."""
        seeds, points = inputs.shape[:2]
        values = inputs.transpose(0, 1).flatten(1, 2)
        for layer in self._convolutions:
            weight, bias = (parameters[f"{layer}.{part}"].flatten(0, 1) for part in ("weight", "bias"))
            values = F.conv2d(values, weight, bias, padding=KERNEL // 2, groups=seeds)
            values = pooled(values)
        values = values.view(points, seeds, -1).transpose(0, 1)
        return linear("output", parameters, linear("hidden", parameters, values).relu_())

    @property
    def _convolutions(self) -> list[str]:
        return [f"conv.{place}" for place in range(len(self.channels))]

    def _below(self, task: Task) -> tuple[int, int]:
        """Channels of the image; pixels of what the convolutions leave of it."""
        if not task.image:
            raise SpecError(f"task must be of images for model 'cnn', got {task.kind!r}; use 'cifar-10', or model 'layers'")
        channels, height, width = task.image
        left = (height >> len(self.channels)) * (width >> len(self.channels))
        if not left:
            raise SpecError(
                f"channels must leave at least a pixel of {height} x {width}, got {len(self.channels)}; take some out"
            )
        return channels, left
