"""How a parameter is spread over ranks: which piece of it each rank holds.

A DTensor says so by its mesh and placements. The parameters of a DistributedDataParallel are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any
"""A `torch.distributed.ProcessGroup`, which some builds of torch do not have."""

_groups: WeakKeyDictionary[Group, dict[tuple[int, ...], Group]] = WeakKeyDictionary()
"""Groups over several axes of a mesh, by their ranks. They end with the world that they are part of."""


@dataclass(frozen=True)
class Piece:
    """A box inside a tensor: its first index and its length along every axis."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    def of(self, whole: Tensor) -> Tensor:
        """This piece of a whole tensor, as a view."""
        for axis, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            whole = whole.narrow(axis, start, size)
        return whole


@dataclass(frozen=True, eq=False)
class Spread:
    """The ranks that hold one parameter together, and the piece of each."""

    group: Group
    rank: int
    """Of this process, within the group."""
    pieces: tuple[Piece, ...]
    """By rank within the group."""
    device: torch.device
    """Where collectives expect their tensors."""
    mesh: str
    """The ranks, as `print(plan)` shows them."""
    agreeing: tuple[Group, ...]
    """Groups that, one after the other, reach all ranks with this parameter, also those with other copies of it."""

    @property
    def ranks(self) -> int:
        return len(self.pieces)

    @property
    def mine(self) -> Piece:
        """The piece of this rank."""
        return self.pieces[self.rank]

    @cached_property
    def copied(self) -> bool:
        """Whether every rank holds the whole parameter."""
        return all(piece == self.pieces[0] for piece in self.pieces)


def is_dtensor(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: its shard of a DTensor, any other tensor as it is."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def replicated(shape: Sequence[int], group: Group, device: torch.device) -> Spread:
    """The spread of a parameter that every rank of a group holds as a whole."""
    ranks = dist.get_world_size(group)
    whole = Piece((0,) * len(shape), tuple(shape))
    return Spread(group, dist.get_rank(group), (whole,) * ranks, device, f"{ranks} replicas", (group,))


def spread_of(parameter: Any) -> Spread:
    """The spread of a DTensor.

    Along axes of the mesh that hold copies, as the first axis of HSDP does, every copy has a group of its own. If all axes
    hold copies, their ranks are one group.
    """
    mesh, placements, shape = parameter.device_mesh, parameter.placements, tuple(parameter.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"the mesh of a parameter must have this rank, got {mesh} on rank {dist.get_rank()}; leave it out")
    axes = tuple(axis for axis, placement in enumerate(placements) if not placement.is_replicate())
    if any((mesh.mesh.diff(dim=axis) < 0).any() for axis in axes):  # a group sorts its ranks
        raise NotImplementedError(
            f"a mesh must number its ranks upwards along the axes that divide a parameter, got {mesh.mesh.tolist()}; build "
            f"it with init_device_mesh"
        )
    group = _group(mesh, axes or tuple(range(mesh.ndim)), coordinate)
    pieces = tuple(
        _piece(shape, mesh.shape, placements, (mesh.mesh == member).nonzero()[0].tolist())
        for member in dist.get_process_group_ranks(group)
    )
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    text = " x ".join(f"{name} {size}".strip() for name, size in zip(names, mesh.shape, strict=True))
    device = (
        torch.device("cuda", torch.cuda.current_device()) if mesh.device_type == "cuda" else torch.device(mesh.device_type)
    )
    agreeing = tuple(mesh.get_group(axis) for axis in range(mesh.ndim))
    spread = Spread(group, dist.get_rank(group), pieces, device, text, agreeing)
    if spread.mine.sizes != tuple(local(parameter).shape):
        raise NotImplementedError(
            f"a DTensor must hold the shard that its placements name, got one of shape {tuple(local(parameter).shape)} "
            f"instead of {spread.mine.sizes} for {placements}; exclude it"
        )
    return spread


def _group(mesh: Any, axes: tuple[int, ...], coordinate: Sequence[int]) -> Group:
    """The group of all ranks that differ from this one along these axes of the mesh alone."""
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    here = tuple(slice(None) if axis in axes else index for axis, index in enumerate(coordinate))
    ranks = sorted(mesh.mesh[here].flatten().tolist())
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    known = _groups.setdefault(dist.group.WORLD, {})
    if tuple(ranks) not in known:
        known[tuple(ranks)] = dist.new_group(ranks, use_local_synchronization=True)
    return known[tuple(ranks)]


def _piece(shape: Sequence[int], sizes: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int]) -> Piece:
    """What the rank at a coordinate of the mesh holds.

    Axes of the mesh divide one after the other, each what the one before has left. An axis with a strided placement, as
    FSDP's next to tensor parallelism, comes after those to its right.
    """
    starts, lengths = [0] * len(shape), list(shape)
    strided = [axis for axis, placement in enumerate(placements) if hasattr(placement, "split_factor")]
    plain = [axis for axis, each in enumerate(placements) if axis not in strided and not each.is_replicate()]
    if any(left < axis and placements[left].dim == placements[axis].dim for axis in strided for left in plain):
        raise NotImplementedError(
            f"a DTensor must be divided by tensor parallelism after FSDP, got {placements}; exclude it"
        )
    for axis in [*plain, *reversed(strided)]:
        dim = placements[axis].dim % len(shape)
        size = -(-lengths[dim] // sizes[axis])  # as torch.chunk: the last shards may be smaller, or empty
        first = min(size * coordinate[axis], lengths[dim])
        starts[dim], lengths[dim] = starts[dim] + first, min(size, lengths[dim] - first)
    return Piece(tuple(starts), tuple(lengths))
