"""A small convolutional network: convolutions that halve the image, one hidden layer, classes.

On CUDA, relu(max_pool2d(x, 2) + bias) is one Triton kernel forward and one backward. Torch's own operations make several
passes over the largest tensors of the network. The results are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from egalitarian.lab.config import SpecError, setting
from egalitarian.lab.problems.models import Model, Parameters, linear, torch_layer
from egalitarian.lab.problems.tasks import Task, stream

KERNEL = 3
BLOCK = 1024
LAST = torch.channels_last


@dataclass(frozen=True, kw_only=True)
class CNN(Model, kind="cnn"):
    """3 x 3 convolutions, each with ReLU and 2 x 2 max pooling, then W2 relu(W1 x + b1) + b2; initialised as in torch."""

    channels: tuple[int, ...] = setting(least=1)
    """Output channels of the convolutions."""
    width: int = setting(least=1)
    """Width of the hidden layer."""

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        channels, pixels = self._below(task)
        draw = stream(seed, "init")
        start: dict[str, Tensor] = {}
        for index, above in enumerate(self.channels):
            start |= torch_layer(f"conv.{index}", (above, channels, KERNEL, KERNEL), draw)
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
        """Convolutions network by network, in channels-last order; grouped convolutions are slower."""
        images = list(channels_last(inputs))
        for layer in self._convolutions:
            weights = channels_last(parameters[f"{layer}.weight"])
            biases = parameters[f"{layer}.bias"].unbind()
            both = zip(images, weights, biases, strict=True)
            images = [pooled(F.conv2d(own, weight, padding=KERNEL // 2), bias) for own, weight, bias in both]
        values = torch.stack([own.flatten(1) for own in images])
        return linear("output", parameters, linear("hidden", parameters, values).relu_())

    @property
    def _convolutions(self) -> list[str]:
        return [f"conv.{index}" for index in range(len(self.channels))]

    def _below(self, task: Task) -> tuple[int, int]:
        """The image's channels, and the pixels left after the convolutions."""
        if not task.image:
            raise SpecError(f"task must be of images for model 'cnn', got {task.kind!r}; use 'cifar-10', or model 'layers'")
        channels, height, width = task.image
        left = (height >> len(self.channels)) * (width >> len(self.channels))
        if not left:
            raise SpecError(
                f"channels must leave at least a pixel of {height} x {width}, got {len(self.channels)}; take some out"
            )
        return channels, left


def channels_last(images: Tensor) -> tuple[Tensor, ...]:
    """Each network's images, of (seeds, points, channels, height, width); channels last on a GPU, where that is faster."""
    if images.device.type != "cuda":
        return images.unbind()
    return images.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).unbind()


def pooled(x: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(x, 2) + bias) of images (points, channels, height, width)."""
    even = x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
    if even and x.device.type == "cuda" and x.is_contiguous(memory_format=LAST) and has_kernels(x.device):
        values: Tensor = _Pooled.apply(x, bias)  # type: ignore[no-untyped-call]
        return values
    return F.relu(F.max_pool2d(x, 2) + bias[:, None, None])


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from egalitarian.lab.problems.pooling_triton import forward_kernel

        points, channels, height, width = x.shape
        y = torch.empty((points, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=LAST)
        chosen = torch.empty_like(y, dtype=torch.int8)
        with torch.cuda.device(x.device):
            forward_kernel[grid(y)](x, bias, y, chosen, height // 2, width // 2, channels, y.numel(), BLOCK)
        ctx.save_for_backward(chosen)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        from egalitarian.lab.problems.pooling_triton import backward_kernel

        (chosen,) = ctx.saved_tensors
        above = torch.where(chosen >= 0, above, 0).contiguous(memory_format=LAST)
        points, channels, rows, columns = above.shape
        x = torch.empty(
            (points, channels, 2 * rows, 2 * columns), dtype=above.dtype, device=above.device, memory_format=LAST
        )
        with torch.cuda.device(x.device):
            backward_kernel[grid(above)](above, chosen, x, rows, columns, channels, above.numel(), BLOCK)
        return x, above.sum((0, 2, 3))


def grid(y: Tensor) -> tuple[int]:
    return (-(-y.numel() // BLOCK),)


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels run on this device; tried once per process."""
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode
            x = torch.zeros(1, 1, 2, 2, device=device, requires_grad=True)
            _Pooled.apply(x, torch.ones(1, device=device)).sum().backward()  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no Triton, or no compiler for it
        return False
    return True
