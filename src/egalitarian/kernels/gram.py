"""The Gram matrix of one matrix on a CPU, without computing twice what is the same on both sides of the diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

PARTS = 3
"""Of the rows: each meets itself and those after it, which is two thirds of the arithmetic."""
BAND = 128
"""Columns that are converted at a time."""


def gram(A: Tensor) -> Tensor:
    """A Aᵀ of one matrix."""
    K = upper_gram(A, A.dtype)
    for rows, after in _parts(A):
        K[after, rows] = K[rows, after].mT
    return K


def upper_gram(A: Tensor, dtype: torch.dtype) -> Tensor:
    """The same on and above the diagonal, in `dtype`. Some entries below it are undefined.

    For a wider `dtype`, A is converted in bands: the system would free and allocate a whole copy of A every time.
    """
    K = A.new_empty(len(A), len(A), dtype=dtype)
    for place, band in enumerate((A,) if A.dtype == dtype else torch.split(A, BAND, 1)):
        wide = band.to(dtype)
        for rows, _ in _parts(A):
            onward = slice(rows.start, None)
            K[rows, onward].addmm_(wide[rows], wide[onward].mT, beta=min(place, 1))  # 0: what is there counts for nothing
    return K


def _parts(A: Tensor) -> list[tuple[slice, slice]]:
    """(rows, those after them)."""
    size = -(-len(A) // PARTS)
    return [(slice(start, start + size), slice(start + size, None)) for start in range(0, len(A), max(size, 1))]
