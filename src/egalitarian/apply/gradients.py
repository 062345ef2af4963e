"""One pass over gradients, for `equalize_`, `attach` and `EGD` alike: check, decay, transform, guard, write.

Batches go through the whole chain one after another, which bounds the extra memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.apply.batch import Batch, Batches, Gradient, joined, parted
from egalitarian.apply.state import State, Tensors, start
from egalitarian.kernels import RTOL, Precision, largest_entry
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
    on_nonfinite: str = "keep"
    """`"raise"` raises for a non-finite gradient, `"keep"` leaves it unchanged."""
    observe: Callable[[str, Tensor], None] | None = None
    """Gets every matrix before it is transformed."""


@torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable would import dynamo at once
@torch.no_grad()
def transform_gradients(entries: Sequence[Entry], batches: Batches, settings: PassSettings, state: State) -> State:
    """One pass over the gradients of `entries`, as `affected` returns them. Returns the state after it."""
    gradients = [(entry, grad) for entry in entries if (grad := entry.parameter.grad) is not None]
    for entry, grad in gradients:
        _check_gradient(entry, grad, scaled=settings.grad_scale is not None)
    if settings.on_nonfinite == "raise":
        _raise_nonfinite(gradients)
    if settings.observe is not None:
        _observe(gradients, settings)
    tensors = dict(state.tensors)
    for batch in batches.of(gradients):
        grads = [gradients[index][1] for index in batch.indices]
        if settings.active is False:
            _decay_only(batch, grads, settings)
        else:
            tensors |= _transform(batch, grads, settings, State(state.step, tensors))
    return State(state.step + 1, tensors)


def _decay_only(batch: Batch, grads: Sequence[Tensor], settings: PassSettings) -> None:
    """Inactive transforms leave a gradient plain; decay before them stays on."""
    for entry, grad in zip(batch.entries, grads, strict=True):
        if _decay(entry, settings):
            prepared = _prepared(entry, grad, settings)
            _write(entry, grad, prepared, prepared, None, settings.grad_scale)


def _transform(
    batch: Batch, grads: Sequence[Tensor], settings: PassSettings, state: State
) -> dict[str, Mapping[str, Tensor]]:
    """Replaces these gradients by new ones. Returns the memories of their parameters."""
    prepared = [_prepared(entry, grad, settings) for entry, grad in zip(batch.entries, grads, strict=True)]
    uses = [_elements_to_use(grad, batch.filtered, settings.active) for grad in prepared]
    memories = _memories(batch, prepared, settings, state.tensors) if batch.filtered else []
    new = list(prepared)
    for index, link in enumerate(settings.chain):
        if isinstance(link, MatrixTransform):
            _apply_to_matrices(batch, new, link, Site("", state.step, settings.compute or prepared[0].dtype))
        for position in batch.scopes[index]:
            assert isinstance(link, ElementwiseTransform)
            name, use = batch.entries[position].name, uses[position]
            new[position], memories[position] = _filter(link, index, name, new[position], memories[position], use)
    for entry, grad, result, before, use in zip(batch.entries, grads, new, prepared, uses, strict=True):
        if result is not grad:
            _write(entry, grad, result, before, use, settings.grad_scale)
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
            if output.shape == grads[position].shape:  # the matrix is the whole parameter
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


def _filter(
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


def _prepared(entry: Entry, grad: Tensor, settings: PassSettings) -> Tensor:
    """The gradient that the transforms see: unscaled, with the decay that comes before them."""
    if settings.grad_scale is not None:
        grad = grad / settings.grad_scale.to(grad.device)
    decay = _decay(entry, settings)
    return grad.add(entry.parameter, alpha=decay) if decay else grad


def _decay(entry: Entry, settings: PassSettings) -> float:
    return settings.decay(entry) if settings.decay is not None and entry.taken else 0.0


def _write(
    entry: Entry, grad: Tensor, new: Tensor, prepared: Tensor, use: Tensor | None, grad_scale: Tensor | None
) -> None:
    """Writes in place, so that views of the gradient (DDP's buckets) follow; unless its memory is not writable."""
    expanded = 0 in grad.stride() and any(
        stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True)
    )
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


def _observe(gradients: Iterable[Gradient], settings: PassSettings) -> None:
    """Passes every matrix to `observe`, in the order of the entries."""
    assert settings.observe is not None
    for entry, grad in gradients:
        if grad.numel():
            prepared = _prepared(entry, grad, settings)
            for target in entry.targets:
                settings.observe(target.name, target.fold(prepared))


def _check_gradient(entry: Entry, grad: Tensor, scaled: bool) -> None:
    """Raises for a gradient that is not the planned one."""
    refuse_distributed(entry)
    if grad.layout != torch.strided:
        raise TypeError(
            f"the gradient of {entry.name!r} must be dense, got layout {grad.layout}; use sparse=False or exclude it"
        )
    if grad.dtype not in RTOL:
        raise TypeError(f"the gradient of {entry.name!r} must be real floating-point, got {grad.dtype}; exclude it")
    if grad.shape != entry.shape:
        raise RuntimeError(
            f"the gradient of {entry.name!r} must have shape {entry.shape}, got {tuple(grad.shape)}; flat shards (FSDP1, "
            f"ZeRO) are not matrices: use DDP or ZeRO stage 0"
        )
    if scaled and grad.dtype == torch.float16:
        raise TypeError(
            f"the gradient of {entry.name!r} must be wider than float16 under a GradScaler with a fused optimizer, "
            f"got float16, which overflows when scaled back; keep the parameters in float32 and use autocast"
        )


def refuse_distributed(entry: Entry) -> None:
    if hasattr(entry.parameter, "device_mesh"):
        raise NotImplementedError(
            f"{entry.name!r} is a DTensor, which is not supported yet: the polar factor of a shard is not a shard of the "
            f"polar factor; use DDP"
        )


def _raise_nonfinite(gradients: Iterable[Gradient]) -> None:
    for entry, grad in gradients:
        count = int((~torch.isfinite(grad)).sum())
        if count:
            raise FloatingPointError(
                f"the gradient of {entry.name!r} must be finite, got {count} non-finite of {grad.numel()} entries; "
                f"lower the learning rate, or pass on_nonfinite='keep' to leave such gradients unchanged"
            )
