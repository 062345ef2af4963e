"""Which rank computes which matrices, and whether dividing them pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from egalitarian.distributed.spread import Spread
from egalitarian.select import Entry

Sharing = Literal["auto", "owners", "replicate"]


def check_sharing(shard: Sharing) -> None:
    if shard not in get_args(Sharing):
        raise ValueError(f"shard must be 'auto', 'owners' or 'replicate', got {shard!r}; 'auto' estimates which is faster")


@dataclass(frozen=True)
class Rates:
    """What a device and its links do in a second. Rough, since only the order of two estimates matters."""

    operations: float
    """Multiplications and additions of a matrix in the kernels of EGD."""
    near: float
    """Bytes that one rank sends if all ranks can be in one node."""
    far: float
    """Bytes that one rank sends between nodes."""
    start: float
    """Seconds before a collective moves its first byte."""


RATES = {"cuda": Rates(7e14, 3e11, 4e10, 1e-4), "cpu": Rates(2e10, 1e9, 1e9, 1e-3)}
"""By device type. On CUDA for the coarse tier, which large matrices get there."""
NODE = 8
"""Ranks that one node may have."""
OPERATIONS = 30
"""For one matrix (m, n) with m <= n, in units of m² n: five steps of a quintic, with three products each."""


@dataclass(frozen=True, eq=False)
class Member:
    """A parameter that several ranks hold, and the rank of their group that computes it."""

    entry: Entry
    spread: Spread
    owner: int | None
    """None: every rank computes it."""

    @property
    def is_mine(self) -> bool:
        return self.owner is None or self.owner == self.spread.rank

    @property
    def moved(self) -> int:
        """Elements that all ranks of the group send in one step, together."""
        size, spread = self.entry.parameter.numel(), self.spread
        if self.owner is None:
            return 0 if spread.copied else size * (spread.ranks - 1)
        there = 0 if spread.copied else size - spread.pieces[self.owner].numel
        back = sum(piece.numel for rank, piece in enumerate(spread.pieces) if rank != self.owner)
        return there + back


def cost(entry: Entry) -> int:
    """Of computing its matrices: m² n for each, with m the short side."""
    return sum(
        (target.stack or 1) * min(target.rows, target.columns) ** 2 * max(target.rows, target.columns)
        for target in entry.targets
    )


def longest_first(costs: Sequence[tuple[int, int]], ranks: int) -> list[int]:
    """An owner for each cost: the largest first, to the rank with the least so far. All ranks find the same.

    A cost is what counts, and then what decides between equal ones.
    """
    loads = [(0, 0)] * ranks
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: costs[index], reverse=True):
        owner = min(range(ranks), key=lambda rank: (loads[rank], rank))
        owners[index] = owner
        loads[owner] = (loads[owner][0] + costs[index][0], loads[owner][1] + costs[index][1])
    return owners


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: with owners, and where every rank computes everything."""

    computing: float
    moving: float
    everywhere: float

    @property
    def pays(self) -> bool:
        return self.computing + self.moving < self.everywhere

    def __str__(self) -> str:
        owners = f"{1e3 * self.computing:.2g} ms of computing and {1e3 * self.moving:.2g} ms of moving"
        return f"estimated {owners} with owners, {1e3 * self.everywhere:.2g} ms if every rank computes all"


def step_time(members: Sequence[Member]) -> StepTime:
    """For the parameters of one group, with owners. The rank with the most work counts, and the one that sends most."""
    spread = members[0].spread
    rates = RATES.get(spread.device.type, RATES["cuda"])
    link = rates.near if spread.ranks <= NODE else rates.far
    loads, sent, gathered = [0] * spread.ranks, [0] * spread.ranks, 0
    for member in members:
        size, owner = member.entry.parameter.element_size(), member.owner or 0
        loads[owner] += cost(member.entry)
        for rank, piece in enumerate(member.spread.pieces):
            if rank != owner:
                sent[owner] += piece.numel * size
                sent[rank] += 0 if spread.copied else piece.numel * size
        gathered += 0 if spread.copied else member.entry.parameter.numel() * size
    collectives = 1 if spread.copied else 2
    gathering = 0.0 if spread.copied else rates.start + gathered * (1 - 1 / spread.ranks) / link
    moving = collectives * rates.start + max(sent) / link
    seconds = OPERATIONS / rates.operations
    return StepTime(max(loads) * seconds, moving, sum(loads) * seconds + gathering)
