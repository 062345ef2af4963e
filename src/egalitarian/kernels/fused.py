"""The inverse root of small Gram matrices as one Triton kernel, which keeps each matrix in one block.

The arithmetic is that of `polynomial`. One launch replaces about a hundred, which would take longer than their work.
Without Triton or its compiler, and while torch traces, `polynomial` makes the launches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import Steps

LARGEST = 64
"""The largest matrix for which one block is faster (benchmarks/fused.py: 10 times at 4, 6 at 32, 1.3 to 1.9 at 64)."""

_tables: dict[tuple[Steps, int, torch.device], Tensor | None] = {}
"""The coefficients on a device, by steps and size; None where the kernel does not work."""


def is_available(k: int, device: torch.device, steps: Steps) -> bool:
    """Whether the kernel works for Gram matrices (k, k) in float64.

    The first call tries it, unless a CUDA graph is being captured.
    """
    if k > LARGEST or not k or device.type != "cuda":
        return False
    key = steps, k, _indexed(device)
    if key not in _tables and not torch.cuda.is_current_stream_capturing():
        _tables[key] = _tried(*key)
    return _tables.get(key) is not None


def inverse_root(K: Tensor, cut: float, steps: Steps, *, sharp: bool) -> Tensor:
    """(K + e²)^(-1/2) with e² = ratio cut², scaled as in `polynomial._normalized`. `sharp`: with a sharp cut-off."""
    table = _tables[steps, K.shape[-1], K.device]
    assert table is not None
    return _launched(K, cut, table, sharp)


def _indexed(device: torch.device) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _launched(K: Tensor, cut: float, table: Tensor, sharp: bool) -> Tensor:
    from egalitarian.kernels.triton_kernels import inverse_root_kernel

    flat = K.reshape(-1, *K.shape[-2:]).contiguous()
    Z = torch.empty_like(flat)
    k = K.shape[-1]
    size = max(16, 1 << (k - 1).bit_length())
    with torch.cuda.device(K.device):
        inverse_root_kernel[(len(flat),)](flat, Z, table, len(table), k, cut * cut, size, sharp)
    return Z.reshape(K.shape)


def _tried(steps: Steps, k: int, device: torch.device) -> Tensor | None:
    """The coefficients on the device, after one launch that worked; None if it did not."""
    try:
        table = torch.tensor(steps, dtype=torch.float64).pin_memory().to(device, non_blocking=True)
        for sharp in (False, True):
            _launched(torch.eye(k, dtype=torch.float64, device=device), 1e-6, table, sharp)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(device))
        done.synchronize()  # once: every stream sees the table, and a failure is known
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no Triton, no compiler or an unsupported GPU: `polynomial` works without
        return None
    return table
