"""The coarse and the fast polar factor by half-precision products: tensor cores, a fixed number of steps, no branch.

Odd quintics act on the factor itself, X <- (a + b K + c K²) X with K = X Xᵀ, from X = G / ν until every direction is near
1. The first step finds ν = |K²|^(1/4), the Schatten-8 norm of G. It is at least the largest singular value, and at most the
Schatten-4 norm.

- Coarse: four steps in float16. Together they amplify a weak direction about 260 times, so that rounding noise stays weak.
- Fast: seven steps. In the first four every matrix is the sum of two float16 words: one would drown weak directions.

For a long matrix, two steps at a time act on its Gram matrix. The next pair starts from the Gram matrix of the new factor.
That removes the rounding which the pair before has amplified. The last fast steps are single,
since the rounding of a pair would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from egalitarian.kernels.coefficients import Coefficients, quintics
from egalitarian.kernels.route import Route, is_traced

MARGIN = 1.02
"""Steps in one word allow for singular values this much above their interval: there a quintic is steep."""
COARSE_LOW = 1 / 240
"""The lower end of the coarse steps. Four are enough for it."""
COARSE_TOLERANCE = 0.15
"""The distance from 1 that the coarse steps leave, before rounding."""
FAST_LOW = 3.5e-4
"""The lower end of the fast steps: 1e-3 of the largest singular value, which is at least a third of the norm."""
FAST_TOLERANCE = 1e-3
SPLIT_STEPS = 4
"""Fast steps in two words. After them, no direction above 1e-3 of the largest is weak."""
LONG = 1.5
"""From this ratio of the sides on, pairs of steps on the Gram matrix cost less."""
LONGEST_ROW = 32768
"""The entries of longer rows are scaled below 1: a Gram matrix must not overflow float16."""
SMALLEST_NORM = 1e-2
"""Guards divisions for a zero matrix. The Gram matrix of any other has a norm near 1 or above."""


def polar_by_halves(route: Route, G: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of every matrix in G. A zero matrix stays zero, a non-finite one becomes NaN."""
    if G.numel() == 0:
        return G.clone()
    traced = is_traced(G)
    flat = G.reshape(-1, *G.shape[-2:])
    native = G.device.type == "cuda" and not traced
    if route.tier == "coarse":
        X = coarse_factor(_scaled(flat, route.padded, traced, torch.float16))
    else:
        X = fast_factor(_scaled(flat, route.padded, traced, torch.float32), native)
    return X[:, : G.shape[-2], : G.shape[-1]].reshape(G.shape).to(G.dtype)


def coarse_factor(X: Tensor) -> Tensor:
    """U Vᵀ of float16 matrices (b, m, n) with entries of at most 1. Directions below 1/260 of the norm come out weaker."""
    return _iterated(Matrix(X), [_eased(step) for step in quintics(COARSE_LOW, COARSE_TOLERANCE)], starts=True).wide


def fast_factor(X: Tensor, native: bool) -> Tensor:
    """U Vᵀ of float32 matrices (b, m, n) with entries of at most 1, to 1e-3 for directions above 1e-3 of the largest.

    Args:
        native: whether the device sums float16 products into a float32 matrix. Otherwise they are made in float32.
    """
    steps = quintics(FAST_LOW, FAST_TOLERANCE)
    strong = _iterated(_split(X, native), steps[:SPLIT_STEPS], starts=True)
    return _iterated(Matrix(strong.wide.half()), steps[SPLIT_STEPS:], starts=False, pairs=False).wide


def _eased(step: Coefficients) -> Coefficients:
    a, b, c = step
    return a / MARGIN, b / MARGIN**3, c / MARGIN**5


class Matrix(NamedTuple):
    """Float16 matrices; or float32 ones as the sum of two float16 words."""

    wide: Tensor
    high: Tensor | None = None
    low: Tensor | None = None
    native: bool = True


def _split(wide: Tensor, native: bool) -> Matrix:
    high = wide.half()
    low = torch.sub(wide, high, out=torch.empty_like(high)) if native else (wide - high).half()
    return Matrix(wide, high, low, native)


def _like(A: Matrix, wide: Tensor) -> Matrix:
    """Another matrix in the representation of A."""
    return Matrix(wide.half()) if A.high is None else _split(wide, A.native)


def _sum(by: float, C: Matrix, A: Matrix, B: Matrix) -> Matrix:
    """by C + A B."""
    if A.high is None or A.low is None or B.high is None or B.low is None:
        return Matrix(torch.baddbmm(C.wide, A.wide, B.wide, beta=by))
    if A.native:
        wide = torch.baddbmm(C.wide, A.high, B.high, out_dtype=torch.float32, beta=by)
        wide = torch.baddbmm(wide, A.high, B.low, out_dtype=torch.float32)
        return _split(torch.baddbmm(wide, A.low, B.high, out_dtype=torch.float32), True)
    return _split(by * C.wide + A.wide @ B.wide, False)


def _times(A: Matrix, B: Matrix) -> Matrix:
    if A.high is None or A.low is None or B.high is None or B.low is None:
        return Matrix(torch.bmm(A.wide, B.wide))
    if A.native:
        wide = torch.bmm(A.high, B.high, out_dtype=torch.float32)
        wide = torch.baddbmm(wide, A.high, B.low, out_dtype=torch.float32)
        return _split(torch.baddbmm(wide, A.low, B.high, out_dtype=torch.float32), True)
    return _split(A.wide @ B.wide, False)


def _gram(A: Matrix, tall: bool = False) -> Matrix:
    """A Aᵀ, or Aᵀ A of a tall matrix. Half of the second-order terms is computed, the rest is its transpose."""
    if A.high is None or A.low is None:
        return Matrix(torch.bmm(A.wide.mT, A.wide) if tall else torch.bmm(A.wide, A.wide.mT))
    high, low = (A.high.mT, A.low.mT) if tall else (A.high, A.low)
    if A.native:
        half = torch.bmm(high, high.mT, out_dtype=torch.float32)
        half = torch.baddbmm(half, high, low.mT, out_dtype=torch.float32, beta=0.5)
        return _split(half + half.mT, True)
    wide = A.wide.mT if tall else A.wide
    return _split(wide @ wide.mT, False)


def _iterated(X: Matrix, steps: Sequence[Coefficients], *, starts: bool, pairs: bool = True) -> Matrix:
    """The steps on X. The first normalises it, if `starts`."""
    rows, columns = X.wide.shape[-2:]
    tall = rows > columns
    pairs = pairs and max(rows, columns) >= LONG * min(rows, columns)
    K = _gram(X, tall)
    scale: Tensor | float = 1.0
    if starts:
        K, scale = _normalized(K)
    while True:
        a, *_ = steps[0]
        if pairs and len(steps) > 1:
            Z, steps = _pair(K, *steps[:2]), steps[2:]
            X = _applied(_like(Z, Z.wide * scale), X, tall)
        elif isinstance(scale, Tensor):
            Z, steps = _shifted(_quintic(K, steps[0]), a), steps[1:]
            X = _applied(_like(Z, Z.wide * scale), X, tall)
        else:
            H, steps = _quintic(K, steps[0]), steps[1:]
            X = _sum(a, X, X, H) if tall else _sum(a, X, H, X)
        if not steps:
            return X
        K, scale = _gram(X, tall), 1.0


def _applied(Z: Matrix, X: Matrix, tall: bool) -> Matrix:
    return _times(X, Z) if tall else _times(Z, X)


def _normalized(K: Matrix) -> tuple[Matrix, Tensor]:
    """(K / ν², 1 / ν)."""
    norm = _norm(K).clamp_min(SMALLEST_NORM)
    K = _like(K, K.wide / norm)
    ratio = _norm(_gram(K)).sqrt().clamp_min(SMALLEST_NORM)
    return _like(K, K.wide / ratio), (norm * ratio).rsqrt()


def _norm(K: Matrix) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(K.wide, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    return norm


def _quintic(K: Matrix, step: Coefficients) -> Matrix:
    """b K + c K²."""
    _, b, c = step
    if K.high is None:
        return Matrix(torch.baddbmm(K.wide, K.wide, K.wide, beta=b, alpha=c))
    return _like(K, _gram(K).wide.mul_(c).add_(K.wide, alpha=b))


def _shifted(H: Matrix, by: float) -> Matrix:
    """H + by."""
    H.wide.diagonal(dim1=-2, dim2=-1).add_(by)
    return H if H.high is None else _split(H.wide, H.native)


def _pair(K: Matrix, first: Coefficients, second: Coefficients) -> Matrix:
    """Z with Z X the factor after two steps from X, where K = X Xᵀ."""
    H = _quintic(K, first)
    Y = _sum(first[0], K, H, K)
    L = _sum(first[0], Y, Y, H)  # the Gram matrix after the first step
    M = _quintic(L, second)
    Z = _shifted(H, first[0])
    return _sum(second[0], Z, M, Z)


def _scaled(G: Tensor, padded: bool, traced: bool, dtype: torch.dtype) -> Tensor:
    """G with its largest entry scaled to 1 or less; all NaN if an entry is not finite.

    Zeros pad both sides to a multiple of 8, if `padded`: tensor cores need that.
    """
    rows, columns = G.shape[-2:]
    largest = torch.linalg.vector_norm(G, torch.inf, dim=(-2, -1), keepdim=True)
    top = min(1.0, (LONGEST_ROW / max(rows, columns)) ** 0.5)
    largest = largest.to(torch.promote_types(G.dtype, torch.float32))
    factor = (top / largest).clamp_max(torch.finfo(largest.dtype).max)
    factor = torch.where(torch.isfinite(largest), factor, torch.nan)
    below, right = (-rows % 8, -columns % 8) if padded else (0, 0)
    if traced:
        return functional.pad((G * factor).to(dtype), (0, right, 0, below))
    X = torch.empty(len(G), rows + below, columns + right, dtype=dtype, device=G.device)
    if below or right:
        X.zero_()
    torch.mul(G, factor, out=X[:, :rows, :columns])
    return X
