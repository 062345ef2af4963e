"""`equalize_`, for training loops of one's own, and the checks of a chain of transforms before its first step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch

from egalitarian.apply.batch import Batches
from egalitarian.apply.gradients import PassSettings
from egalitarian.apply.passes import gradients_of, refuse_distributed, transform_gradients
from egalitarian.apply.state import State, gradient_dtype
from egalitarian.kernels import RTOL
from egalitarian.select import Entry, Plan
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Polar, Transform, as_chain, uses_matrices


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
    for entry in affected(plan.entries, chain):
        refuse_distributed(entry.name, entry.parameter)
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a State, got {type(state).__name__}; pass what the last call returned, or None")
    if uses_matrices(chain) and all(entry.parameter.grad is None for entry in plan.taken):
        warnings.warn(
            "none of the plan's matrices has a gradient, so there is nothing to equalise; "
            "call equalize_ between backward() and step()",
            stacklevel=2,
        )
    active = True if plan.stack is None else torch.ones(plan.stack, dtype=torch.bool, device=plan.device)
    entries = affected(plan.entries, chain)
    after: State = transform_gradients(gradients_of(entries), Batches(chain), PassSettings(chain, active), state or State())
    return after


def affected(entries: Iterable[Entry], chain: Sequence[Transform]) -> list[Entry]:
    """The entries that the chain may change: taken ones, and those that a filter acts on."""
    filters = [link for link in chain if isinstance(link, ElementwiseTransform)]
    return [entry for entry in entries if entry.taken or any(link.acts_on(entry.parameter) for link in filters)]


def check_chain(chain: Sequence[Transform], entries: Iterable[Entry], stack: int | None) -> None:
    """Raises for what can be checked before the first step: a rank too large, an unstackable parameter."""
    for entry in entries:
        for link in chain:
            if isinstance(link, MatrixTransform):
                for target in entry.targets:
                    link.check(target.name, target.rows, target.columns, gradient_dtype(entry.parameter))
            elif link.acts_on(entry.parameter) and gradient_dtype(entry.parameter) not in RTOL:
                raise TypeError(
                    f"every parameter of a filter must be real floating-point, got {entry.name!r} of "
                    f"{entry.parameter.dtype}; pass the filter a plan= that does not take it"
                )
            elif stack is not None and link.acts_on(entry.parameter) and entry.stack != stack:
                raise ValueError(
                    f"a filter on a stack must have the leading axis of {stack} in every parameter, got {entry.name!r} of "
                    f"shape {entry.shape}; pass the filter a plan= that does not take it"
                )
