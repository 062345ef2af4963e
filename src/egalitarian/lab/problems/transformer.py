"""The decoder of the Grokfast code, which the paper uses: learned positions, causal attention, logits of the last token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config import SpecError, setting
from egalitarian.lab.problems.models import Model, Parameters, initial, linear, torch_layer
from egalitarian.lab.problems.tasks import Task, stream

EXPANSION = 4
"""Width of a block's hidden layer, over the width of the residual stream."""


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
