"""The polar factor by matrix products alone: a fixed number of them, no branch, no synchronisation, any batch.

With K = A Aᵀ / ν² (the short side in front, ν at least the largest singular value) and a cut e, (K + e²)^(-1/2) A / ν is
the polar factor with a soft cut: a direction of singular value s comes out as s / sqrt(s² + e²). The inverse root is a
composition of odd quintics, each the closest to 1 on the interval that the one before leaves, run on R = K + e² and Z side
by side: with h = a + b R + c R²,

    Z <- Z h,    R <- R h²,    from Z = 1 until R = 1, when Z = (K + e²)^(-1/2).

Then the cut is made sharp: W = 1 - e² Z² has the squares of the singular values so far, and a polynomial of W drives those
above one half to 1 and those below to 0. A last quintic on the factor itself ends the job.

For large matrices a rational step is cheaper than four quintics: h = b/c + (a - b/c) (1 + c R)^(-1), by Cholesky: the QDWH
of Nakatsukasa, Bai and Gygi on the Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import LAST, Coefficients, narrowing, quintics, rationals
from egalitarian.kernels.fused import fits_a_block, inverse_root

TOLERANCE = 2e-3
"""How near to 1 the inverse root must bring what the last quintic is to finish."""
SHARP = (15.0, -27.5, 16.5, -3.0)
"""W³ (15 - 55/2 W + 33/2 W² - 3 W³): the smooth step 10 W³ - 15 W⁴ + 6 W⁵ times (3 - W) / 2, first order of W^(-1/2)."""
FAST_LOW = 1e-3
"""The weakest direction, of the largest, that the fast factor equalises."""
FAST_TOLERANCE = 3e-3
"""How near to 1, before rounding to half precision."""
WEAK = 0.03
"""How strong every direction must be before half precision may take over."""
BASIS_CUT = 1e-6
"""Where the soft cut of a basis on the way lies."""
ROUGH = 0.3
"""How near to 1 such a basis is brought."""
LOST = 1e-3
"""What is weaker than this in such a basis was noise already."""
LARGE = 1536
"""From this short side on, a Cholesky factor costs less than the products that it saves."""


def polar_by_products(A: Tensor, rtol: float) -> Tensor:
    """U Vᵀ of A (..., k, n), k <= n, in the precision of A; directions below about `rtol` of the largest are zero."""
    P = _root(A, rtol) @ A
    return _quintic(LAST, P @ P.mT) @ P


def lowrank_by_products(X: Tensor, sketch: Tensor, iterations: int, rtol: float) -> Tensor:
    """U S⁻¹ Uᵀ X with U, S of X Q, where Q is what power iteration makes of the sketch (n, k), k <= m, n.

    On the way to Q the range is all that matters, so a basis need not be orthonormal; at the end it must be.
    """
    Q = sketch
    for _ in range(iterations):
        Q = _basis(X @ Q)
        Q = _basis(X.mT @ Q)
    Q = polar_by_products(Q.mT, LOST).mT
    B = (X @ Q).mT  # W S Uᵀ
    Z = _root(B, rtol)
    P = Z @ B
    h = _quintic(LAST, P @ P.mT)
    P, Z = h @ P, h @ Z  # W Uᵀ and W S⁻¹ Wᵀ
    return P.mT @ (Z @ (P @ X))


def _basis(Y: Tensor) -> Tensor:
    """Of the range of Y (..., m, k): every direction that is not noise brought near to 1; no sharp cut, so none is lost."""
    A = Y.mT
    K = A @ A.mT
    steps = quintics(BASIS_CUT * _least_ratio(A.shape[-2]), ROUGH)
    if fits_a_block(K, steps):
        return (inverse_root(K, BASIS_CUT, steps, sharp=False) @ A).mT
    K, square, scale, ratio = _normalized(K)
    return ((_root_by_quintics(K, square, BASIS_CUT * BASIS_CUT * ratio, steps) / scale) @ A).mT


def _root(A: Tensor, rtol: float) -> Tensor:
    """(A Aᵀ)^(-1/2), zero where a direction of A is below about `rtol` of the largest; to `TOLERANCE`."""
    K = A @ A.mT
    cut = math.sqrt(2) * rtol  # for the ratio is a lower bound
    low = cut * _least_ratio(A.shape[-2])
    steps = quintics(low, TOLERANCE)
    if fits_a_block(K, steps):
        return inverse_root(K, cut, steps, sharp=True)
    K, square, scale, ratio = _normalized(K)
    e2 = cut * cut * ratio
    Z = _root_by_cholesky(K, e2, rationals(low, TOLERANCE)) if is_large(A) else _root_by_quintics(K, square, e2, steps)
    return _sharpened(Z, e2).div_(scale)


def fast_polar_by_products(A: Tensor) -> Tensor:
    """The same to 1e-2 for directions above 1e-3 of the largest, in float16; weaker ones come out weaker.

    The inverse root goes only so far that no such direction is weak any more; half precision does the rest, on the factor
    itself, so that no step makes an earlier one's rounding stronger. The first takes the factor in float32, for what
    rounding that would add outside A's directions is weak now, and will be made strong.
    """
    K = A @ A.mT
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-150)
    square = K.div_(trace) @ K
    root_t4 = torch.linalg.matrix_norm(square, keepdim=True).clamp_min(1e-60)
    above = root_t4.sqrt()  # the fourth root of t_4: at least the largest eigenvalue, at most k^(1/4) times that
    K, square = K.div_(above), square.div_(root_t4)
    low = FAST_LOW * 2.0 ** (-_bits(A.shape[-2]) / 8)
    if is_large(A):
        Z = _root_by_cholesky(K, 0.0, rationals(low, 1 - WEAK))
        rest = quintics(WEAK, FAST_TOLERANCE)
    else:
        first, rest = fast_quintics(low)
        Z = _root_by_quintics(K, square, 0.0, first)
    P = (Z.div_((trace * above).sqrt()) @ A).float()
    H = P.half()
    H = (_quintic(rest[0], H @ H.mT).float() @ P).half()
    for step in rest[1:]:
        H = _quintic(step, H @ H.mT) @ H
    return H


def is_large(A: Tensor) -> bool:
    """Whether the inverse root is made by Cholesky; not in a batch, where that has been seen to abort (MAGMA)."""
    return A.ndim == 2 and A.shape[-2] >= LARGE


def _normalized(K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(K / scale², its square, scale, ratio): with eigenvalues at most 1, and a lower bound close to the largest of them.

    With t_j the sum of the j-th powers of the eigenvalues, t_8^(1/8) is at least the largest, (t_8 / t_4)^(1/4) at most.
    """
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-150)
    K = K / trace
    square = K @ K
    root_t4 = torch.linalg.matrix_norm(square, keepdim=True).clamp_min(1e-60)
    root_t8 = torch.linalg.matrix_norm(square @ square, keepdim=True).clamp_min(1e-60)
    above = root_t8**0.25
    ratio = ((root_t8 / root_t4).sqrt() / above).clamp_max(1.0)
    return K.div_(above), square.div_(above.square()), (trace * above).sqrt(), ratio


def _least_ratio(k: int) -> float:
    """How small the square root of `ratio` can be: it is when all eigenvalues are equal."""
    return float(2.0 ** (-_bits(k) / 16))


def _bits(k: int) -> int:
    """The power of two that is at least k; by comparing, so that a compiled call knows the number."""
    bits = 0
    while 2**bits < k:
        bits += 1
    return bits


def _root_by_quintics(K: Tensor, square: Tensor, e2: Tensor | float, steps: Sequence[Coefficients]) -> Tensor:
    """(K + e²)^(-1/2), K and K² being overwritten.

    What h is in the first step matters little, so long as Z and R get the same: K² will do for R².
    """
    (a, b, c), *rest = steps
    h = _shift_(square.mul_(c).add_(K, alpha=b), a)
    return _by_quintics(h, _shift_(K, e2) @ h @ h, rest)


def _by_quintics(Z: Tensor | None, R: Tensor, steps: Sequence[Coefficients]) -> Tensor:
    """Z R^(-1/2), or R^(-1/2)."""
    for step in steps[:-1]:
        h = _quintic(step, R)
        _shift_(R, -_half(step))  # as it was
        Z = h if Z is None else Z @ h
        R = R @ h @ h
    h = _quintic(steps[-1], R)
    return h if Z is None else Z @ h


def _quintic(step: Coefficients, R: Tensor) -> Tensor:
    """a + b R + c R² as c (R + b / 2c)² + a - b² / 4c: one product, and nothing else as large; R is left as R + b / 2c."""
    a, _, c = step
    half = _half(step)
    _shift_(R, half)
    return _shift_(_times(c, R, R), a - c * half * half)


def _half(step: Coefficients) -> float:
    _, b, c = step
    return b / (2 * c)


def _root_by_cholesky(K: Tensor, e2: Tensor | float, steps: Sequence[Coefficients]) -> Tensor:
    """(K + e²)^(-1/2) of one large matrix."""
    R, Z = _shift_(K, e2), None
    for place, (a, b, c) in enumerate(steps):
        factor, _ = torch.linalg.cholesky_ex(_shift_(c * R, 1.0))
        T = torch.cholesky_inverse(factor)  # (1 + c R)^-1
        gain = a - b / c
        h = _shift_(gain * T, b / c)
        Z = h if Z is None else Z @ h
        if place + 1 < len(steps):
            R = _shift_(b / c * R - gain / c * T, gain / c) @ h  # R T = (1 - T) / c
    assert Z is not None
    return Z


def _sharpened(Z: Tensor, e2: Tensor) -> Tensor:
    """Z times 1 where s > e and 0 where s < e, and what the soft cut fell short by, to first order."""
    W = _shift_((Z @ Z).mul_(-e2), 1.0)
    square = W @ W
    cube = square @ W
    a, b, c, d = SHARP
    return Z @ (cube @ _shift_(W.mul_(b).add_(square, alpha=c).add_(cube, alpha=d), a))


def _shift_(A: Tensor, by: float | Tensor) -> Tensor:
    """A + by, in place."""
    A.diagonal(dim1=-2, dim2=-1).add_(by.squeeze(-1) if isinstance(by, Tensor) else by)
    return A


def _times(alpha: float, A: Tensor, B: Tensor) -> Tensor:
    """alpha A B in one call."""
    if A.ndim == 2:
        return torch.addmm(A, A, B, beta=0, alpha=alpha)
    flat = A.reshape(-1, *A.shape[-2:])
    return torch.baddbmm(flat, flat, B.reshape(-1, *B.shape[-2:]), beta=0, alpha=alpha).reshape(A.shape)


@lru_cache
def fast_quintics(lower: float) -> tuple[tuple[Coefficients, ...], tuple[Coefficients, ...]]:
    """The same for `FAST_TOLERANCE`, split where nothing is weaker than `WEAK` of the strongest."""
    steps = quintics(lower, FAST_TOLERANCE)
    strong = next(place for place, (_, low, high) in enumerate(narrowing(lower)) if low > WEAK * high)
    return steps[: strong + 1], steps[strong + 1 :]
