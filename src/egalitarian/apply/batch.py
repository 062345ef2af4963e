"""Batches: gradients that go through the transforms together, so that their matrices of one shape share one call.

Batches depend on shapes, strides, dtypes and devices alone. They are built once, and again when other parameters have
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.select import Entry, Target
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Transform

Gradient = tuple[Entry, Tensor]
Call = tuple[tuple[int, Target], ...]
"""Matrices that one call takes: the index of the parameter in the batch, and the matrix."""

SHARED_ELEMENTS: dict[str, int] = {"cuda": 2**24}
"""The most elements of a batch, by device type. On CUDA as many as one matrix of 4096 x 4096 has: enough to fill a large
GPU, with the memory that such a matrix takes alone. On a CPU LAPACK computes a batch one by one, so that a batch would cost
memory and gain nothing: there every batch is one parameter."""
REMEMBERED = 32
"""Sets of gradients whose batches are cached: models with experts alternate between several. The last used stay."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Parameters whose matrices have the same shapes, dtype and device."""

    indices: tuple[int, ...]
    """Where its gradients are among all gradients of the step."""
    entries: tuple[Entry, ...]
    device: torch.device
    joint: tuple[Call, ...]
    """The calls of a transform that takes matrices of several parameters at once."""
    separate: tuple[Call, ...]
    """The calls of other transforms: one per matrix."""
    scopes: tuple[tuple[int, ...], ...]
    """For each filter of the chain, the indices of the parameters that it acts on; empty for other transforms."""
    filtered: bool
    """Whether the chain has a filter, whose memory must stay finite."""


class Batches:
    """The batches for one chain of transforms."""

    def __init__(self, chain: Sequence[Transform]) -> None:
        self._chain = chain
        self._shares = any(isinstance(link, MatrixTransform) and link.shares for link in chain)
        self._filters = any(isinstance(link, ElementwiseTransform) for link in chain)
        self._built: dict[Hashable, list[Batch]] = {}

    def of(self, gradients: Sequence[Gradient]) -> list[Batch]:
        """The batches for these gradients, in the order of their first members."""
        key = tuple([(entry, grad.dtype, grad.device, grad.stride(), grad.is_inference()) for entry, grad in gradients])
        found = self._built.pop(key, None) or self._build(gradients)
        self._built[key] = found  # the last used is the last
        if len(self._built) > REMEMBERED:
            del self._built[next(iter(self._built))]
        return found

    def _build(self, gradients: Sequence[Gradient]) -> list[Batch]:
        if not self._shares:
            return [self._batch([index], gradients) for index in range(len(gradients))]
        members: list[list[int]] = []
        open_: dict[Hashable, tuple[list[int], int]] = {}  # by kind: the last batch, and the elements it has room for
        for index, (entry, grad) in enumerate(gradients):
            kind = frozenset((target.rows, target.columns) for target in entry.targets), grad.dtype, grad.device
            batch, room = open_.get(kind, ([], 0))
            if not batch or grad.numel() > room:
                batch, room = [], most_elements(grad)
                members.append(batch)
            batch.append(index)
            open_[kind] = batch, room - grad.numel()
        return [self._batch(indices, gradients) for indices in members]

    def _batch(self, indices: Sequence[int], gradients: Sequence[Gradient]) -> Batch:
        chosen = [gradients[index] for index in indices]
        matrices = [
            (position, target)
            for position, (entry, grad) in enumerate(chosen)
            for target in entry.targets
            if grad.numel() and target.rows
        ]
        separate = tuple((matrix,) for matrix in matrices)
        fits = sum(grad.numel() for _, grad in chosen) <= most_elements(chosen[0][1])
        shapes: dict[tuple[int, int], list[tuple[int, Target]]] = {}
        for position, target in matrices:
            shapes.setdefault((target.rows, target.columns), []).append((position, target))
        scopes = tuple(
            tuple(position for position, (entry, _) in enumerate(chosen) if link.acts_on(entry.parameter))
            if isinstance(link, ElementwiseTransform)
            else ()
            for link in self._chain
        )
        joint = tuple(tuple(call) for call in shapes.values()) if fits else separate
        return Batch(
            tuple(indices), tuple(entry for entry, _ in chosen), chosen[0][1].device, joint, separate, scopes, self._filters
        )


def most_elements(tensor: Tensor) -> int:
    """How many elements a batch on this device may have; 0 if every parameter goes alone."""
    return SHARED_ELEMENTS.get(tensor.device.type, 0)


def joined(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices and stacks of them, all of one shape (m, n), as one batch (k, m, n)."""
    return torch.cat([G.reshape(-1, *G.shape[-2:]) for G in matrices])


def parted(batch: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inverse of `joined`: views of the batch, each in the shape of its counterpart in `like`."""
    parts = torch.split_with_sizes(batch, [math.prod(G.shape[:-2]) for G in like])
    return [part.reshape(G.shape) for part, G in zip(parts, like, strict=True)]
