"""The inverse root of small Gram matrices as one Triton kernel: a block holds its matrix from the first quintic to the last.

The arithmetic is that of `products`; only its hundred launches, which take longer than their work where matrices are this
small, are one. Where Triton is missing, or torch is being traced, `products` does it operation by operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

MOST = 64
"""The largest matrix that one block holds."""


def fits(K: Tensor) -> bool:
    """Whether the kernel takes such a Gram matrix, (..., k, k)."""
    traced = torch._C._functorch.is_batchedtensor(K) or torch.compiler.is_compiling()
    on = K.device.type == "cuda" and K.dtype == torch.float64 and K.shape[-1] <= MOST and K.numel() > 0
    return on and not traced and kernel() is not None


def inverse_root(K: Tensor, cut: float, steps: Sequence[tuple[float, float, float]], *, sharp: bool) -> Tensor:
    """(K + e²)^(-1/2) with e² = ratio cut², scaled as `products._normalized` does; `sharp`: and its cut made sharp."""
    flat = K.reshape(-1, *K.shape[-2:]).contiguous()
    Z = torch.empty_like(flat)
    size = max(16, 1 << (K.shape[-1] - 1).bit_length())
    run = kernel()
    assert run is not None
    table = _table(tuple(steps), K.device)
    run[(len(flat),)](flat, Z, table, len(steps), K.shape[-1], cut * cut, size, sharp, num_warps=4 if size < 64 else 8)
    return Z.reshape(K.shape)


@cache
def _table(steps: tuple[tuple[float, float, float], ...], device: torch.device) -> Tensor:
    return torch.tensor(steps, dtype=torch.float64).to(device)


@cache
def kernel() -> Any:
    """Compiled at its first call; None without Triton."""
    with contextlib.suppress(ImportError):
        from egalitarian._resident import inverse_root_kernel

        return inverse_root_kernel
    return None
