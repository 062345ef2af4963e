"""Networks for images and sequences: a convolutional network, and a transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from egalitarian.lab.config import SpecError, setting
from egalitarian.lab.problems.models import Model, Parameters, initial, linear, torch_layer
from egalitarian.lab.problems.tasks import Task, stream

KERNEL = 3
"""Height and width of a convolution's filters."""
BLOCK = 1024
"""Outputs that one program of a pooling kernel computes."""
LAST = torch.channels_last
EXPANSION = 4
"""Width of a transformer block's hidden layer, over the width of the residual stream."""


@dataclass(frozen=True, kw_only=True)
class CNN(Model, kind="cnn"):
    """Blocks of 3 x 3 convolutions with ReLU, each with 2 x 2 max pooling at its end, then hidden layers with ReLU, then a
    linear one; initialised as in torch."""

    channels: tuple[int, ...] = setting(least=1)
    """Output channels of the convolutions."""
    block: int = setting(1, least=1)
    """Convolutions in a block."""
    dropout: float = setting(0.0, least=0, below=1)
    """The share of channels that are set to 0 at the end of a block in training, as by `nn.Dropout2d`."""
    width: int = setting(least=1)
    """Width of the hidden layers."""
    depth: int = setting(1, least=1)
    """Number of hidden layers."""
    hidden: Literal["torch", "orthogonal"] = setting("torch")
    """Start of the hidden layers: as in torch, or orthogonal times the root of 2, with biases 0."""
    filters: Literal["together", "apart"] = setting("together")
    """Together: a convolution's weight is one parameter, and so one matrix of out x (in * 9). Apart: it is a parameter for
    every output channel, and so as many matrices of in x 9. The network is the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.channels) % self.block:
            raise SpecError(f"block must divide the {len(self.channels)} convolutions, got {self.block}; change channels")

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        channels, pixels = self._below(task)
        draw = stream(seed, "init")
        start: dict[str, Tensor] = {}
        for index, above in enumerate(self.channels):
            layer = torch_layer(f"conv.{index}", (above, channels, KERNEL, KERNEL), draw)
            if self.filters == "apart":
                whole = layer.pop(f"conv.{index}.weight")
                start |= dict(zip(self._filters(index), whole.unbind(), strict=True))
            start |= layer
            channels = above
        features = channels * pixels
        for name in self._hidden:
            start |= self._start_hidden(name, (self.width, features), draw)
            features = self.width
        return start | torch_layer("output", (task.outputs, self.width), draw)

    def _start_hidden(self, name: str, shape: tuple[int, int], draw: torch.Generator) -> dict[str, Tensor]:
        if self.hidden == "torch":
            return torch_layer(name, shape, draw)
        weight = torch.nn.init.orthogonal_(torch.empty(shape), math.sqrt(2), generator=draw)
        return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(shape[0])}

    def one(self, parameters: Parameters, inputs: Tensor, masks: Tensor | None = None) -> Tensor:
        for index in range(len(self.channels)):
            weight, bias = self._weight(parameters, index), parameters[f"conv.{index}.bias"]
            inputs = F.relu(F.conv2d(inputs, weight, bias, padding=KERNEL // 2))
            if self._ends_block(index):
                inputs = F.max_pool2d(inputs, 2)
                inputs = inputs if masks is None else inputs * self._scaled(masks, index, inputs.dtype)
        values = inputs.flatten(1)
        for name in self._hidden:
            values = F.relu(F.linear(values, parameters[f"{name}.weight"], parameters[f"{name}.bias"]))
        return F.linear(values, parameters["output.weight"], parameters["output.bias"])

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        return self._outputs(parameters, inputs, None)

    def masks(self, points: int, draw: torch.Generator) -> Tensor | None:
        """Of all blocks, one after the other: (points, channels)."""
        if not self.dropout:
            return None
        return torch.rand(points, sum(self.channels[self.block - 1 :: self.block]), generator=draw) >= self.dropout

    def forward_masked(self, parameters: Parameters, inputs: Tensor, masks: Tensor) -> Tensor:
        return self._outputs(parameters, inputs, masks)

    def _outputs(self, parameters: Parameters, inputs: Tensor, masks: Tensor | None) -> Tensor:
        """Convolutions network by network, in channels-last order; grouped convolutions are slower."""
        images = list(channels_last(inputs))
        for index in range(len(self.channels)):
            weights = channels_last(self._weight(parameters, index))
            biases = parameters[f"conv.{index}.bias"].unbind()
            both = zip(images, weights, biases, strict=True)
            if not self._ends_block(index):
                images = [F.relu(F.conv2d(own, weight, bias, padding=KERNEL // 2)) for own, weight, bias in both]
                continue
            images = [pooled(F.conv2d(own, weight, padding=KERNEL // 2), bias) for own, weight, bias in both]
            if masks is not None:
                scaled = self._scaled(masks, index, inputs.dtype)
                images = [own * kept for own, kept in zip(images, scaled, strict=True)]
        values = torch.stack([own.flatten(1) for own in images])
        for name in self._hidden:
            values = linear(name, parameters, values).relu_()
        return linear("output", parameters, values)

    def _ends_block(self, index: int) -> bool:
        return (index + 1) % self.block == 0

    def _scaled(self, masks: Tensor, index: int, dtype: torch.dtype) -> Tensor:
        """What the images after a block are multiplied by, (..., points, channels, 1, 1)."""
        before = sum(self.channels[self.block - 1 : index : self.block])
        own = masks.narrow(-1, before, self.channels[index])
        return own.to(dtype).div(1 - self.dropout)[..., None, None]

    def _weight(self, parameters: Parameters, index: int) -> Tensor:
        """Of a convolution, (..., out, in, 3, 3)."""
        if self.filters == "apart":
            return torch.stack([parameters[name] for name in self._filters(index)], -4)
        return parameters[f"conv.{index}.weight"]

    def _filters(self, index: int) -> list[str]:
        return [f"conv.{index}.{channel}.weight" for channel in range(self.channels[index])]

    @property
    def _hidden(self) -> list[str]:
        return ["hidden", *(f"hidden.{index}" for index in range(1, self.depth))]

    def _below(self, task: Task) -> tuple[int, int]:
        """The image's channels, and the pixels left after the convolutions."""
        if not task.image:
            raise SpecError(f"task must be of images for model 'cnn', got {task.kind!r}; use 'cifar-10', or model 'layers'")
        channels, height, width = task.image
        blocks = len(self.channels) // self.block
        left = (height >> blocks) * (width >> blocks)
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
    """`pooled` by two Triton kernels, which keep the index of each maximum instead of the images."""

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
    """How many programs of a pooling kernel compute these outputs."""
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


@dataclass(frozen=True, kw_only=True)
class Transformer(Model, kind="transformer"):
    """x = ln1(x), then x + attention(x), then x + down(gelu(up(ln2(x)))): the first norm replaces the residual stream."""

    depth: int = setting(least=1)
    width: int = setting(least=1)
    heads: int = setting(least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SpecError(f"heads must divide width = {self.width}, got {self.heads}; every head has an equal share")

    def start(self, task: Task, seed: int) -> dict[str, Tensor]:
        if not task.tokens:
            raise SpecError(f"task must be of tokens for model 'transformer', got {task.kind!r}; use 'modular-sequence'")
        draw = stream(seed, "init")
        start = {
            "tokens.weight": torch.empty(task.features, self.width).normal_(generator=draw),
            "positions.weight": torch.empty(task.tokens, self.width).normal_(generator=draw),
        }
        for block in self._blocks:
            start |= self._block(block, draw)
        head = initial("torch", (task.outputs, self.width), self.width, draw)
        return {**start, **self._norm("norm"), "head.weight": head}

    def _block(self, name: str, draw: torch.Generator) -> dict[str, Tensor]:
        """One block, initialised as in torch: `nn.MultiheadAttention` draws q, k and v as one matrix."""
        width = self.width
        bound = math.sqrt(6 / (3 * width + width))
        return {
            **self._norm(f"{name}.norm1"),
            f"{name}.attention.weight": torch.empty(3 * width, width).uniform_(-bound, bound, generator=draw),
            f"{name}.attention.bias": torch.zeros(3 * width),
            f"{name}.mix.weight": initial("torch", (width, width), width, draw),
            f"{name}.mix.bias": torch.zeros(width),
            **self._norm(f"{name}.norm2"),
            **torch_layer(f"{name}.up", (EXPANSION * width, width), draw),
            **torch_layer(f"{name}.down", (width, EXPANSION * width), draw),
        }

    def _norm(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": torch.ones(self.width), f"{name}.bias": torch.zeros(self.width)}

    @property
    def _blocks(self) -> list[str]:
        return [f"blocks.{index}" for index in range(self.depth)]

    def one(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        def layer(name: str, values: Tensor) -> Tensor:
            return F.linear(values, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        def norm(name: str, values: Tensor) -> Tensor:
            return F.layer_norm(values, (self.width,), parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        values = F.embedding(inputs, parameters["tokens.weight"]) + parameters["positions.weight"]
        for block in self._blocks:
            values = norm(f"{block}.norm1", values)
            values = values + layer(f"{block}.mix", self._attend(layer(f"{block}.attention", values)))
            inner = F.gelu(layer(f"{block}.up", norm(f"{block}.norm2", values)))
            values = values + layer(f"{block}.down", inner)
        return F.linear(norm("norm", values[:, -1]), parameters["head.weight"])

    def _attend(self, projected: Tensor) -> Tensor:
        """Every head's attention, from (points, tokens, 3 width)."""
        points, tokens, _ = projected.shape
        query, key, value = projected.reshape(points, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        return attended(query, key, value).transpose(1, 2).reshape(points, tokens, self.width)

    def forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """A batch of networks, with values (seeds, points * tokens, width). Past the last block's keys and values, only the
        last token is computed, since only its logits are read."""
        seeds, points, tokens = inputs.shape
        values = self._embedded(parameters, inputs)
        for block in self._blocks:
            values = norm(f"{block}.norm1", parameters, values)
            projected = linear(f"{block}.attention", parameters, values)
            projected = projected.view(seeds * points, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = projected.unbind()
            if block == self._blocks[-1]:
                last = attended(query[:, :, -1:], key, value)
                values = values.view(seeds, points, tokens, self.width)[:, :, -1]
                mixed = last.reshape(seeds, points, self.width)
            else:
                seen = attended(query, key, value)
                mixed = seen.transpose(1, 2).reshape(values.shape)
            values = values + linear(f"{block}.mix", parameters, mixed)
            inner = F.gelu(linear(f"{block}.up", parameters, norm(f"{block}.norm2", parameters, values)))
            values = values + linear(f"{block}.down", parameters, inner)
        return torch.bmm(norm("norm", parameters, values), parameters["head.weight"].mT)

    def reading(self, parameters: Parameters) -> Tensor:
        return parameters["tokens.weight"].mT

    def _embedded(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """One table for all networks' tokens: a lookup has a deterministic backward, tensor indexing does not."""
        table, positions = parameters["tokens.weight"], parameters["positions.weight"]
        offsets = table.shape[1] * torch.arange(len(table), device=inputs.device)[:, None, None]
        return (F.embedding(inputs + offsets, table.flatten(0, 1)) + positions[:, None]).flatten(1, 2)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention, (..., tokens, width); the queries are those of the last tokens.

    Written out: torch's fused kernels are made for long sequences, and are slower for a few tokens.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    tokens = key.shape[-2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=key.device).triu(1)[-query.shape[-2] :]
    return torch.softmax(scores.masked_fill(later, -math.inf), -1) @ value


def norm(layer: str, parameters: Parameters, values: Tensor) -> Tensor:
    """Layer normalisation for a batch of networks: values are (seeds, points, width)."""
    weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
    return torch.addcmul(bias[:, None], F.layer_norm(values, values.shape[-1:]), weight[:, None])
