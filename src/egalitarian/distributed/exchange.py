"""Shards to the owners of their matrices, and the results back: two collectives per bucket, without waiting in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from egalitarian.distributed.owners import Member

BUCKET = 2**24
"""The most elements in a bucket of each owner, unless one parameter has more. While one bucket is computed, others move."""
TransformWholes = Callable[[int, Sequence[tuple[Member, Tensor]]], None]
"""Transforms the whole gradients of a bucket in place, given the bucket's number."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters of one group of ranks and one dtype, whose pieces move together."""

    number: int
    indices: tuple[int, ...]
    """Where its members are among all."""
    members: tuple[Member, ...]

    @property
    def owned(self) -> list[Member]:
        return [member for member in self.members if member.is_mine]


def buckets(members: Sequence[Member], pieces: Sequence[Tensor]) -> list[Bucket]:
    """The members with an owner, in buckets. All ranks find the same, since all have the same members.

    Each bucket has members of all owners, so that no link waits while one owner receives.
    """
    found: dict[tuple[int, torch.dtype, int], list[int]] = {}
    last: dict[tuple[int, torch.dtype, int], tuple[int, int]] = {}  # of each owner: its bucket, and what is in there
    for index, (member, piece) in enumerate(zip(members, pieces, strict=True)):
        if member.owner is not None:
            group, dtype = id(member.spread.group), piece.dtype
            number, filled = last.get((group, dtype, member.owner), (0, 0))
            if filled and filled + member.entry.parameter.numel() > BUCKET:
                number, filled = number + 1, 0
            found.setdefault((group, dtype, number), []).append(index)
            last[group, dtype, member.owner] = number, filled + member.entry.parameter.numel()
    return [
        Bucket(number, tuple(indices), tuple(members[index] for index in indices))
        for number, indices in enumerate(found.values())
    ]


def exchanged(found: Sequence[Bucket], pieces: Sequence[Tensor], transform: TransformWholes) -> dict[int, Tensor]:
    """The transformed piece of every member in a bucket, by its index.

    Args:
        found: the buckets.
        pieces: what this rank holds of every member's gradient.
        transform: what owners do with whole gradients.
    """
    there = [_to_owners(bucket, [pieces[index] for index in bucket.indices]) for bucket in found]
    back = []
    for bucket, moving in zip(found, there, strict=True):
        wholes = _assembled(bucket, [pieces[index] for index in bucket.indices], moving)
        transform(bucket.number, [(member, wholes[member]) for member in bucket.owned])
        back.append((_from_owners(bucket, wholes, pieces[bucket.indices[0]].dtype), wholes))
    results: dict[int, Tensor] = {}
    for bucket, (moving, wholes) in zip(found, back, strict=True):
        parts = moving.wait()
        for index, member in zip(bucket.indices, bucket.members, strict=True):
            mine = member.spread.mine
            assert member.owner is not None
            part = mine.of(wholes[member]) if member.is_mine else parts[member.owner].pop(0).view(mine.sizes)
            results[index] = part.to(pieces[index].device)
    return results


@dataclass(frozen=True, eq=False)
class _Moving:
    """A collective that may still run, and how to read what it brings."""

    work: Any
    received: Tensor
    sizes: Sequence[Sequence[int]]
    """Elements of every part, by the rank that sends it."""
    sent: Tensor | None = None
    """Kept alive until it has been sent."""

    def wait(self) -> list[list[Tensor]]:
        """The parts, by the rank that sent them."""
        if self.work is not None:
            self.work.wait()
        flat = iter(torch.split_with_sizes(self.received, [size for sizes in self.sizes for size in sizes]))
        return [[next(flat) for _ in sizes] for sizes in self.sizes]


def _to_owners(bucket: Bucket, pieces: Sequence[Tensor]) -> _Moving:
    """Sends this rank's pieces to the owners. What every rank holds as a whole does not move."""
    spread = bucket.members[0].spread
    apart = [(member, piece) for member, piece in zip(bucket.members, pieces, strict=True) if not member.spread.copied]
    sent = [
        [piece for member, piece in apart if member.owner == rank and rank != spread.rank] for rank in range(spread.ranks)
    ]
    expected = [
        [member.spread.pieces[rank].numel for member, _ in apart if member.is_mine and rank != spread.rank]
        for rank in range(spread.ranks)
    ]
    return _moved(bucket, sent, expected, pieces[0].dtype, moves=bool(apart))


def _from_owners(bucket: Bucket, wholes: dict[Member, Tensor], dtype: torch.dtype) -> _Moving:
    """Sends every rank its pieces of the matrices that this rank owns."""
    spread = bucket.members[0].spread
    sent = [
        [member.spread.pieces[rank].of(wholes[member]) for member in bucket.owned if rank != spread.rank]
        for rank in range(spread.ranks)
    ]
    expected = [
        [member.spread.mine.numel for member in bucket.members if member.owner == rank and rank != spread.rank]
        for rank in range(spread.ranks)
    ]
    return _moved(bucket, sent, expected, dtype, moves=True)


def _moved(
    bucket: Bucket, sent: Sequence[Sequence[Tensor]], expected: Sequence[Sequence[int]], dtype: torch.dtype, moves: bool
) -> _Moving:
    spread = bucket.members[0].spread
    counts, flat = [sum(sizes) for sizes in expected], [piece.reshape(-1) for pieces in sent for piece in pieces]
    received = torch.empty(sum(counts), dtype=dtype, device=spread.device)
    if not moves or spread.ranks == 1:
        return _Moving(None, received, expected)
    packed = torch.cat(flat).to(spread.device) if flat else received.new_empty(0)
    shares = [sum(piece.numel() for piece in pieces) for pieces in sent]
    work = dist.all_to_all_single(received, packed, counts, shares, group=spread.group, async_op=True)
    return _Moving(work, received, expected, packed)


def _assembled(bucket: Bucket, pieces: Sequence[Tensor], moving: _Moving) -> dict[Member, Tensor]:
    """The whole gradients of the matrices that this rank owns."""
    parts = moving.wait()
    wholes: dict[Member, Tensor] = {}
    for member, piece in zip(bucket.members, pieces, strict=True):
        if not member.is_mine:
            continue
        spread = member.spread
        whole = torch.empty(member.entry.shape, dtype=piece.dtype, device=spread.device)
        spread.mine.of(whole).copy_(piece)
        if not spread.copied:
            for rank in range(spread.ranks):
                if rank != spread.rank:
                    box = spread.pieces[rank]
                    box.of(whole).copy_(parts[rank].pop(0).view(box.sizes))
        wholes[member] = whole
    return wholes
