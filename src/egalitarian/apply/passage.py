"""Passes gradients through a chain of transforms: several together, so that matrices of one shape share a call.

Nothing here writes to `p.grad`: a passage ends with the new gradient.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.apply.batch import fit, joined, parted
from egalitarian.kernels.polar import Precision, largest_entry
from egalitarian.select.plan import Entry, Target
from egalitarian.transforms.matrix import ElementwiseTransform, MatrixTransform, Memory, Site, Transform, beside


@dataclass(eq=False)
class Passage:
    """One gradient as it passes through the chain."""

    entry: Entry
    plain: Tensor
    """As the transforms are to see it."""
    new: Tensor
    """What has become of it so far."""
    memory: Mapping[str, Tensor]
    """By `"<place in the chain>.<what>"`."""
    keep: Tensor | None
    """Where the outcome is to be used; None: everywhere."""


def through_chain(passages: Sequence[Passage], chain: Sequence[Transform], step: int, compute: Precision | None) -> None:
    """Every transform on each of the gradients; the memories as they were where the outcome is not to be used."""
    for place, transform in enumerate(chain):
        if isinstance(transform, MatrixTransform):
            _equalize(passages, transform, Site("", step, compute or passages[0].plain.dtype))
        else:
            for passage in passages:
                if in_scope(transform, passage.entry):
                    _filter(passage, transform, f"{place}.")


def _equalize(passages: Sequence[Passage], transform: MatrixTransform, site: Site) -> None:
    """Puts every matrix through the transform: those of one shape in one call, where that may be shared."""
    shared = transform.shares and fit([passage.new for passage in passages])
    calls: dict[Hashable, list[tuple[Passage, Target]]] = {}
    for passage in passages:
        for target in passage.entry.targets:
            kind = (target.rows, target.columns, passage.new.dtype) if shared else target
            if passage.new.numel() and target.rows:
                calls.setdefault(kind, []).append((passage, target))
    outcomes: dict[Passage, Tensor] = {}
    for call in calls.values():
        matrices = [target.fold(passage.new) for passage, target in call]
        name = "" if call[1:] else call[0][1].name
        results = parted(_guarded(transform, joined(matrices), site._replace(name=name)), like=matrices)
        for (passage, target), result in zip(call, results, strict=True):
            if result.shape == passage.new.shape:  # the target is the whole parameter: no need to put it anywhere
                outcomes[passage] = result
            else:
                target.write(result, into=outcomes.setdefault(passage, torch.empty_like(passage.new)))
    for passage, outcome in outcomes.items():
        passage.new = outcome


def _guarded(transform: MatrixTransform, G: Tensor, site: Site) -> Tensor:
    """What the transform makes of G, but a matrix that is not finite as it is."""
    new = transform(G, site)
    finite = torch.isfinite(new[..., :1, :1] if transform.spreads else largest_entry(G))
    sound = G.device.type == "cpu" and bool(finite.all())  # no synchronisation there, and a pass less
    return new if sound else torch.where(finite, new, G)


def _filter(passage: Passage, transform: ElementwiseTransform, prefix: str) -> None:
    """Puts the whole gradient through the transform, with what that remembers of it."""
    before = passage.memory
    memory = {key.removeprefix(prefix): value for key, value in before.items() if key.startswith(prefix)}
    if transform.remembers is not None and set(memory) != set(transform.remembers):
        raise ValueError(
            f"state must come from the same transforms, got {sorted(memory)} instead of "
            f"{sorted(transform.remembers)} for {transform!r} on {passage.entry.name!r}; pass state=None to start again"
        )
    passage.new, memory = transform(passage.new, memory)
    sound = _all_finite(memory, passage.keep)
    after = {prefix + key: choose(sound, value, before[prefix + key]) for key, value in memory.items()}
    passage.memory = {**before, **after}


def elements_to_keep(grad: Tensor, chain: Sequence[Transform], active: bool | Tensor) -> Tensor | None:
    """Where the outcome of the chain is to be used: the element is active and, for a memory's sake, finite.

    None where that is everywhere: matrix transforms alone see to finiteness matrix by matrix.
    """
    there = active.to(grad.device) if isinstance(active, Tensor) else None
    if not any(isinstance(transform, ElementwiseTransform) for transform in chain):
        everywhere = there is not None and there.device.type == "cpu" and bool(there.all())  # no synchronisation there
        return None if everywhere else there
    return _finite(grad, 0) if there is None else _finite(grad, 1) & there


def _all_finite(memory: Memory, keep: Tensor | None) -> Tensor | None:
    """`keep`, less where something in the new memory has overflowed: it would stay there for ever."""
    for value in memory.values():
        if keep is not None and value.is_floating_point():
            keep = keep & _finite(value, keep.ndim)
    return keep


def _finite(tensor: Tensor, leading: int) -> Tensor:
    """Whether all entries are finite: of the whole, or of each element along the leading axis."""
    finite = torch.isfinite(tensor)
    return finite.flatten(leading).all(-1) if finite.ndim > leading else finite


def choose(keep: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if keep is None else torch.where(beside(keep, new), new, old)


def start(entry: Entry, chain: Sequence[Transform], grad: Tensor, stack: int | None) -> Memory:
    """The memory of one parameter before the first step."""
    return {
        f"{place}.{key}": value
        for place, transform in enumerate(chain)
        if isinstance(transform, ElementwiseTransform) and in_scope(transform, entry)
        for key, value in transform.start(grad, stack).items()
    }


def in_scope(transform: ElementwiseTransform, entry: Entry) -> bool:
    return transform.plan is None or transform.plan.takes(entry.parameter)
