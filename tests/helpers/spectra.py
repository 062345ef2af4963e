"""Matrices with known singular values, and what the tests of the kernels compare with."""

from collections.abc import Sequence

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALF = (torch.float16, torch.bfloat16)
METHODS = ("eigh", "polynomial", "svd")
BY_VALUES = ("eigh", "svd")
"""Those that know the singular values: the cut is where it is said to be, and a floor is possible."""
SHAPES = ((7, 12), (12, 7), (9, 9), (1, 6), (6, 1), (1, 1))

law = settings(max_examples=100, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
sides = st.integers(1, 12)


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(gaussian(rows, columns, seed=seed, dtype=torch.float64)).Q


def from_spectrum(
    rows: int, columns: int, values: Sequence[float] | Tensor, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A dense matrix with these singular values, up to rounding to the dtype; the others are zero."""
    S = torch.as_tensor(values, dtype=torch.float64)
    U, V = orthonormal(rows, len(S), seed), orthonormal(columns, len(S), seed + 1)
    return ((U * S) @ V.mT).to(dtype)


def decades(count: int, condition: float) -> Tensor:
    """`count` values from 1 down to 1 / condition, evenly spaced in the logarithm."""
    return condition ** -torch.linspace(0, 1, count, dtype=torch.float64)


@st.composite
def conditioned(draw: st.DrawFn, most: float = 1e4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, float]:
    """A matrix of full rank, and its condition number."""
    rows, columns = draw(sides), draw(sides)
    condition = 10 ** draw(st.floats(0, torch.tensor(most).log10().item()))
    G = from_spectrum(rows, columns, decades(min(rows, columns), condition), seed=draw(seeds), dtype=dtype)
    return G, condition


def svd_cut(G: Tensor, rtol: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """U @ Vh from an SVD in `dtype`, over the singular values above `rtol` of the largest."""
    U, S, Vh = torch.linalg.svd(G.to(dtype), full_matrices=False)
    kept = rtol * S[..., :1] < S
    return (U * kept[..., None, :]) @ Vh


def singular_values(G: Tensor) -> Tensor:
    return torch.linalg.svdvals(G.to(torch.float64))


def largest(P: Tensor) -> float:
    return singular_values(P).max().item()


def bound(dtype: torch.dtype) -> float:
    """What no singular value of a polar factor may exceed."""
    return 1 + (2 * torch.finfo(dtype).eps if dtype in HALF else 1e-4)


def distance(A: Tensor, B: Tensor) -> float:
    return torch.linalg.matrix_norm(A.to(torch.float64) - B.to(torch.float64)).max().item()


def rank(P: Tensor) -> int:
    """Of a matrix whose singular values are about 1 or about 0."""
    return int((singular_values(P) > 0.5).sum())
