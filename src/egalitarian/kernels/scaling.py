"""Scaling: matrices that a kernel can square without overflow, non-finite ones set apart, and the row norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from egalitarian.checks import check_number
from egalitarian.kernels.route import check_matrix


def contained(
    G: Tensor, kernel: Callable[[Tensor, Tensor], Tensor], readable: bool, dtype: torch.dtype = torch.float64
) -> Tensor:
    """kernel(X, scale) with X = G / scale, which can be squared in `dtype`. A non-finite matrix comes back as NaN.

    The scale, of shape (..., 1), is a power of two per matrix, so that scaling itself rounds nothing.

    Args:
        readable: whether values may decide which operations run: on a CPU, outside vmap and tracing.
    """
    if G.numel() == 0:
        return G.clone()
    fits = torch.finfo(G.dtype).max < torch.finfo(dtype).max ** 0.5
    if fits and G.ndim == 2 and readable and math.isfinite(float(G.sum())):  # then every entry is finite
        return kernel(G, G.new_ones(1)).to(G.dtype)
    largest = largest_entry(G).to(torch.float64)
    finite = torch.isfinite(largest)
    if readable and bool(finite.all()):  # saves two passes
        X, scale = scaled(G, largest, dtype)
        return kernel(X, scale).to(G.dtype)
    X, scale = scaled(torch.where(finite, G, 0), torch.where(finite, largest, 0), dtype)
    return torch.where(finite, kernel(X, scale).to(G.dtype), math.nan)


def largest_entry(G: Tensor) -> Tensor:
    """max |G_ij| of each matrix, (..., 1, 1). It is NaN or Inf if any entry is."""
    return G.abs().amax((-2, -1), keepdim=True)


def scaled(G: Tensor, largest: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(X, scale) with G = scale X. A dtype narrower than `dtype` needs no scale: X is G itself."""
    one = torch.ones_like(largest)
    if torch.finfo(G.dtype).max < torch.finfo(dtype).max ** 0.5:
        return G, one[..., 0]
    exponent = torch.frexp(largest).exponent
    half = torch.div(exponent, 2, rounding_mode="floor")  # 2**-exponent alone may overflow
    wide = torch.promote_types(G.dtype, dtype)  # large values of G may overflow in `dtype`
    X = G.to(wide) * torch.ldexp(one, -half).to(wide) * torch.ldexp(one, half - exponent).to(wide)
    return X.to(dtype), torch.ldexp(one, exponent)[..., 0]


@torch.no_grad()
def normalize(G: Tensor, *, floor: float = 0.01) -> Tensor:
    """Row norm: divides every row g of G by max(|g|, floor).

    Args:
        G: one matrix or a batch `(..., m, n)`. Rows are output units, as torch stores weights.
        floor: rows with a smaller norm are divided by `floor` itself, so they stay shorter than 1. The paper uses 0.01.

    Returns:
        A new tensor with the shape and dtype of G. A row with a NaN or an Inf comes back as NaN; others are not affected.

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: G has fewer than two dimensions, or `floor` is not positive.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.005]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """
    check_matrix(G)
    check_number("floor", floor, "the paper uses 0.01", above=0.0)
    X = G.to(torch.float64)
    largest = X.abs().amax(-1, keepdim=True) if X.shape[-1] else X.new_ones((*X.shape[:-1], 1))
    unit = torch.where(largest > 0, largest, 1)  # so that no square overflows
    norm = torch.linalg.vector_norm(X / unit, dim=-1, keepdim=True) * unit
    return torch.where(torch.isfinite(largest), X / norm.clamp_min(floor), math.nan).to(G.dtype)
