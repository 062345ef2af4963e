"""Which gradients go down the chain side by side, so that their matrices of one shape can share one call of a kernel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from egalitarian.select.plan import Entry

Gradient = tuple[Entry, Tensor]

SHARED_ENTRIES: dict[str, int] = {"cuda": 2**24}
"""By type of device, how many entries gradients that go side by side may have together. On CUDA as many as one matrix of
4096 x 4096: enough to fill a large card, and no more memory than that matrix would take by itself. On other devices each
goes alone: LAPACK takes a batch one by one, so there would be more memory and nothing gained."""


def side_by_side(gradients: Iterable[Gradient]) -> list[list[Gradient]]:
    """The gradients in groups with the same shapes of matrices, dtype and device, that `fit`.

    Looks at shapes alone. Each group is in the order of the gradients, and so are the first ones of the groups.
    """
    groups: list[list[Gradient]] = []
    last: dict[Hashable, tuple[list[Gradient], int]] = {}  # of each kind, and the entries that there is room for
    for entry, grad in gradients:
        kind = frozenset((target.rows, target.columns) for target in entry.targets), grad.dtype, grad.device
        group, room = last.get(kind, ([], 0))
        if not group or grad.numel() > room:
            group, room = [], _room(grad)
            groups.append(group)
        group.append((entry, grad))
        last[kind] = group, room - grad.numel()
    return groups


def fit(tensors: Sequence[Tensor]) -> bool:
    """Whether these, all on one device, have no more than `SHARED_ENTRIES` together."""
    return sum(tensor.numel() for tensor in tensors) <= _room(tensors[0])


def _room(tensor: Tensor) -> int:
    return SHARED_ENTRIES.get(tensor.device.type, 0)


def joined(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices and stacks of them, all of one shape (m, n), as one batch (k, m, n); a single one as it is."""
    if len(matrices) == 1:
        return matrices[0]
    return torch.cat([G.reshape(-1, *G.shape[-2:]) for G in matrices])


def parted(batch: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `joined`: views of the batch, each in the shape of its like."""
    if len(like) == 1:
        return [batch]
    parts = torch.split_with_sizes(batch, [G.shape[:-2].numel() for G in like])
    return [part.reshape(G.shape) for part, G in zip(parts, like, strict=True)]
