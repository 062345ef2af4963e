"""A small convolutional network: convolutions that halve the image, one hidden layer, classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config.schema import SpecError, setting
from egalitarian.lab.problems.models.base import Model, Parameters, linear, torch_layer
from egalitarian.lab.problems.models.pooling import pooled
from egalitarian.lab.problems.tasks import Task, stream

KERNEL = 3


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
        """Convolutions network by network, in channels-last order: in groups they are slower."""
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


def channels_last(images: Tensor) -> tuple[Tensor, ...]:
    """The elements of a stack of images, (seeds, points, channels, height, width), in the order that a GPU likes."""
    if images.device.type != "cuda":
        return images.unbind()
    return images.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).unbind()
