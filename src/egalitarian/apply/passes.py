"""One pass over gradients, for `equalize_`, `attach` and `EGD` alike: check, then batch by batch through the whole chain.

That bounds the extra memory. On a GPU, most batches run from a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from egalitarian.apply.batch import Batch, Batches, Gradient
from egalitarian.apply.captured import Captures, Recording
from egalitarian.apply.gradients import PassSettings, decay_before, prepared_gradient, transform_batch, write_gradient
from egalitarian.apply.state import State
from egalitarian.kernels import RTOL
from egalitarian.select import Entry


@torch._disable_dynamo  # type: ignore[attr-defined]  # torch.compiler.disable would import dynamo at once
@torch.no_grad()
def transform_gradients(
    gradients: Sequence[Gradient], batches: Batches, settings: PassSettings, state: State, captures: Captures | None = None
) -> State:
    """One pass over gradients, as `gradients_of` returns them. Returns the state after it.

    With `captures`, memories may be updated in place.
    """
    check_gradients(gradients, settings)
    if settings.observe is not None:
        _observe(gradients, settings)
    found = batches.of(gradients)
    if settings.active is False:
        for batch in found:
            _decay_only(batch, gradients, settings)
        return State(state.step + 1, state.tensors)
    tensors = dict(state.tensors)
    for part in found if captures is None else captures.parts(found, gradients, settings, state):
        if isinstance(part, Recording):
            tensors |= part.run(gradients, settings, state)
        else:
            grads = [gradients[index][1] for index in part.indices]
            tensors |= transform_batch(part, grads, settings, State(state.step, tensors))
    return State(state.step + 1, tensors)


def _decay_only(batch: Batch, gradients: Sequence[Gradient], settings: PassSettings) -> None:
    """Inactive transforms leave a gradient plain; decay before them stays on."""
    for index in batch.indices:
        entry, grad = gradients[index]
        if decay_before(entry, settings):
            prepared = prepared_gradient(entry, grad, settings)
            write_gradient(entry, grad, prepared, prepared, None, settings.grad_scale)


def _observe(gradients: Iterable[Gradient], settings: PassSettings) -> None:
    """Passes every matrix to `observe`, in the order of the entries."""
    assert settings.observe is not None
    for entry, grad in gradients:
        if grad.numel():
            prepared = prepared_gradient(entry, grad, settings)
            for target in entry.targets:
                settings.observe(target.name, target.fold(prepared))


def gradients_of(entries: Iterable[Entry]) -> list[Gradient]:
    """The entries that have a gradient, with it."""
    return [(entry, grad) for entry in entries if (grad := entry.parameter.grad) is not None]


def check_gradients(gradients: Sequence[Gradient], settings: PassSettings) -> None:
    """Raises for gradients that a pass refuses."""
    for entry, grad in gradients:
        check_gradient(entry, grad, entry.shape, scaled=settings.grad_scale is not None)
    if settings.on_nonfinite == "raise":
        for entry, grad in gradients:
            refuse_nonfinite(entry, int((~torch.isfinite(grad)).sum()))


def check_gradient(entry: Entry, grad: Tensor, shape: tuple[int, ...], scaled: bool) -> None:
    """Raises for a gradient that is not the planned one."""
    refuse_distributed(entry.name, grad)
    if grad.layout != torch.strided:
        raise TypeError(
            f"the gradient of {entry.name!r} must be dense, got layout {grad.layout}; use sparse=False or exclude it"
        )
    if grad.dtype not in RTOL:
        raise TypeError(f"the gradient of {entry.name!r} must be real floating-point, got {grad.dtype}; exclude it")
    if grad.shape != shape:
        raise RuntimeError(
            f"the gradient of {entry.name!r} must have shape {shape}, got {tuple(grad.shape)}; flat shards (FSDP1, "
            f"ZeRO) are not matrices: use FSDP2, DDP or ZeRO stage 0"
        )
    if scaled and grad.dtype == torch.float16:
        raise TypeError(
            f"the gradient of {entry.name!r} must be wider than float16 under a GradScaler with a fused optimizer, "
            f"got float16, which overflows when scaled back; keep the parameters in float32 and use autocast"
        )


def refuse_distributed(name: str, tensor: Tensor) -> None:
    if hasattr(tensor, "device_mesh"):
        raise NotImplementedError(
            f"{name!r} must be a plain tensor here, got a DTensor, whose shards are no matrices; use attach or EGD, which "
            f"equalise it as a whole"
        )


def refuse_nonfinite(entry: Entry, count: int) -> None:
    if count:
        raise FloatingPointError(
            f"the gradient of {entry.name!r} must be finite, got {count} non-finite of {entry.parameter.numel()} entries; "
            f"lower the learning rate, or pass on_nonfinite='keep' to leave such gradients unchanged"
        )
