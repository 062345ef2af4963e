"""The polar factor by matrix products alone: a fixed number of them, no branch, no synchronisation, any batch.

With K = A Aᵀ / ν² (the short side first, ν at least the largest singular value) and a cut-off e, (K + e²)^(-1/2) A / ν is
the polar factor with a soft cut-off: a direction of singular value s comes out as s / sqrt(s² + e²). The inverse root is a
composition of odd quintics. Each is the closest to 1 on the interval that the one before leaves. They act on R = K + e² and
Z together, with h = a + b R + c R²:

    Z <- Z h,    R <- R h²,    from Z = 1 until R = 1, when Z = (K + e²)^(-1/2).

Then the cut-off is made sharp. W = 1 - e² Z² has the squares of the singular values so far, and a polynomial of W drives
those above one half to 1 and those below to 0. A quintic on the factor itself ends the iteration.

For large matrices a rational step is cheaper than four quintics: h = b/c + (a - b/c) (1 + c R)^(-1), by Cholesky. That is
QDWH (Nakatsukasa, Bai and Gygi) on the Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import (
    BASIS_CUT,
    LAST,
    LOST,
    TOLERANCE,
    Coefficients,
    basis_steps,
    least_ratio,
    rationals,
    root_steps,
)
from egalitarian.kernels.fused import inverse_root
from egalitarian.kernels.route import Root, Route, is_traced

SHARP = (15.0, -27.5, 16.5, -3.0)
"""W³ (15 - 55/2 W + 33/2 W² - 3 W³): the smooth step 10 W³ - 15 W⁴ + 6 W⁵ times (3 - W) / 2, first order of W^(-1/2)."""


BLOCKED_FROM = 512
"""From this size on, a symmetric product on a GPU is computed in blocks."""
PARTS = 4
"""Rows of such blocks: five eighths of the arithmetic."""


def polar_by_polynomial(route: Route, X: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of X in float64.

    On a GPU, rows of zeros pad the short side to a multiple of 8: such products are a tenth faster, and zeros add no
    direction.
    """
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X
    short = A.shape[-2]
    if route.short > short:
        padded = A.new_zeros(*A.shape[:-2], route.short, A.shape[-1], dtype=torch.float64)
        padded[..., :short, :] = A
        A = padded
    else:
        A = A.to(torch.float64)
    if route.one_by_one and A.ndim > 2:
        P = torch.stack([exact_factor(matrix, route.rtol, route.root) for matrix in A.flatten(0, -3)]).reshape(A.shape)
    else:
        P = exact_factor(A, route.rtol, route.root)
    P = P[..., :short, :]
    return P.mT if tall else P


def exact_factor(A: Tensor, rtol: float, root: Root) -> Tensor:
    """U Vᵀ of A (..., k, n), k <= n, in the precision of A; directions below about `rtol` of the largest are zero."""
    P = _root(A, rtol, root) @ A
    return _quintic(LAST, _symmetric(P, P.mT)) @ P


def lowrank_factor(X: Tensor, sketch: Tensor, iterations: int, rtol: float, root: Root) -> Tensor:
    """U S⁻¹ Uᵀ X with U, S of X Q, where power iteration turns the sketch (n, k), k <= m, n, into Q.

    During the iteration only the range of Q matters, so its basis need not be orthonormal; at the end it must be.
    """
    Q = sketch
    for _ in range(iterations):
        Q = _basis(X @ Q, root)
        Q = _basis(X.mT @ Q, root)
    Q = exact_factor(Q.mT, LOST, root).mT
    B = (X @ Q).mT  # W S Uᵀ
    Z = _root(B, rtol, root)
    P = Z @ B
    h = _quintic(LAST, P @ P.mT)
    P, Z = h @ P, h @ Z  # W Uᵀ and W S⁻¹ Wᵀ
    return P.mT @ (Z @ (P @ X))


def _basis(Y: Tensor, root: Root) -> Tensor:
    """A basis of the range of Y (..., m, k): every direction above the noise is near 1. A soft cut-off loses none."""
    A = Y.mT
    K = A @ A.mT
    steps = basis_steps(A.shape[-2])
    if root == "fused":
        return (inverse_root(K, BASIS_CUT, steps, sharp=False) @ A).mT
    K, square, scale, ratio = _normalized(K)
    return ((_root_by_quintics(K, square, BASIS_CUT * BASIS_CUT * ratio, steps) / scale) @ A).mT


def _root(A: Tensor, rtol: float, root: Root) -> Tensor:
    """(A Aᵀ)^(-1/2), zero where a direction of A is below about `rtol` of the largest; to `TOLERANCE`."""
    K = _symmetric(A, A.mT)
    cut = math.sqrt(2) * rtol  # the ratio is a lower bound
    steps = root_steps(A.shape[-2], rtol)
    if root == "fused":
        return inverse_root(K, cut, steps, sharp=True)
    K, square, scale, ratio = _normalized(K)
    e2 = cut * cut * ratio
    if root == "cholesky":
        Z = _root_by_cholesky(K, e2, rationals(cut * least_ratio(A.shape[-2]), TOLERANCE))
    else:
        Z = _root_by_quintics(K, square, e2, steps)
    return _sharpened(Z, e2).div_(scale)


def _normalized(K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(K / scale², its square, scale, ratio): eigenvalues at most 1, and a tight lower bound of the largest of them.

    With t_j the sum of the j-th powers of the eigenvalues, t_8^(1/8) is at least the largest, (t_8 / t_4)^(1/4) at most.
    """
    trace = K.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-150)
    K = K / trace
    square = _symmetric(K, K)
    root_t4 = torch.linalg.matrix_norm(square, keepdim=True).clamp_min(1e-60)
    root_t8 = torch.linalg.matrix_norm(_symmetric(square, square), keepdim=True).clamp_min(1e-60)
    above = root_t8**0.25
    ratio = ((root_t8 / root_t4).sqrt() / above).clamp_max(1.0)
    return K.div_(above), square.div_(above.square()), (trace * above).sqrt(), ratio


def _root_by_quintics(K: Tensor, square: Tensor, e2: Tensor | float, steps: Sequence[Coefficients]) -> Tensor:
    """(K + e²)^(-1/2). K and its square are overwritten.

    The first h may be inexact, as long as Z and R get the same one: so K² stands for R² there.
    """
    (a, b, c), *rest = steps
    h = _shift_(square.mul_(c).add_(K, alpha=b), a)
    return _by_quintics(h, _symmetric(_symmetric(_shift_(K, e2), h), h), rest)


def _by_quintics(Z: Tensor | None, R: Tensor, steps: Sequence[Coefficients]) -> Tensor:
    """Z R^(-1/2), or R^(-1/2)."""
    for step in steps[:-1]:
        h = _quintic(step, R)
        _shift_(R, -_half(step))  # restores R
        Z = h if Z is None else _symmetric(Z, h)
        R = _symmetric(_symmetric(R, h), h)
    h = _quintic(steps[-1], R)
    return h if Z is None else _symmetric(Z, h)


def _quintic(step: Coefficients, R: Tensor) -> Tensor:
    """a + b R + c R² as c (R + b / 2c)² + a - b² / 4c: one product and one matrix of memory. R becomes R + b / 2c."""
    a, _, c = step
    half = _half(step)
    _shift_(R, half)
    return _shift_(_symmetric(R, R, c), a - c * half * half)


def _half(step: Coefficients) -> float:
    _, b, c = step
    return b / (2 * c)


def _root_by_cholesky(K: Tensor, e2: Tensor | float, steps: Sequence[Coefficients]) -> Tensor:
    """(K + e²)^(-1/2) of one large matrix."""
    R, Z = _shift_(K, e2), None
    for index, (a, b, c) in enumerate(steps):
        factor, _ = torch.linalg.cholesky_ex(_shift_(c * R, 1.0))
        T = torch.cholesky_inverse(factor)  # (1 + c R)^-1
        gain = a - b / c
        h = _shift_(gain * T, b / c)
        Z = h if Z is None else _symmetric(Z, h)
        if index + 1 < len(steps):
            R = _symmetric(_shift_(b / c * R - gain / c * T, gain / c), h)  # R T = (1 - T) / c
    assert Z is not None
    return Z


def _sharpened(Z: Tensor, e2: Tensor) -> Tensor:
    """Z times 1 where s > e and 0 where s < e. To first order, it also corrects what the soft cut-off took away."""
    W = _shift_(_symmetric(Z, Z).mul_(-e2), 1.0)
    square = _symmetric(W, W)
    cube = _symmetric(square, W)
    a, b, c, d = SHARP
    return _symmetric(Z, _symmetric(cube, _shift_(W.mul_(b).add_(square, alpha=c).add_(cube, alpha=d), a)))


def _shift_(A: Tensor, by: float | Tensor) -> Tensor:
    """A + by, in place."""
    A.diagonal(dim1=-2, dim2=-1).add_(by.squeeze(-1) if isinstance(by, Tensor) else by)
    return A


def _symmetric(A: Tensor, B: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha A B, which is symmetric. Large ones on a GPU are computed in blocks on and below the diagonal, and mirrored."""
    k = A.shape[-2]
    if A.device.type != "cuda" or k < BLOCKED_FROM or is_traced(A):
        return A @ B if alpha == 1.0 else _times(alpha, A, B)
    left, right = A.reshape(-1, *A.shape[-2:]), B.reshape(-1, *B.shape[-2:])
    D = left.new_empty(len(left), k, k)
    for start in range(0, k, size := -(-k // PARTS)):
        end = min(start + size, k)
        block = D[:, start:end, :end]
        torch.baddbmm(block, left[:, start:end], right[..., :end], beta=0, alpha=alpha, out=block)
        D[:, :start, start:end] = block[..., :start].mT
    return D.reshape(*A.shape[:-2], k, k)


def _times(alpha: float, A: Tensor, B: Tensor) -> Tensor:
    """alpha A B in one call."""
    if A.ndim == 2:
        return torch.addmm(A, A, B, beta=0, alpha=alpha)
    flat = A.reshape(-1, *A.shape[-2:])
    return torch.baddbmm(flat, flat, B.reshape(-1, *B.shape[-2:]), beta=0, alpha=alpha).reshape(A.shape)
