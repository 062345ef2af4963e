"""The inverse root of small Gram matrices as one Triton kernel: a block holds its matrix from first to last.

The arithmetic is that of `products`; only its hundred launches, which take longer than their work where matrices are this
small, are one. Where Triton or its compiler is missing, or torch is being traced, `products` does it step by step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egalitarian.kernels.route import traced

MOST = 64
"""The largest matrix that one block is faster at (benchmarks/resident.py: 10 times at 4, 6 at 32, 1.3 to 1.9 at 64)."""

Steps = tuple[tuple[float, float, float], ...]

_tables: dict[tuple[Steps, int, torch.device], Tensor | None] = {}
"""The coefficients on a device, for matrices of a size; None where the kernel cannot be had."""


def fits_a_block(K: Tensor, steps: Steps) -> bool:
    """Whether the kernel takes such a Gram matrix, (..., k, k)."""
    small = K.shape[-1] <= MOST and K.numel() > 0 and K.dtype == torch.float64
    return small and K.device.type == "cuda" and not traced(K) and _ready(steps, K.shape[-1], K.device)


def inverse_root(K: Tensor, cut: float, steps: Steps, *, sharp: bool) -> Tensor:
    """(K + e²)^(-1/2) with e² = ratio cut², scaled as `products._normalized` does; `sharp`: and its cut made sharp."""
    table = _tables[steps, K.shape[-1], K.device]
    assert table is not None
    return _launched(K, cut, table, sharp)


def _launched(K: Tensor, cut: float, table: Tensor, sharp: bool) -> Tensor:
    from egalitarian.kernels.triton_kernels import inverse_root_kernel

    flat = K.reshape(-1, *K.shape[-2:]).contiguous()
    Z = torch.empty_like(flat)
    k = K.shape[-1]
    size = max(16, 1 << (k - 1).bit_length())
    with torch.cuda.device(K.device):
        inverse_root_kernel[(len(flat),)](flat, Z, table, len(table), k, cut * cut, size, sharp)
    return Z.reshape(K.shape)


def _ready(steps: Steps, k: int, device: torch.device) -> bool:
    """Whether the kernel has been tried for such matrices; the first time it is, unless a CUDA graph is being captured."""
    key = steps, k, device
    if key not in _tables and not torch.cuda.is_current_stream_capturing():
        _tables[key] = _tried(steps, k, device)
    return _tables.get(key) is not None


def _tried(steps: Steps, k: int, device: torch.device) -> Tensor | None:
    try:
        table = torch.tensor(steps, dtype=torch.float64).pin_memory().to(device, non_blocking=True)
        for sharp in (False, True):
            _launched(torch.eye(k, dtype=torch.float64, device=device), 1e-6, table, sharp)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(device))
        done.synchronize()  # this once: the table is there for every stream, and what went wrong is known
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no Triton, no compiler for it, no such card: whatever it is, `products` has another way
        return None
    return table
