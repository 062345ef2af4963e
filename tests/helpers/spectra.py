"""Matrices with known singular values, tables of matrices and kernels, and reference values for their tests."""

import math
from collections.abc import Callable, Sequence

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from egalitarian import normalize, polar, polar_lowrank, spectrum
from egalitarian.kernels import RTOL, natural

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALF = (torch.float16, torch.bfloat16)
METHODS = ("eigh", "polynomial", "svd")
"""Exact ones. "rational" computes loose tiers only: tests/kernels/test_rational.py has its laws."""
BY_VALUES = ("eigh", "svd")
"""Methods that compute the singular values: their cut-off is sharp, and they take a floor."""
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "polar": polar,
    "by svd": lambda G: polar(G, method="svd"),
    "polar_lowrank": lambda G: polar_lowrank(G, 2),
    "natural": natural,
    "normalize": normalize,
    "spectrum": lambda G: spectrum(G).values,
}
SHAPES = ((7, 12), (12, 7), (9, 9), (1, 6), (6, 1), (1, 1))
ROUNDING = 1e-14
"""Of the float64 arithmetic that measures an error."""

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


SPECTRA: dict[str, Callable[[int, float], Tensor]] = {
    "decades": decades,
    "half and half": lambda count, condition: torch.cat(
        [torch.ones(count // 2), torch.full((count - count // 2,), 1 / condition)]
    ),
    "one strong": lambda count, condition: torch.cat([torch.ones(1), torch.full((count - 1,), 1 / condition)]),
    "one weak": lambda count, condition: torch.cat([torch.ones(count - 1), torch.full((1,), 1 / condition)]),
    "even": lambda count, condition: torch.linspace(1, 1 / condition, count),
}
"""count, condition -> singular values from 1 down to 1 / condition."""


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
    """The largest singular value that a polar factor may have."""
    return 1 + (2 * torch.finfo(dtype).eps if dtype in HALF else 1e-4)


def distance(A: Tensor, B: Tensor) -> float:
    return torch.linalg.matrix_norm(A.to(torch.float64) - B.to(torch.float64)).max().item()


def rank(P: Tensor) -> int:
    """Of a matrix whose singular values are about 1 or about 0."""
    return int((singular_values(P) > 0.5).sum())


def errors(G: Tensor, method: str, rtol: float = RTOL[torch.float32]) -> tuple[float, float]:
    """Distances from the float64 SVD: of `polar`, and of an SVD in float32."""
    exact = svd_cut(G, rtol)
    float32 = svd_cut(G, rtol, torch.float32).to(G.dtype)
    return distance(polar(G, method=method), exact), distance(float32, exact)


def mean_error(G: Tensor, P: Tensor) -> float:
    """The root mean square error of the directions above 1e-3 of the largest, the worse of left and right ones."""
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    strong = 1e-3 * S[0] < S
    error = U.mT @ P.double() @ Vh.mT - torch.eye(len(S))
    worse = max(torch.linalg.matrix_norm(error[strong]), torch.linalg.matrix_norm(error[:, strong]))
    return worse.item() / math.sqrt(int(strong.sum()))


def has_gap(G: Tensor, rtol: float) -> bool:
    """Whether no singular value is within a factor of 10 of the cut-off."""
    S = singular_values(G)
    relative = S / S[0]
    return not ((relative > rtol / 10) & (relative < 10 * rtol)).any()


def at_cut_off(
    rows: int, columns: int, strong: int, spread: float, rtol: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`strong` large directions, and all others at the cut-off times 1 +- spread."""
    weak = min(rows, columns) - strong
    S = torch.cat([torch.full((strong,), 80.0), 80 * rtol * torch.linspace(1 - spread, 1 + spread, weak)])
    return from_spectrum(rows, columns, S, dtype=dtype)


def duplicate_rows() -> Tensor:
    G = gaussian(20, 30, seed=3)
    G[7] = G[3]
    G[11:15] = G[3]
    return G


def zero_rows_and_columns() -> Tensor:
    G = gaussian(20, 30, seed=4)
    G[::3] = 0
    G[:, 5:20] = 0
    return G


def graded_rows() -> Tensor:
    return decades(12, 1e4)[:, None].float() * gaussian(12, 20, seed=5)


CLEAR = {
    "orthonormal": from_spectrum(40, 60, torch.ones(40)),
    "cond 10": from_spectrum(60, 60, decades(60, 10)),
    "cond 1e3": from_spectrum(40, 60, decades(40, 1e3)),
    "cond 1e4": from_spectrum(60, 40, decades(40, 1e4)),
    "cond 9e4": from_spectrum(60, 60, decades(60, 9e4)),
    "two groups": from_spectrum(30, 30, [1.0] * 15 + [2e-5] * 15),
    "rank 30, sigma_1 80": from_spectrum(100, 160, 80 * decades(30, 20)),
    "rank 1": from_spectrum(30, 20, [5.0]),
    "ones": torch.ones(60, 60),
    "triangular": torch.triu(torch.ones(30, 30)),
    "gaussian": gaussian(50, 80),
    "signs": gaussian(16, 16).sign(),
    "duplicate rows": duplicate_rows(),
    "zero rows and columns": zero_rows_and_columns(),
    "graded rows": graded_rows(),
    "row": gaussian(1, 9),
    "column": gaussian(9, 1),
    "number": torch.tensor([[-3.7]]),
}
"""No singular value is within a factor of 10 of the cut-off."""
