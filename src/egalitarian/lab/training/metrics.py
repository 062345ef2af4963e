"""Measures of a network: losses, accuracies, norms, the spectrum of its gradient, a sketch of its weights' displacement.

Every measure is one number per seed. It is computed from stacked tensors and never mixes seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config import CUT, SKETCH
from egalitarian.lab.problems import stream

CHUNK = {"cpu": 1024, "cuda": 1 << 16}
"""Points evaluated at once: on a CPU, as many as fit into its cache."""
ENTRIES = 1 << 26
"""The most input numbers evaluated at once, of all seeds together."""

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Outputs (seeds, points, outputs) and labels (seeds, points) to each seed's mean, (seeds,)."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
    return each.reshape(labels.shape).mean(1)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - labels).square().mean(1)


def one_hot_squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over points and outputs, like `nn.MSELoss`."""
    return (outputs - F.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)).square().mean((1, 2))


def stablemax_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with x + 1 (x >= 0) and 1 / (1 - x) (x < 0) in place of the exponential, in float64.

    From Prieto et al. 2025, "Grokking at the edge of numerical stability": where all is learnt, it does not round to zero.
    """
    x = outputs.double()
    grown = x.clamp(min=0) + 1 / (1 - torch.where(x < 0, x, 0))
    logs = torch.log(grown / grown.sum(-1, keepdim=True))
    return -logs.gather(-1, labels[..., None]).squeeze(-1).mean(1).to(outputs.dtype)


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.relu(1 - outputs.squeeze(-1) * labels).mean(1)


LOSSES: dict[str, LossFunction] = {
    "cross-entropy": cross_entropy,
    "stablemax-cross-entropy": stablemax_cross_entropy,
    "squared-error": squared_error,
    "one-hot-squared-error": one_hot_squared_error,
    "hinge": hinge,
}


def is_correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Whether each point is classified correctly: by the largest output, or by the sign of a single one."""
    if outputs.shape[-1] == 1:
        return outputs.squeeze(-1) * labels > 0
    return outputs.argmax(-1) == labels


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor], loss: LossFunction, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss, accuracy) of each seed over all its points, (seeds,) each, in float64."""
    points = labels.shape[1]
    total = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    count = torch.zeros_like(total)
    chunk = min(CHUNK.get(labels.device.type, points), max(1, ENTRIES // inputs[:, 0].numel()))
    for start in range(0, points, chunk):
        part = slice(start, min(start + chunk, points))
        outputs = forward(inputs[:, part])
        total += loss(outputs, labels[:, part]).double() * (part.stop - start)
        count += is_correct(outputs, labels[:, part]).sum(-1)
    return total / points, count / points


@torch.no_grad()
def singular_values(G: Tensor) -> Tensor:
    """Of each matrix of a stack (seeds, out, ...), as (seeds, min(m, n)), largest first, in float64.

    They come from the Gram matrix, with an error of about 1e-8 of the largest. `egalitarian.spectrum` is slower and exact.
    """
    X = G.flatten(2).to(torch.float64)
    finite = torch.isfinite(X).flatten(1).all(1)
    X = torch.where(finite[:, None, None], X, 0)
    gram = X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(-1)
    return torch.where(finite[:, None], values, math.nan)


def spectral_measures(values: Tensor) -> dict[str, Tensor]:
    """The extremes above the rounding noise, the number above it, and the effective rank (exp of the entropy)."""
    largest = values[:, 0]
    kept = values > CUT * largest[:, None]
    share = torch.where(kept, values, 0) / values.sum(-1, keepdim=True)
    return {
        "sigma_max": largest,
        "sigma_min": torch.where(kept, values, math.inf).amin(-1),
        "rank": kept.sum(-1),
        "effective_rank": torch.where(largest == 0, 0, torch.exp(-torch.xlogy(share, share).sum(-1))),
    }


@torch.no_grad()
def norms(parameters: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The norm of all parameters of a seed, and their distance from the start."""

    def norm(tensors: list[Tensor]) -> Tensor:
        return torch.stack([tensor.double().flatten(1).square().sum(1) for tensor in tensors]).sum(0).sqrt()

    away = [parameter - start[name] for name, parameter in parameters.items()]
    return {"weight_norm": norm(list(parameters.values())), "distance": norm(away)}


class Sketch:
    """A random linear map of all parameters to `SKETCH` numbers that preserves inner products (count sketch).

    Every entry is added, with a random sign, to a random bucket. The map is the same for every seed and method, so that
    runs can be compared.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        entries = sum(parameter[0].numel() for parameter in parameters.values())
        device = next(iter(parameters.values())).device
        draw = stream(0, "sketch", entries)
        self._bucket = torch.randint(0, SKETCH, (entries,), generator=draw).to(device)
        self._sign = torch.randint(0, 2, (entries,), generator=draw).mul_(2).sub_(1).to(device, torch.float64)

    @torch.no_grad()
    def __call__(self, parameters: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> Tensor:
        """The displacement from the start, sketched: (seeds, SKETCH)."""
        away = torch.cat([(value.double() - start[name]).flatten(1) for name, value in parameters.items()], 1)
        rows = [torch.bincount(self._bucket, row * self._sign, minlength=SKETCH) for row in away.unbind()]
        return torch.stack(rows).float()
