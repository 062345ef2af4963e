"""The Gram matrix of one matrix on a CPU, computed once for both sides of the diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

PARTS = 3
"""Blocks of rows. Each is multiplied by itself and the later ones: two thirds of the arithmetic."""
BAND = 128
"""Columns converted at a time."""


def gram(A: Tensor) -> Tensor:
    """A Aᵀ of one matrix."""
    K = upper_gram(A, A.dtype)
    for rows, after in _parts(A):
        K[after, rows] = K[rows, after].mT
    return K


def upper_gram(A: Tensor, dtype: torch.dtype) -> Tensor:
    """The same on and above the diagonal, in `dtype`. Some entries below it are undefined.

    For a wider `dtype`, A is converted in bands: a whole copy would be freed and allocated at every call.
    """
    K = A.new_empty(len(A), len(A), dtype=dtype)
    for index, band in enumerate((A,) if A.dtype == dtype else torch.split(A, BAND, 1)):
        wide = band.to(dtype)
        for rows, _ in _parts(A):
            onward = slice(rows.start, None)
            K[rows, onward].addmm_(wide[rows], wide[onward].mT, beta=min(index, 1))  # 0 ignores what is there
    return K


def _parts(A: Tensor) -> list[tuple[slice, slice]]:
    """(rows, later rows)."""
    size = -(-len(A) // PARTS)
    return [(slice(start, start + size), slice(start + size, None)) for start in range(0, len(A), max(size, 1))]
