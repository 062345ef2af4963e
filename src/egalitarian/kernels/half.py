"""The coarse and the fast polar factor by half-precision products: tensor cores, a fixed number of steps, no branch.

Odd quintics act on the factor itself: X <- (a + b K + c K²) X with K = X Xᵀ, from X = G / ν until every direction is
near 1. The first step finds ν: the Schatten-8 norm of G, |K²|^(1/4), or for fast the Schatten-16 norm, |K⁴|^(1/8). It is at
least the largest singular value, and at most the Schatten-4 norm.

- Coarse: four steps in float16. Together they amplify a weak direction about 240 times, so that rounding noise stays weak.
- Fast: seven steps. In the first five every matrix is the sum of two float16 words: one would drown weak directions.

For a long matrix, two steps at a time act on its Gram matrix. The next pair starts from the Gram matrix of the new factor.
That removes the rounding which the pair before has amplified. The last fast steps are single, since the rounding of a pair
would show.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import Coefficients, quintics
from egalitarian.kernels.route import Route, is_traced
from egalitarian.kernels.words import Words, gram, product, words

MARGIN = 1.02
"""Steps in one word allow for singular values this much above their interval: there a quintic is steep."""
COARSE_LOW = 1 / 240
"""The lower end of the coarse steps. Four are enough for it."""
COARSE_TOLERANCE = 0.15
"""The distance from 1 that the coarse steps leave, before rounding."""
FAST_LOW = 5.5e-4
"""The lower end of the fast steps: 1e-3 of the largest singular value, which is more than half of the norm."""
FAST_TOLERANCE = 1e-3
SPLIT_STEPS = 5
"""Fast steps in two words. After four, no direction above 1e-3 of the largest is weak; the fifth is for matrices of a few
rows, whose rounding does not average out."""
LONG = 1.5
"""From this ratio of the sides on, pairs of steps on the Gram matrix cost less."""
LONGEST_ROW = 32768
"""The entries of longer rows are scaled below 1: a Gram matrix must not overflow float16."""
ROUNDED = 1.002
"""What rounding to one word may take from the square of the norm, which must not be below the largest singular value's."""
SMALLEST_NORM = 1e-2
"""Guards divisions for a zero matrix. The Gram matrix of any other has a norm near 1 or above."""
MULTIPLE = 16
"""On a GPU, zeros pad both sides to a multiple of this: tensor cores need it."""


def polar_by_halves(route: Route, G: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of every matrix in G. A zero matrix stays zero, a non-finite one becomes NaN."""
    if G.numel() == 0:
        return G.clone()
    factor = coarse_factor if route.tier == "coarse" else fast_factor
    dtype = torch.float16 if route.tier == "coarse" else torch.float32
    X = factor(_scaled(G.reshape(-1, *G.shape[-2:]), MULTIPLE if route.padded else 1, dtype))
    return X[:, : G.shape[-2], : G.shape[-1]].reshape(G.shape).to(G.dtype)


def coarse_factor(X: Tensor) -> Tensor:
    """U Vᵀ of float16 matrices (b, m, n) with entries of at most 1. Directions below 1/240 of the norm come out weaker."""
    steps = [_eased(step) for step in quintics(COARSE_LOW, COARSE_TOLERANCE)]
    return _iterated(Words(X), steps, starts=True).high


def fast_factor(X: Tensor) -> Tensor:
    """The same of float32 matrices, to 1e-3 for directions above 1e-3 of the largest."""
    steps = quintics(FAST_LOW, FAST_TOLERANCE)
    strong = _iterated(words(X, 2), steps[:SPLIT_STEPS], starts=True)
    return _iterated(Words(strong.high), steps[SPLIT_STEPS:], starts=False, pairs=False).high


def _eased(step: Coefficients) -> Coefficients:
    a, b, c = step
    return a / MARGIN, b / MARGIN**3, c / MARGIN**5


def _iterated(X: Words, steps: Sequence[Coefficients], *, starts: bool, pairs: bool = True) -> Words:
    """The steps on X. The first normalises it, if `starts`."""
    rows, columns = X.high.shape[-2:]
    tall = rows > columns
    pairs = pairs and max(rows, columns) >= LONG * min(rows, columns)
    K, scale = gram(X, tall), None
    if starts:
        K, scale = _normalized(K)
    while True:
        a, *_ = steps[0]
        if pairs and len(steps) > 1:
            Z, steps = _pair(K, steps[0], steps[1], scale), steps[2:]
            X = product(X, Z) if tall else product(Z, X)
        elif scale is not None:
            Z, steps = _quintic(K, steps[0], a, scale), steps[1:]
            X = product(X, Z) if tall else product(Z, X)
        else:
            H, steps = _quintic(K, steps[0]), steps[1:]
            X = product(X, H, plus=X, by=a) if tall else product(H, X, plus=X, by=a)
        if not steps:
            return X
        K, scale = gram(X, tall), None


def _normalized(K: Words) -> tuple[Words, Tensor]:
    """(K / ν², 1 / ν)."""
    norm = _norm(K).clamp_min(SMALLEST_NORM)
    rough = Words(K.high)  # a norm needs no second word
    square = product(rough, rough, scale=norm**-2, symmetric=True)
    ratio = _norm(square).sqrt().clamp_min(SMALLEST_NORM)
    above = norm * ratio * ROUNDED
    if K.low is not None:
        fourth = product(square, square, scale=ratio**-4, symmetric=True)
        above = above * _norm(fourth).sqrt().sqrt().clamp_min(SMALLEST_NORM)
    return K.times(1 / above), above.rsqrt()


def _norm(K: Words) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(K.high, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    return norm


def _quintic(K: Words, step: Coefficients, shift: float = 0.0, scale: Tensor | None = None) -> Words:
    """b K + c K² + shift, times the scale."""
    _, b, c = step
    return product(K, K, alpha=c, plus=K, by=b, shift=shift, scale=scale, symmetric=True)


def _pair(K: Words, first: Coefficients, second: Coefficients, scale: Tensor | None) -> Words:
    """Z with Z X the factor after two steps from X / scale, where K = X Xᵀ."""
    Z = _quintic(K, first, first[0])
    L = product(product(Z, K), Z)  # the Gram matrix after the first step
    M = _quintic(L, second, second[0])
    return product(M, Z, scale=scale)


def _scaled(G: Tensor, multiple: int, dtype: torch.dtype) -> Tensor:
    """G with its largest entry scaled to 1 or less, padded with zeros; all NaN if an entry is not finite."""
    rows, columns = G.shape[-2:]
    largest = torch.linalg.vector_norm(G, torch.inf, dim=(-2, -1), keepdim=True)
    top = min(1.0, (LONGEST_ROW / max(rows, columns)) ** 0.5)
    largest = largest.to(torch.float64)  # its inverse may be out of float32's range
    factor = torch.where(torch.isfinite(largest), top / largest.clamp_min(1e-300), torch.nan)
    below, right = -rows % multiple, -columns % multiple
    if is_traced(G):
        return torch.constant_pad_nd((G * factor).to(dtype), (0, right, 0, below))
    X = torch.empty(len(G), rows + below, columns + right, dtype=dtype, device=G.device)
    if below or right:
        X.zero_()
    torch.mul(G, factor, out=X[:, :rows, :columns])
    return X
