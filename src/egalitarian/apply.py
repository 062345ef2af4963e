"""`equalize_`, and the one room that writes gradients: check, decay, transform, guard, write back.

Each parameter goes down the whole chain of transforms by itself, so no more than one is ever held twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from egalitarian.kernels import RTOL, Precision, largest_entry
from egalitarian.plan import Entry, Plan
from egalitarian.transforms import (
    ElementwiseTransform,
    MatrixTransform,
    Memory,
    Polar,
    Site,
    Transform,
    as_chain,
    beside,
    uses_matrices,
)


@dataclass(frozen=True)
class State:
    """What a chain of transforms remembers between steps: a plain value, handed in and out.

    Exact EGD remembers nothing but the count of steps. Nothing in a state is ever changed in place.
    """

    step: int = 0
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """By parameter name, then by `"<place in the chain>.<what>"`."""


@dataclass(frozen=True)
class Settings:
    """How one pass is to be made; the doors differ in nothing else."""

    chain: tuple[Transform, ...]
    active: bool | Tensor = True
    """A bool, or one per element of the stack; where False the gradient stays plain and the memory stands still."""
    decay: Callable[[Entry], float] | None = None
    """Weight decay to add before the transforms, by parameter; asked only for parameters that are taken."""
    grad_scale: Tensor | None = None
    """What the gradients have been multiplied by, and must be again afterwards."""
    compute: Precision | None = None
    on_nonfinite: str = "keep"
    observe: Callable[[str, Tensor], None] | None = None
    """Is shown every matrix before it is transformed."""


def equalize_(plan: Plan, transform: Transform | Sequence[Transform] = Polar(), *, state: State | None = None) -> State:
    """Transforms the gradients of the plan's parameters in place, between `backward()` and `step()`.

    As `torch.nn.utils.clip_grad_norm_` is used, and after it. Elementwise transforms act on every parameter that the plan
    lists, taken or left. Parameters without a gradient are not touched; a gradient with a NaN or an Inf stays as it is.

    Args:
        plan: from `matrices(model)`.
        transform: one transform, or a sequence applied in order.
        state: what the last call returned; None starts anew. Only randomized and stateful transforms need it.

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
            elif _in_scope(transform, entry) and gradient_dtype(entry.parameter) not in RTOL:
                raise TypeError(
                    f"an elementwise transform must find real floating-point parameters, got {entry.name!r} of "
                    f"{entry.parameter.dtype}; give the transform a plan without it"
                )
            elif stack is not None and _in_scope(transform, entry) and entry.stack != stack:
                raise ValueError(
                    f"an elementwise transform on a stack must find its leading axis of {stack} in every "
                    f"parameter, got {entry.name!r} of shape {entry.shape}; give the transform a plan without it"
                )


def initial_memory(entries: Iterable[Entry], chain: Sequence[Transform], stack: int | None) -> dict[str, Memory]:
    """The memory of every parameter before the first step, so that a checkpoint has its full shape from the start."""
    return {
        entry.name: memory
        for entry in entries
        if (memory := _start(entry, chain, torch.empty_like(entry.parameter, dtype=gradient_dtype(entry.parameter)), stack))
    }


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """That of the parameter, unless its gradients were told to have another."""
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


@torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable would import dynamo at once
@torch.no_grad()
def transform_gradients(entries: Sequence[Entry], settings: Settings, state: State) -> State:
    """One pass over the gradients of `entries`; returns the state after it. The only writer of `p.grad`."""
    work = []
    for entry in entries:
        grad = entry.parameter.grad
        scoped = any(isinstance(link, ElementwiseTransform) and _in_scope(link, entry) for link in settings.chain)
        if grad is not None and (entry.taken or scoped):
            check_gradient(entry, grad)
            work.append((entry, grad))
            if settings.grad_scale is not None and grad.dtype == torch.float16:
                raise TypeError(
                    f"the gradient of {entry.name!r} must be wider than float16 under a GradScaler with a fused optimizer, "
                    f"or scaling it back overflows; keep the parameters in float32 and use autocast"
                )
    if settings.on_nonfinite == "raise":
        _raise_nonfinite(work)
    stack = _stack_of(settings)
    tensors = dict(state.tensors)
    for entry, grad in work:
        decay = settings.decay(entry) if settings.decay is not None and entry.taken else 0.0
        plain = _plain_gradient(entry, grad, decay, settings)
        if settings.observe is not None and plain.numel():
            for target in entry.targets:
                settings.observe(target.name, target.fold(plain))
        new = plain if decay else grad
        if settings.active is not False:
            before = tensors.get(entry.name)
            if before is None:
                before = _start(entry, settings.chain, plain, stack)
            new, memory = _through_chain(entry, plain, before, settings, state.step)
            if memory:
                tensors[entry.name] = memory
        if new is not grad:
            _write(entry, grad, new if settings.grad_scale is None else new * settings.grad_scale.to(new.device))
    return State(state.step + 1, tensors)


def _write(entry: Entry, grad: Tensor, new: Tensor) -> None:
    """In place, so that views of the gradient (DDP's buckets) follow; unless its memory cannot be written."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True))
    if expanded or grad.is_inference():
        entry.parameter.grad = new.contiguous() if expanded else new
    else:
        grad.copy_(new)


def _plain_gradient(entry: Entry, grad: Tensor, decay: float, settings: Settings) -> Tensor:
    """The gradient as the transforms are to see it: unscaled, with the decay that comes before them."""
    if settings.grad_scale is not None:
        grad = grad / settings.grad_scale.to(grad.device)
    return grad.add(entry.parameter, alpha=decay) if decay else grad


def _through_chain(
    entry: Entry, plain: Tensor, before: Mapping[str, Tensor], settings: Settings, step: int
) -> tuple[Tensor, Memory]:
    """The gradient after all transforms, and the memory; both as they were where inactive or not finite."""
    grad, after = plain, dict(before)
    keep = _elements_to_keep(plain, settings)
    compute = settings.compute or plain.dtype
    for place, transform in enumerate(settings.chain):
        if isinstance(transform, MatrixTransform):
            grad = _equalized(entry, grad, transform, Site("", step, compute))
        elif _in_scope(transform, entry):
            prefix = f"{place}."
            memory = {key.removeprefix(prefix): value for key, value in before.items() if key.startswith(prefix)}
            if transform.remembers is not None and set(memory) != set(transform.remembers):
                raise ValueError(
                    f"state must come from the same transforms, got {sorted(memory)} instead of "
                    f"{sorted(transform.remembers)} for {transform!r} on {entry.name!r}; start anew with state=None"
                )
            grad, memory = transform(grad, memory)
            sound = _all_finite(memory, keep)
            after |= {prefix + key: _choose(sound, value, before[prefix + key]) for key, value in memory.items()}
    return (plain if grad is plain else _choose(keep, grad, plain)), after


def _equalized(entry: Entry, grad: Tensor, transform: MatrixTransform, site: Site) -> Tensor:
    if not entry.taken:
        return grad
    out = torch.empty_like(grad)
    for target in entry.targets:
        G = target.fold(grad)
        if G.numel():
            finite = torch.isfinite(largest_entry(G))
            new = transform(G, site._replace(name=target.name))
            sound = G.device.type == "cpu" and bool(finite.all())  # no synchronisation there, and a pass less
            new = new if sound else torch.where(finite, new, G)
            if G.shape == grad.shape:  # the target is the whole parameter: no need to put it anywhere
                return new
            target.write(new, into=out)
    return out


def _elements_to_keep(grad: Tensor, settings: Settings) -> Tensor | None:
    """Where the outcome of the chain is to be used: the element is active and, for a memory's sake, finite.

    None where that is everywhere: matrix transforms alone see to finiteness matrix by matrix.
    """
    active = settings.active.to(grad.device) if isinstance(settings.active, Tensor) else None
    if not any(isinstance(transform, ElementwiseTransform) for transform in settings.chain):
        everywhere = active is not None and active.device.type == "cpu" and bool(active.all())  # no synchronisation there
        return None if everywhere else active
    return _finite(grad, 0) if active is None else _finite(grad, 1) & active


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


def _choose(keep: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if keep is None else torch.where(beside(keep, new), new, old)


def _start(entry: Entry, chain: Sequence[Transform], grad: Tensor, stack: int | None) -> Memory:
    return {
        f"{place}.{key}": value
        for place, transform in enumerate(chain)
        if isinstance(transform, ElementwiseTransform) and _in_scope(transform, entry)
        for key, value in transform.start(grad, stack).items()
    }


def _in_scope(transform: ElementwiseTransform, entry: Entry) -> bool:
    return transform.plan is None or transform.plan.takes(entry.parameter)


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
            f"ZeRO) hold no matrices: use DDP or ZeRO stage 0"
        )


def refuse_distributed(entry: Entry) -> None:
    if hasattr(entry.parameter, "device_mesh"):
        raise NotImplementedError(
            f"{entry.name!r} is a DTensor, which this version does not equalise yet (a shard has another polar factor "
            f"than the whole); use DDP, or follow the project's distributed work"
        )


def _raise_nonfinite(work: Iterable[tuple[Entry, Tensor]]) -> None:
    for entry, grad in work:
        count = int((~torch.isfinite(grad)).sum())
        if count:
            raise FloatingPointError(
                f"the gradient of {entry.name!r} must be finite, got {count} non-finite of {grad.numel()} entries; "
                f"lower the learning rate, or on_nonfinite='keep' leaves such gradients as they are"
            )
