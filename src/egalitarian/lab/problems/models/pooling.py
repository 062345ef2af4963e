"""relu(max_pool2d(x, 2) + bias), what follows a convolution: on CUDA as one Triton kernel each way, which is the same.

Torch's own take several passes over the largest tensors of the network.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK = 1024
LAST = torch.channels_last


def pooled(x: Tensor, bias: Tensor) -> Tensor:
    """The largest of each 2 x 2 of images (points, channels, height, width), plus the bias, where that is positive."""
    even = x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
    if even and x.device.type == "cuda" and x.is_contiguous(memory_format=LAST) and has_kernels(x.device):
        values: Tensor = _Pooled.apply(x, bias)  # type: ignore[no-untyped-call]
        return values
    return F.relu(F.max_pool2d(x, 2) + bias[:, None, None])


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from egalitarian.lab.problems.models.pooling_triton import forward_kernel

        points, channels, height, width = x.shape
        y = torch.empty((points, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=LAST)
        chosen = torch.empty_like(y, dtype=torch.int8)
        with torch.cuda.device(x.device):
            forward_kernel[grid(y)](x, bias, y, chosen, height // 2, width // 2, channels, y.numel(), BLOCK)
        ctx.save_for_backward(chosen)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        from egalitarian.lab.problems.models.pooling_triton import backward_kernel

        (chosen,) = ctx.saved_tensors
        above = torch.where(chosen >= 0, above, 0).contiguous(memory_format=LAST)
        points, channels, rows, columns = above.shape
        x = torch.empty(
            (points, channels, 2 * rows, 2 * columns), dtype=above.dtype, device=above.device, memory_format=LAST
        )
        with torch.cuda.device(x.device):
            backward_kernel[grid(above)](above, chosen, x, rows, columns, channels, above.numel(), BLOCK)
        return x, above.sum((0, 2, 3))


def grid(y: Tensor) -> tuple[int]:
    return (-(-y.numel() // BLOCK),)


@cache
def has_kernels(device: torch.device) -> bool:
    """Tried once."""
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whoever asks first
            x = torch.zeros(1, 1, 2, 2, device=device, requires_grad=True)
            _Pooled.apply(x, torch.ones(1, device=device)).sum().backward()  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # no Triton, or no compiler for it
        return False
    return True
