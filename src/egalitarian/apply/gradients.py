"""`equalize_`, and the only module that writes gradients: check, decay, transform, guard, write back.

Parameters pass the whole chain of transforms one by one; on a GPU in groups of bounded size. This bounds the extra memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from egalitarian.apply.batch import Gradient, side_by_side
from egalitarian.apply.passage import Passage, choose, elements_to_keep, in_scope, start, through_chain
from egalitarian.kernels.polar import RTOL, Precision
from egalitarian.select.plan import Entry, Plan
from egalitarian.transforms.matrix import (
    ElementwiseTransform,
    MatrixTransform,
    Memory,
    Polar,
    Transform,
    as_chain,
    beside,
    uses_matrices,
)


@dataclass(frozen=True)
class State:
    """What a chain of transforms keeps from one step to the next: returned by `equalize_` and passed to its next call.

    Exact EGD keeps only the step count. A call returns a new state and leaves the old one unchanged.
    Replaying a CUDA graph overwrites the tensors that it captured.
    """

    step: int = 0
    """Number of steps made so far."""
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """By parameter name, then by `"<index of the transform>.<key>"`, for example `"0.mean"`."""


@dataclass(frozen=True)
class Settings:
    """The settings of one pass. `attach`, `EGD` and `equalize_` differ in nothing else."""

    chain: tuple[Transform, ...]
    active: bool | Tensor = True
    """A bool, or one per element of the stack; where False the gradient stays plain and the memory does not change."""
    decay: Callable[[Entry], float] | None = None
    """Weight decay to add before the transforms, by parameter; asked only for parameters that are taken."""
    grad_scale: Tensor | None = None
    """What the gradients have been multiplied by, and must be again afterwards."""
    compute: Precision | None = None
    on_nonfinite: str = "keep"
    observe: Callable[[str, Tensor], None] | None = None
    """Is shown every matrix before it is transformed."""


def equalize_(plan: Plan, transform: Transform | Sequence[Transform] = Polar(), *, state: State | None = None) -> State:
    """Transforms the gradients of the plan's parameters in place. Call it between `backward()` and `step()`.

    Use it like `torch.nn.utils.clip_grad_norm_`, and after it. Transforms act on the matrices that the plan takes;
    filters act on every parameter of the plan, taken or left. Parameters without a gradient are skipped.
    A gradient with a NaN or an Inf stays unchanged.

    Args:
        plan: from `matrices(model)`.
        transform: one transform, or a sequence applied in order. The default is exact EGD.
        state: what the previous call returned, or None for the first call. Only `LowRankPolar` and filters need it.

    Returns:
        The state for the next call.

    Raises:
        TypeError: an argument has the wrong type, or a gradient is sparse or not floating-point.
        ValueError: a transform does not fit a matrix, or `state` is from other transforms.

    >>> from egalitarian import matrices
    >>> layer = torch.nn.Linear(3, 2)
    >>> layer(torch.randn(5, 3)).square().sum().backward()
    >>> state = equalize_(matrices(layer))
    >>> torch.linalg.svdvals(layer.weight.grad).round(decimals=4)
    tensor([1., 1.])
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, got {type(plan).__name__}; make one with matrices(model)")
    chain = as_chain(transform)
    check_chain(chain, plan.entries, plan.stack)
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a State, got {type(state).__name__}; pass what the last call returned, or None")
    if uses_matrices(chain) and all(entry.parameter.grad is None for entry in plan.taken):
        warnings.warn(
            "none of the plan's matrices has a gradient, so there is nothing to equalise; "
            "call equalize_ between backward() and step()",
            stacklevel=2,
        )
    settings = Settings(chain, active=all_active(plan.stack, plan.device))
    after: State = transform_gradients(plan.entries, settings, state or State())
    return after


def all_active(stack: int | None, device: torch.device) -> bool | Tensor:
    return True if stack is None else torch.ones(stack, dtype=torch.bool, device=device)


def check_chain(chain: Sequence[Transform], entries: Iterable[Entry], stack: int | None) -> None:
    """Raises what is knowable before the first step: a rank too large, an unstackable parameter, DTensors."""
    for entry in entries:
        if entry.taken:
            refuse_distributed(entry)
        for transform in chain:
            if isinstance(transform, MatrixTransform):
                for target in entry.targets:
                    transform.check(target.name, target.rows, target.columns, gradient_dtype(entry.parameter))
            elif in_scope(transform, entry) and gradient_dtype(entry.parameter) not in RTOL:
                raise TypeError(
                    f"every parameter of a filter must be real floating-point, got {entry.name!r} of "
                    f"{entry.parameter.dtype}; pass the filter a plan= that does not take it"
                )
            elif stack is not None and in_scope(transform, entry) and entry.stack != stack:
                raise ValueError(
                    f"a filter on a stack must have the leading axis of {stack} in every parameter, got {entry.name!r} of "
                    f"shape {entry.shape}; pass the filter a plan= that does not take it"
                )


def initial_memory(entries: Iterable[Entry], chain: Sequence[Transform], stack: int | None) -> dict[str, Memory]:
    """The memory of every parameter before the first step, so that a checkpoint has its full shape from the start."""
    return {
        entry.name: memory
        for entry in entries
        if (memory := start(entry, chain, torch.empty_like(entry.parameter, dtype=gradient_dtype(entry.parameter)), stack))
    }


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of the parameter, unless its `grad_dtype` is another."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


@torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable would import dynamo at once
@torch.no_grad()
def transform_gradients(entries: Sequence[Entry], settings: Settings, state: State) -> State:
    """One pass over the gradients of `entries`; returns the state after it. The only writer of `p.grad`."""
    work = _checked(entries, settings)
    if settings.on_nonfinite == "raise":
        _raise_nonfinite(work)
    if settings.observe is not None:
        _show(work, settings.observe, settings)
    tensors = dict(state.tensors)
    for group in _groups(work, settings):
        tensors |= _transform(group, tensors, settings, state.step)
    return State(state.step + 1, tensors)


def _transform(
    group: Sequence[Gradient], tensors: Mapping[str, Mapping[str, Tensor]], settings: Settings, step: int
) -> dict[str, Mapping[str, Tensor]]:
    """Puts new gradients in the place of these; returns their memories."""
    passages = [_enter(entry, grad, settings, tensors) for entry, grad in group]
    if settings.active is not False:
        through_chain(passages, settings.chain, step, settings.compute)
    for passage, (_, grad) in zip(passages, group, strict=True):
        if passage.new is not grad:
            _write(passage, grad, settings.grad_scale)
    return {passage.entry.name: passage.memory for passage in passages if passage.memory}


def _checked(entries: Iterable[Entry], settings: Settings) -> list[Gradient]:
    """The gradients that something is to be done to, each the one that was planned for."""
    work = []
    for entry in entries:
        grad = entry.parameter.grad
        scoped = any(isinstance(link, ElementwiseTransform) and in_scope(link, entry) for link in settings.chain)
        if grad is not None and (entry.taken or scoped):
            check_gradient(entry, grad)
            work.append((entry, grad))
            if settings.grad_scale is not None and grad.dtype == torch.float16:
                raise TypeError(
                    f"the gradient of {entry.name!r} must be wider than float16 under a GradScaler with a fused optimizer, "
                    f"got float16, which overflows when scaled back; keep the parameters in float32 and use autocast"
                )
    return work


def _show(work: Iterable[Gradient], observe: Callable[[str, Tensor], None], settings: Settings) -> None:
    """Every matrix in the order of the entries, whichever are transformed together afterwards."""
    for entry, grad in work:
        if grad.numel():
            plain = _plain_gradient(entry, grad, settings)
            for target in entry.targets:
                observe(target.name, target.fold(plain))


def _groups(work: Sequence[Gradient], settings: Settings) -> Sequence[Sequence[Gradient]]:
    """What goes down the chain together: gradients whose matrices may share a call of one of its transforms."""
    shared = any(isinstance(link, MatrixTransform) and link.shares for link in settings.chain)
    return side_by_side(work) if shared and settings.active is not False else [[each] for each in work]


def _enter(entry: Entry, grad: Tensor, settings: Settings, tensors: Mapping[str, Mapping[str, Tensor]]) -> Passage:
    plain = _plain_gradient(entry, grad, settings)
    if settings.active is False:
        return Passage(entry, plain, plain if _decay(entry, settings) else grad, {}, None)
    memory = tensors.get(entry.name)
    if memory is None:
        memory = start(entry, settings.chain, plain, _stack_of(settings))
    return Passage(entry, plain, plain, memory, elements_to_keep(plain, settings.chain, settings.active))


def _plain_gradient(entry: Entry, grad: Tensor, settings: Settings) -> Tensor:
    """The gradient as the transforms are to see it: unscaled, with the decay that comes before them."""
    if settings.grad_scale is not None:
        grad = grad / settings.grad_scale.to(grad.device)
    decay = _decay(entry, settings)
    return grad.add(entry.parameter, alpha=decay) if decay else grad


def _decay(entry: Entry, settings: Settings) -> float:
    return settings.decay(entry) if settings.decay is not None and entry.taken else 0.0


def _write(passage: Passage, grad: Tensor, grad_scale: Tensor | None) -> None:
    """In place, so that views of the gradient (DDP's buckets) follow; unless its memory cannot be written."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True))
    fixed = expanded or grad.is_inference()
    if passage.keep is not None and grad_scale is None and not fixed and passage.new.dtype == grad.dtype:
        torch.where(beside(passage.keep, grad), passage.new, passage.plain, out=grad)
        return
    new = choose(passage.keep, passage.new, passage.plain)
    new = new if grad_scale is None else new * grad_scale.to(new.device)
    if fixed:  # cloned, for it may be a part of something larger
        layout = torch.contiguous_format if expanded else torch.preserve_format
        passage.entry.parameter.grad = new.clone(memory_format=layout)
    else:
        grad.copy_(new)


def _stack_of(settings: Settings) -> int | None:
    return len(settings.active) if isinstance(settings.active, Tensor) else None


def check_gradient(entry: Entry, grad: Tensor) -> None:
    """Raises for a gradient that is not the one that was planned for."""
    refuse_distributed(entry)
    if grad.layout != torch.strided:
        raise TypeError(
            f"the gradient of {entry.name!r} must be dense, got layout {grad.layout}; use sparse=False or exclude it"
        )
    if grad.dtype not in RTOL:
        raise TypeError(f"the gradient of {entry.name!r} must be real floating-point, got {grad.dtype}; exclude it")
    if tuple(grad.shape) != entry.shape:
        raise RuntimeError(
            f"the gradient of {entry.name!r} must have shape {entry.shape}, got {tuple(grad.shape)}; flat shards (FSDP1, "
            f"ZeRO) are not matrices: use DDP or ZeRO stage 0"
        )


def refuse_distributed(entry: Entry) -> None:
    if hasattr(entry.parameter, "device_mesh"):
        raise NotImplementedError(
            f"{entry.name!r} is a DTensor, which is not supported yet: the polar factor of a shard is not a shard of the "
            f"polar factor; use DDP"
        )


def _raise_nonfinite(work: Iterable[Gradient]) -> None:
    for entry, grad in work:
        count = int((~torch.isfinite(grad)).sum())
        if count:
            raise FloatingPointError(
                f"the gradient of {entry.name!r} must be finite, got {count} non-finite of {grad.numel()} entries; "
                f"lower the learning rate, or pass on_nonfinite='keep' to leave such gradients unchanged"
            )
