"""The polar factor by the eigenvectors of the Gram matrix of the short side."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from egalitarian.kernels.route import BLOCKED_FROM, Route
from egalitarian.kernels.svd import above_cut, gain, recombine

PARTS = 3
"""Blocks of rows of a Gram matrix. Each is multiplied by itself and the later ones: two thirds of the arithmetic."""
BAND = 128
"""Columns that are converted to float64 at a time."""
STRONG = 0.1
"""Directions above this share of the largest come out of a float32 Gram matrix to 1e-4, if they are not nearly equal."""
REFINE_BELOW = 1e-4
"""Directions weaker than this come out of `eigh` with a relative error above 1e-7: one Newton-Schulz step mends that."""


def polar_by_eigh(route: Route, X: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of X, directions below the cut-off being zero."""
    if route.one_by_one and X.ndim > 2:
        alone = replace(route, one_by_one=False)
        flat = X.flatten(0, -3)
        return torch.stack([polar_by_eigh(alone, matrix, scale) for matrix in flat]).reshape(X.shape)  # no floor: no scale
    tall = X.shape[-2] > X.shape[-1]
    if route.dtype == torch.float32:
        narrow = _in_float32(route, X.mT if tall else X)
        if narrow is not None:
            return narrow.mT if tall else narrow
        route = replace(route, dtype=torch.float64)
    A = X.mT if tall else X  # the short side first
    squares, Q = _left(route, A)
    if (
        route.blocked
        and route.floor is None
        and X.dtype != torch.float64
        and float(squares[0]) > max(REFINE_BELOW, route.rtol) ** 2 * float(squares[-1])
    ):
        return _applied(gram(Q * squares.pow(-0.25)), X)  # no direction is cut, and none needs refining
    S = squares.clamp_min(0).sqrt()
    inverse = torch.where(above_cut(S, route.rtol), 1 / S, 0)
    P = recombine(Q, inverse, Q.mT) @ A.to(torch.float64)
    weakest = torch.where(inverse > 0, S, math.inf).amin(-1)
    rough = weakest < REFINE_BELOW * S[..., -1]
    if not route.readable or rough.any():  # a Newton-Schulz step squares the distance of the singular values from 1
        refined = 1.5 * P - 0.5 * (P @ P.mT) @ P
        P = torch.where(rough[..., None, None], refined, P)
    if route.floor is not None:
        P = recombine(Q, gain(S, route, scale), Q.mT) @ P
    return P.mT if tall else P


def _in_float32(route: Route, X: Tensor) -> Tensor | None:
    """The same in float32, for the fast tier. None where LAPACK fails, as it may for a matrix with many zero rows.

    A float32 Gram matrix resolves strong directions only. So the weak ones get a Gram matrix of their own, made from the
    part of A in their span. Of nearly equal strong rows the rest may show, up to 1.5 % in a singular value: a Newton-Schulz
    step mends that.
    """
    A = X.to(torch.float32)
    try:
        squares, Q = _left(route, A)
        S = squares.clamp_min(0).sqrt()
        weak = int((STRONG * S[..., -1:] > S).sum(-1).amax())
        if weak:
            W = Q[..., :weak]
            squares, V = _left(replace(route, blocked=weak >= BLOCKED_FROM), W.mT @ A)
            S = torch.cat([squares.clamp_min(0).sqrt(), S[..., weak:]], -1)
            Q = torch.cat([W @ V, Q[..., weak:]], -1)
    except torch._C._LinAlgError:  # type: ignore[attr-defined]
        return None
    P = recombine(Q, torch.where(above_cut(S, route.rtol), 1 / S, 0), Q.mT) @ A
    P = 1.5 * P - 0.5 * (P @ P.mT) @ P
    return P if math.isfinite(float(P.sum())) else None


def _left(route: Route, A: Tensor) -> tuple[Tensor, Tensor]:
    """The squares of the singular values, ascending, and the left singular vectors."""
    if route.blocked:
        squares, Q = torch.linalg.eigh(upper_gram(A, route.dtype), UPLO="U")
    else:
        wide = A.to(route.dtype)
        squares, Q = torch.linalg.eigh(wide @ wide.mT)
    return squares, Q


def _applied(M: Tensor, X: Tensor) -> Tensor:
    """M X, or X M if M belongs to the columns: products in float64, the result in float32."""
    P = torch.empty_like(X, dtype=torch.float32)
    for start in range(0, max(X.shape), BAND):
        band = slice(start, start + BAND)
        if len(M) == len(X):
            P[:, band] = M @ X[:, band].to(torch.float64)
        else:
            P[band] = X[band].to(torch.float64) @ M
    return P


def gram(A: Tensor) -> Tensor:
    """A Aᵀ of one matrix on a CPU, computed once for both sides of the diagonal."""
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
            K[rows, onward].addmm_(wide[rows], wide[onward].mT, beta=min(index, 1))  # beta=0 ignores old values
    return K


def _parts(A: Tensor) -> list[tuple[slice, slice]]:
    """(rows, later rows)."""
    size = -(-len(A) // PARTS)
    return [(slice(start, start + size), slice(start + size, None)) for start in range(0, len(A), max(size, 1))]
