"""Matrices (b, m, n) as one float16 word, or as the sum of two, and their products, summed in float32.

Two words hold 22 bits. Three products of words replace one of float32, at the speed of tensor cores. On a GPU with Triton
one launch multiplies, adds, scales and rounds, and symmetric results take half of the work. Elsewhere torch does the same
steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.kernels.route import is_traced


class Words(NamedTuple):
    """high, or high + low."""

    high: Tensor
    low: Tensor | None = None

    @property
    def wide(self) -> Tensor:
        """In float32."""
        return self.high.float() if self.low is None else self.high.float() + self.low

    def times(self, factor: Tensor) -> Words:
        wide = self.high * factor  # in float32, as the factor is
        return words(wide if self.low is None else wide + self.low * factor, 1 if self.low is None else 2)


def words(wide: Tensor, count: int) -> Words:
    """A matrix rounded to one or two words."""
    high = wide.half()
    if count == 1:
        return Words(high)
    if is_traced(wide):
        return Words(high, (wide - high).half())
    return Words(high, torch.sub(wide, high, out=torch.empty_like(high)))


def gram(X: Words, tall: bool) -> Words:
    """X Xᵀ, or Xᵀ X of a tall matrix."""
    turned = Words(X.high.mT, None if X.low is None else X.low.mT)
    return product(turned, X, symmetric=True) if tall else product(X, turned, symmetric=True)


def product(
    A: Words,
    B: Words,
    *,
    alpha: float = 1.0,
    plus: Words | None = None,
    by: float = 0.0,
    shift: float = 0.0,
    scale: Tensor | None = None,
    symmetric: bool = False,
) -> Words:
    """scale (alpha A B + by plus + shift), in as many words as A.

    Args:
        scale: one factor per matrix, (b, 1, 1).
        symmetric: whether the result is symmetric.
    """
    plain = A.low is None and not shift and scale is None
    if plain and not symmetric:  # torch's own product is the fastest
        if plus is None:
            return Words(torch.bmm(A.high, B.high))
        return Words(torch.baddbmm(plus.high, A.high, B.high, beta=by, alpha=alpha))
    if A.high.device.type == "cuda" and not is_traced(A.high) and _launches(A.high.device):
        return _in_one_launch(A, B, alpha, plus, by, shift, scale, symmetric)
    wide = _product(A, B) * alpha
    if plus is not None:
        wide += by * plus.wide
    if shift:
        wide.diagonal(dim1=-2, dim2=-1).add_(shift)
    return words(wide if scale is None else wide * scale, 1 if A.low is None else 2)


def _product(A: Words, B: Words) -> Tensor:
    if A.high.device.type != "cuda" or is_traced(A.high):
        return A.wide @ B.wide
    wide = torch.bmm(A.high, B.high, out_dtype=torch.float32)
    for one, other in ((A.high, B.low), (A.low, B.high)):
        if one is not None and other is not None and A.low is not None:
            wide = torch.baddbmm(wide, one, other, out_dtype=torch.float32)
    return wide


_works: dict[torch.device, bool] = {}
"""Whether the kernel works on a device: tried once."""


def _launches(device: torch.device) -> bool:
    if device not in _works and not torch.cuda.is_current_stream_capturing():
        try:
            one = torch.eye(16, dtype=torch.float16, device=device)[None]
            for each in (Words(one), Words(one, one)):
                _in_one_launch(each, each, 1.0, None, 0.0, 0.0, None, True)
            torch.cuda.synchronize(device)
            _works[device] = True
        except torch.OutOfMemoryError:
            raise
        except Exception:  # no Triton, no compiler or an unsupported GPU: torch's products do without
            _works[device] = False
    return _works.get(device, False)


def _in_one_launch(
    A: Words,
    B: Words,
    alpha: float,
    plus: Words | None,
    by: float,
    shift: float,
    scale: Tensor | None,
    symmetric: bool,
) -> Words:
    from egalitarian.kernels.triton_kernels import product_kernel

    count, m, inner = A.high.shape
    n = B.high.shape[-1]
    split = A.low is not None
    high = torch.empty(count, m, n, dtype=torch.float16, device=A.high.device)
    low = torch.empty_like(high) if split else None
    rows, columns, step, warps, stages = _tiling(count, m, n, split, symmetric)
    tiles = -(-m // rows) * -(-n // columns)
    C = plus if plus is not None else A
    with torch.cuda.device(A.high.device):
        product_kernel[(tiles, count)](
            *(A.high, A.low if split else A.high),
            *(B.high, B.low if split else B.high),
            *(C.high, C.low if split else C.high),
            *(high, low if split else high),
            A.high if scale is None else scale,
            *(alpha, by, shift, m, n, inner),
            *A.high.stride(),
            *B.high.stride(),
            WORDS=2 if split else 1,
            SYMMETRIC=symmetric,
            PLUS=plus is not None,
            SCALED=scale is not None,
            ROWS=rows,
            COLUMNS=columns,
            INNER=step,
            num_warps=warps,
            num_stages=stages,
        )
    return Words(high, low)


def _tiling(count: int, m: int, n: int, split: bool, symmetric: bool) -> tuple[int, int, int, int, int]:
    """Sides of a tile, inner step, warps and stages: small tiles if large ones would leave processors idle."""
    if count * m * n < 132 * 128 * 128:
        return 64, 64, 64, 4, 3
    if not split:
        return 128, 128, 64, 4, 3
    if m < 2048:
        return 128, 128, 64, 8, 3
    return (128, 128, 32, 8, 4) if symmetric else (128, 256, 32, 8, 4)
