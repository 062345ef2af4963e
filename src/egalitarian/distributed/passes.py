"""One pass over gradients that several ranks hold: filters act on this rank's pieces, matrix transforms on whole matrices.

An owner gets the whole matrix and sends the pieces of the result back. With `"replicate"`, every rank gathers and
computes all: the slow twin, by DTensor's own collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

from egalitarian.apply import (
    Batches,
    Captures,
    PassSettings,
    State,
    check_gradient,
    filtered,
    gradient_dtype,
    prepared_gradient,
    replaced_gradient,
    start,
    transform_gradients,
    write_gradient,
)
from egalitarian.distributed.agreement import all_finite, refuse_nonfinite_together
from egalitarian.distributed.exchange import Bucket, buckets, exchanged
from egalitarian.distributed.owners import Member
from egalitarian.distributed.spread import is_dtensor, local, spread_of
from egalitarian.select import Entry
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Transform

Memory = Mapping[str, Tensor]


@dataclass(eq=False)
class _Links:
    """Consecutive matrix transforms of a chain, with what their calls on whole matrices keep."""

    chain: tuple[Transform, ...]
    capture: bool
    calls: dict[int, tuple[Batches, Captures]] = field(default_factory=dict)
    """By bucket; -1 without buckets."""

    def __call__(self, number: int, wholes: Sequence[tuple[Member, Tensor]], settings: PassSettings, step: int) -> None:
        """Transforms whole gradients in place."""
        if number not in self.calls:
            self.calls[number] = Batches(self.chain), Captures(self.chain, self.capture)
        plain = replace(settings, chain=self.chain, decay=None, grad_scale=None, on_nonfinite="keep", observe=None)
        pairs = [(member.entry, whole) for member, whole in wholes if whole.numel()]
        transform_gradients(pairs, self.calls[number][0], plain, State(step), self.calls[number][1])


class Passes:
    """Passes of one chain of transforms over the gradients of these members."""

    def __init__(self, chain: Sequence[Transform], capture: bool) -> None:
        self._chain = chain
        self._filters = any(isinstance(link, ElementwiseTransform) for link in chain)
        self._parts: list[_Links | list[tuple[int, ElementwiseTransform]]] = []
        for of_matrices, part in groupby(enumerate(chain), key=lambda pair: isinstance(pair[1], MatrixTransform)):
            links = list(part)
            self._parts.append(_Links(tuple(link for _, link in links), capture) if of_matrices else cast(list[Any], links))
        self._buckets: dict[tuple[Any, ...], list[Bucket]] = {}

    @property
    def captures(self) -> list[Captures]:
        return [captures for part in self._parts if isinstance(part, _Links) for _, captures in part.calls.values()]

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def __call__(self, members: Sequence[Member], settings: PassSettings, state: State) -> dict[str, Memory]:
        """Replaces the gradients by new ones. Returns the memories of their parameters."""
        members = [member for member in members if member.entry.parameter.grad is not None]
        grads = [_shard(member.entry.parameter) for member in members]
        for member, grad in zip(members, grads, strict=True):
            check_gradient(member.entry, grad, member.spread.mine.sizes, scaled=settings.grad_scale is not None)
        if settings.on_nonfinite == "raise":
            refuse_nonfinite_together(members, grads)
        prepared = [
            prepared_gradient(member.entry, grad, settings, local(member.entry.parameter))
            for member, grad in zip(members, grads, strict=True)
        ]
        if settings.observe is not None:
            _observe(members, prepared, settings)
        new = list(prepared)
        memories = [_remembered(each, grad, self._chain, state) for each, grad in zip(members, prepared, strict=True)]
        uses: Sequence[Tensor | None] = [None] * len(members)
        if settings.active is not False:
            if self._filters:
                uses = all_finite(members, prepared)
            for part in self._parts:
                if isinstance(part, _Links):
                    self._equalise(part, members, new, settings, state.step)
                else:
                    for index, link in part:
                        self._filter(index, link, members, new, memories, uses)
        for member, grad, result, before, use in zip(members, grads, new, prepared, uses, strict=True):
            if result is not grad:
                write_gradient(member.entry, grad, result, before, use, settings.grad_scale)
        return {
            member.entry.name: _kept(member.entry, memory)
            for member, memory in zip(members, memories, strict=True)
            if memory
        }

    def _equalise(
        self, links: _Links, members: Sequence[Member], new: list[Tensor], settings: PassSettings, step: int
    ) -> None:
        """Puts the matrices through the transforms: each at its owner, or on every rank."""
        taken = [index for index, member in enumerate(members) if member.entry.taken]
        chosen, pieces = [members[index] for index in taken], [new[index] for index in taken]
        key = tuple((member, piece.dtype) for member, piece in zip(chosen, pieces, strict=True))
        if key not in self._buckets:
            self._buckets[key] = buckets(chosen, pieces)
        results = exchanged(self._buckets[key], pieces, lambda number, wholes: links(number, wholes, settings, step))
        everywhere = [index for index, member in enumerate(chosen) if member.owner is None]
        wholes = [(chosen[index], _whole(chosen[index], pieces[index]).clone()) for index in everywhere]
        links(-1, wholes, settings, step)
        results |= {index: member.spread.mine.of(whole) for index, (member, whole) in zip(everywhere, wholes, strict=True)}
        for index, result in results.items():
            new[taken[index]] = result

    def _filter(
        self,
        index: int,
        link: ElementwiseTransform,
        members: Sequence[Member],
        new: list[Tensor],
        memories: list[Memory],
        uses: Sequence[Tensor | None],
    ) -> None:
        for position, member in enumerate(members):
            if link.acts_on(member.entry.parameter):
                name, memory, use = member.entry.name, memories[position], uses[position]
                new[position], memories[position] = filtered(link, index, name, new[position], memory, use)


def _shard(parameter: Any) -> Tensor:
    """This rank's piece of the gradient. A gradient with other placements than its parameter is brought to those."""
    grad = parameter.grad
    if is_dtensor(grad) and grad.placements != parameter.placements:
        grad = replaced_gradient(parameter, grad.redistribute(parameter.device_mesh, parameter.placements))
    return local(grad)


def _whole(member: Member, piece: Tensor) -> Tensor:
    """The whole gradient, on every rank, by DTensor's own collectives."""
    return piece if member.spread.copied else sharded(piece, member.entry.parameter).full_tensor()  # type: ignore[attr-defined]


def _observe(members: Sequence[Member], prepared: Sequence[Tensor], settings: PassSettings) -> None:
    """Passes every matrix to `observe`, on every rank."""
    assert settings.observe is not None
    for member, piece in zip(members, prepared, strict=True):
        if member.entry.taken:
            whole = _whole(member, piece)
            for target in member.entry.targets if whole.numel() else ():
                settings.observe(target.name, target.fold(whole))


# -- memories: in state, DTensors for parameters that are DTensors; in a pass, what this rank holds of them ----------------


def initial_memories(entries: Sequence[Entry], chain: Sequence[Transform]) -> dict[str, Memory]:
    """The memories of DTensors before the first step."""
    pieces = {
        entry: torch.empty_like(local(entry.parameter.detach()), dtype=gradient_dtype(entry.parameter)) for entry in entries
    }
    memories = {entry.name: _kept(entry, start(entry, chain, piece, None)) for entry, piece in pieces.items()}
    return {name: memory for name, memory in memories.items() if memory}


def _remembered(member: Member, piece: Tensor, chain: Sequence[Transform], state: State) -> Memory:
    known = state.tensors.get(member.entry.name)
    if known is None:
        return start(member.entry, chain, piece, None)
    return {key: local(value) for key, value in known.items()}


def _kept(entry: Entry, memory: Memory) -> Memory:
    """A pass's memory for the state: what has the shape of this rank's piece becomes a DTensor, counts stay plain."""
    parameter = entry.parameter
    if not is_dtensor(parameter):
        return memory
    shape = tuple(local(parameter).shape)
    return {
        key: sharded(value, parameter) if value.ndim >= len(shape) > 0 and value.shape[-len(shape) :] == shape else value
        for key, value in memory.items()
    }


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A loaded memory with the placements of the one that it replaces: whole, or this rank's piece. All ranks call it."""
    if is_dtensor(value) and is_dtensor(like) and _placement(value) == _placement(like):
        return value
    whole = value.full_tensor() if is_dtensor(value) else value  # type: ignore[attr-defined]
    return sharded(spread_of(like).mine.of(whole).clone(), like) if is_dtensor(like) else whole


def _placement(tensor: Any) -> tuple[Any, Any]:
    return tensor.device_mesh, tensor.placements


def sharded(piece: Tensor, like: Any) -> Tensor:
    """A DTensor with the placements of another one. The pieces may have more axes in front."""
    from torch.distributed.tensor import DTensor

    more = piece.ndim - like.ndim
    shape = (*piece.shape[:more], *like.shape)
    stride = torch.empty(shape, device="meta").stride()
    placements = [_shifted(placement, more) for placement in like.placements] if more else like.placements
    return DTensor.from_local(
        piece.contiguous(), like.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


def _shifted(placement: Any, axes: int) -> Any:
    """A placement for a tensor with that many more axes in front."""
    if placement.is_replicate():
        return placement
    split = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + axes, **split)
