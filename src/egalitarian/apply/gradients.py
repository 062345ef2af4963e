"""The gradients of one batch: unscale, decay, transform, guard, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.apply.batch import Batch, joined, parted
from egalitarian.apply.state import State, Tensors, start
from egalitarian.kernels import Precision, largest_entry
from egalitarian.select import Entry
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Memory, Site, Transform, broadcast


@dataclass(frozen=True)
class PassSettings:
    """The settings of one pass. `attach`, `EGD` and `equalize_` call the same pass with different ones."""

    chain: tuple[Transform, ...]
    active: bool | Tensor = True
    """A bool, or one per element of the stack. Where False, the gradient stays plain and the memory does not change."""
    decay: Callable[[Entry], float] | None = None
    """Weight decay to add before the transforms, for parameters that are taken."""
    grad_scale: Tensor | None = None
    """A GradScaler's factor: divided out before the transforms, multiplied back after them."""
    compute: Precision | None = None
    """The precision in which the gradients were computed; None is their dtype."""
    half: bool = False
    """Whether the forward pass ran under autocast to half precision."""
    on_nonfinite: str = "keep"
    """`"raise"` raises for a non-finite gradient, `"keep"` leaves it unchanged."""
    observe: Callable[[str, Tensor], None] | None = None
    """Gets every matrix before it is transformed."""


def transform_batch(
    batch: Batch, grads: Sequence[Tensor], settings: PassSettings, state: State
) -> dict[str, Mapping[str, Tensor]]:
    """Replaces these gradients by new ones. Returns the memories of their parameters."""
    prepared = [prepared_gradient(entry, grad, settings) for entry, grad in zip(batch.entries, grads, strict=True)]
    uses = [_elements_to_use(grad, batch.filtered, settings.active) for grad in prepared]
    memories = _memories(batch, prepared, settings, state.tensors) if batch.filtered else []
    new = list(prepared)
    for index, link in enumerate(settings.chain):
        if isinstance(link, MatrixTransform):
            _apply_to_matrices(batch, new, link, Site("", state.step, settings.compute or prepared[0].dtype, settings.half))
        for position in batch.scopes[index]:
            assert isinstance(link, ElementwiseTransform)
            name, use = batch.entries[position].name, uses[position]
            new[position], memories[position] = filtered(link, index, name, new[position], memories[position], use)
    for entry, grad, result, before, use in zip(batch.entries, grads, new, prepared, uses, strict=True):
        if result is not grad:
            write_gradient(entry, grad, result, before, use, settings.grad_scale)
    return {entry.name: memory for entry, memory in zip(batch.entries, memories, strict=False) if memory}


def _memories(
    batch: Batch, prepared: Sequence[Tensor], settings: PassSettings, tensors: Tensors
) -> list[Mapping[str, Tensor]]:
    """Of each parameter; new parameters start with the memory of a first step."""
    stack = len(settings.active) if isinstance(settings.active, Tensor) else None
    memories: list[Mapping[str, Tensor]] = []
    for entry, grad in zip(batch.entries, prepared, strict=True):
        known = tensors.get(entry.name)
        memories.append(start(entry, settings.chain, grad, stack) if known is None else known)
    return memories


def _apply_to_matrices(batch: Batch, grads: list[Tensor], transform: MatrixTransform, site: Site) -> None:
    """Puts every matrix of the batch through the transform, and the results into the list."""
    results: dict[int, Tensor] = {}
    for call in batch.joint if transform.shares else batch.separate:
        matrices = [target.fold(grads[position]) for position, target in call]
        if len(call) == 1:
            outputs: Sequence[Tensor] = [_guarded(transform, matrices[0], site._replace(name=call[0][1].name))]
        else:
            outputs = parted(_guarded(transform, joined(matrices), site), like=matrices)
        for (position, target), output in zip(call, outputs, strict=True):
            if output.shape == grads[position].shape and not target.output:  # the matrix is the whole parameter
                results[position] = output
            else:
                target.write(output, into=results.setdefault(position, torch.empty_like(grads[position])))
    for position, result in results.items():
        grads[position] = result


def _guarded(transform: MatrixTransform, G: Tensor, site: Site) -> Tensor:
    """The transformed matrices; a non-finite one stays unchanged."""
    new = transform(G, site)
    finite = torch.isfinite(new[..., :1, :1] if transform.spreads_nan else largest_entry(G))
    all_finite = G.device.type == "cpu" and bool(finite.all())  # reading it does not synchronise there, and saves a pass
    return new if all_finite else torch.where(finite, new, G)


def filtered(
    transform: ElementwiseTransform,
    index: int,
    name: str,
    grad: Tensor,
    before: Mapping[str, Tensor],
    use: Tensor | None,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The filtered gradient, and the memory after it; where the result is not kept, the memory stays as it was."""
    prefix = f"{index}."
    memory: Memory = {key.removeprefix(prefix): value for key, value in before.items() if key.startswith(prefix)}
    if transform.remembers is not None and set(memory) != set(transform.remembers):
        raise ValueError(
            f"state must come from the same transforms, got {sorted(memory)} instead of "
            f"{sorted(transform.remembers)} for {transform!r} on {name!r}; pass state=None to start again"
        )
    new, memory = transform(grad, memory)
    for value in memory.values():  # an overflow would stay in the memory
        if use is not None and value.is_floating_point():
            use = use & _finite(value, use.ndim)
    after = {prefix + key: _choose(use, value, before[prefix + key]) for key, value in memory.items()}
    return new, {**before, **after}


def _elements_to_use(grad: Tensor, filtered: bool, active: bool | Tensor) -> Tensor | None:
    """Where the result is used: elements that are active and, if a memory depends on them, finite.

    None means everywhere. Matrix transforms alone handle non-finite values matrix by matrix.
    """
    there = active.to(grad.device) if isinstance(active, Tensor) else None
    if not filtered:
        everywhere = there is not None and there.device.type == "cpu" and bool(there.all())
        return None if everywhere else there
    return _finite(grad, 0) if there is None else _finite(grad, 1) & there


def _finite(tensor: Tensor, leading: int) -> Tensor:
    """Whether all entries are finite: of the whole, or of each element along the leading axis."""
    finite = torch.isfinite(tensor)
    return finite.flatten(leading).all(-1) if finite.ndim > leading else finite


def _choose(use: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if use is None else torch.where(broadcast(use, new), new, old)


def prepared_gradient(entry: Entry, grad: Tensor, settings: PassSettings, weight: Tensor | None = None) -> Tensor:
    """The gradient that the transforms see: unscaled, with the decay that comes before them.

    Args:
        entry: whose gradient it is.
        grad: the gradient, or a shard of it.
        settings: of the pass.
        weight: the same shard of the parameter; None is the whole parameter.
    """
    if settings.grad_scale is not None:
        grad = grad / settings.grad_scale.to(grad.device)
    decay = decay_before(entry, settings)
    return grad.add(entry.parameter if weight is None else weight, alpha=decay) if decay else grad


def decay_before(entry: Entry, settings: PassSettings) -> float:
    return settings.decay(entry) if settings.decay is not None and entry.taken else 0.0


def write_gradient(
    entry: Entry, grad: Tensor, new: Tensor, prepared: Tensor, use: Tensor | None, grad_scale: Tensor | None
) -> None:
    """Writes in place, so that views of the gradient (DDP's buckets) follow; unless its memory is not writable."""
    expanded = is_expanded(grad)
    fixed = expanded or grad.is_inference()
    if use is not None and grad_scale is None and not fixed and new.dtype == grad.dtype:
        torch.where(broadcast(use, grad), new, prepared, out=grad)
        return
    new = _choose(use, new, prepared)
    new = new if grad_scale is None else new * grad_scale.to(new.device)
    if fixed:  # a clone, since it may be a part of a larger tensor
        layout = torch.contiguous_format if expanded else torch.preserve_format
        entry.parameter.grad = new.clone(memory_format=layout)
    else:
        grad.copy_(new)


def replaced_gradient(parameter: Tensor, grad: Tensor) -> Tensor:
    """Gives the parameter another gradient, and returns it."""
    parameter.grad = grad
    return grad


def is_expanded(grad: Tensor) -> bool:
    """Whether entries share memory."""
    return 0 in grad.stride() and any(
        stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True)
    )
