"""What all ranks must agree on: which gradients are finite, and whether EGD is on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from egalitarian.apply import refuse_nonfinite
from egalitarian.distributed.owners import Member
from egalitarian.distributed.spread import Group, Spread


def of_the_first(values: Sequence[Tensor], groups: Sequence[Group], device: torch.device) -> list[Tensor]:
    """The values of the first rank, on every rank. The groups reach all ranks, one after the other."""
    packed = torch.cat([value.reshape(-1).to(device, torch.int64) for value in values])
    for group in groups:
        dist.broadcast(packed, dist.get_global_rank(group, 0), group)
    parts = torch.split_with_sizes(packed.cpu(), [value.numel() for value in values])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, values, strict=True)]


def all_finite(members: Sequence[Member], pieces: Sequence[Tensor]) -> list[Tensor]:
    """Whether the whole gradient of each member is finite: a flag each, on the device of its piece."""
    flags = [torch.isfinite(piece).all() for piece in pieces]
    for spread, indices in _groups(members).items():
        packed = torch.stack([flags[index].to(spread.device, torch.int32) for index in indices])
        dist.all_reduce(packed, dist.ReduceOp.MIN, group=spread.group)
        for index, flag in zip(indices, packed.bool(), strict=True):
            flags[index] = flag.to(pieces[index].device)
    return flags


def refuse_nonfinite_together(members: Sequence[Member], pieces: Sequence[Tensor]) -> None:
    """Raises on every rank if a gradient is not finite on one of them."""
    counts = [int((~torch.isfinite(piece)).sum()) for piece in pieces]
    for spread, indices in _groups(members).items():
        packed = torch.tensor([counts[index] for index in indices], device=spread.device)
        dist.all_reduce(packed, group=spread.group)
        for index, count in zip(indices, packed.tolist(), strict=True):
            counts[index] = count
    for member, count in zip(members, counts, strict=True):
        refuse_nonfinite(member.entry, count)


def _groups(members: Sequence[Member]) -> dict[Spread, list[int]]:
    """The members that are in pieces, by group. The ranks hold equal copies of the others."""
    groups: dict[int, tuple[Spread, list[int]]] = {}
    for index, member in enumerate(members):
        if not member.spread.copied:
            groups.setdefault(id(member.spread.group), (member.spread, []))[1].append(index)
    return dict(groups.values())
