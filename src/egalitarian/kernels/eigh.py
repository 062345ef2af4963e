"""The ways to the polar factor of a matrix that has been scaled and is finite, or may spread what is not: by SVD, by the
eigenvectors of the Gram matrix, by products. `kernels.polar` chooses among them, and inverses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from egalitarian.kernels.gram import gram, upper_gram
from egalitarian.kernels.polynomial import LARGE, fast_polar_by_products, polar_by_products
from egalitarian.kernels.route import ALONE, FAST_RTOL, Method, Mode, traced
from egalitarian.transforms.sketches import gaussian

STRONG = 0.05
"""Directions above this share of the largest come out of a float32 Gram matrix to 1e-4."""
REFINE_BELOW = 1e-4
"""Directions weaker than this come out of `eigh` with a relative error above 1e-7: one Newton-Schulz step."""
BAND = 128
"""Of the long side, in float64 at a time: the system would free and allocate a larger block every time."""


def _by_svd(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    U, S, Vh = torch.linalg.svd(X.to(torch.float64), full_matrices=False)
    return recombine(U, _gain(S, rtol, floor), Vh)


def _by_eigh(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    alone = floor is None and _alone(X)
    if alone and X.ndim > 2:
        return one_by_one(lambda matrix: _by_eigh(matrix, rtol, None), X)
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X  # the short side in front
    squares, Q = _left(A, torch.float64)
    if alone and X.dtype != torch.float64 and float(squares[0]) > max(REFINE_BELOW, rtol) ** 2 * float(squares[-1]):
        return _applied(gram(Q * squares.pow(-0.25)), X)  # every direction is kept, and none is rough
    S = _root(squares)
    inverse = torch.where(above_cut(S, rtol), 1 / S, 0)
    P = recombine(Q, inverse, Q.mT) @ A.to(torch.float64)
    weakest = torch.where(inverse > 0, S, math.inf).amin(-1)
    rough = weakest < REFINE_BELOW * S[..., -1]
    if not may_look(X) or rough.any():  # one Newton-Schulz step, which squares the distance of the singular values from 1
        refined = 1.5 * P - 0.5 * (P @ P.mT) @ P
        P = torch.where(rough[..., None, None], refined, P)
    if floor is not None:
        P = recombine(Q, _gain(S, rtol, floor), Q.mT) @ P
    return P.mT if tall else P


def _applied(M: Tensor, X: Tensor) -> Tensor:
    """M X, or X M where that fits, in float32, made of products in float64."""
    P = torch.empty_like(X, dtype=torch.float32)
    for start in range(0, max(X.shape), BAND):
        band = slice(start, start + BAND)
        if len(M) == len(X):
            P[:, band] = M @ X[:, band].to(torch.float64)
        else:
            P[band] = X[band].to(torch.float64) @ M
    return P


def _by_rough_eigh(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    """In float32; in float64, with the same cut-off, where float32 will not do or the matrix is small.

    A float32 Gram matrix knows its strong directions well and its weak ones not at all. So these are taken by themselves:
    A's part in their span is small as a whole, and its own Gram matrix knows them.
    """
    if not (_alone(X) and float32_is_whole()):
        return _by_eigh(X, max(rtol, FAST_RTOL), floor)
    if X.ndim > 2:
        return one_by_one(lambda matrix: _by_rough_eigh(matrix, rtol, None), X)
    tall = X.shape[-2] > X.shape[-1]
    A = (X.mT if tall else X).to(torch.float32)
    squares, Q = _left(A, torch.float32)
    S = _root(squares)
    weak = int((STRONG * S[..., -1:] > S).sum(-1).amax())
    if weak:
        W = Q[..., :weak]
        squares, V = _left(W.mT @ A, torch.float32)
        S, Q = torch.cat([_root(squares), S[..., weak:]], -1), torch.cat([W @ V, Q[..., weak:]], -1)
    P = recombine(Q, torch.where(above_cut(S, max(rtol, FAST_RTOL)), 1 / S, 0), Q.mT) @ A
    return P.mT if tall else P


def _left(A: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The squares of the singular values, ascending, and the left singular vectors, by the Gram matrix in `dtype`."""
    if A.ndim == 2 and _alone(A):
        squares, Q = torch.linalg.eigh(upper_gram(A, dtype), UPLO="U")
    else:
        wide = A.to(dtype)
        squares, Q = torch.linalg.eigh(wide @ wide.mT)
    return squares, Q


def _by_products(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    return _short_side_in_front(X, lambda A: polar_by_products(A, rtol))


def _by_rough_products(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    return _short_side_in_front(X, fast_polar_by_products)


def _alone(X: Tensor) -> bool:
    return min(X.shape[-2:]) >= ALONE and may_look(X)


def may_be_float32(X: Tensor) -> bool:
    """Whether products in float32 can be made and judged: values may be looked at, and torch may not make them in less."""
    return may_look(X) and float32_is_whole()


def float32_is_whole() -> bool:
    """Whether a CPU makes float32 products in float32: `torch.set_float32_matmul_precision` may have allowed it less."""
    mkldnn: Any = torch.backends.mkldnn
    for place in (mkldnn.matmul, mkldnn, torch.backends):
        allowed = getattr(place, "fp32_precision", "none")
        if allowed != "none":
            return allowed == "ieee" or _is_whole_under(allowed)
    return True


@lru_cache
def _is_whole_under(allowed: str) -> bool:
    """Tried once: what is allowed need not be done, and is not on most CPUs."""
    A = gaussian(192, 512, 0, torch.device("cpu"))
    exact, narrow = A @ A.mT, A.float() @ A.float().mT
    return bool(torch.linalg.matrix_norm(narrow - exact) < 3e-7 * torch.linalg.matrix_norm(exact))


def one_by_one(of: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """of(matrix) of every matrix in a batch."""
    return of(X) if X.ndim == 2 else torch.stack([of(matrix) for matrix in X.flatten(0, -3)]).reshape(X.shape)


def _short_side_in_front(X: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """of(X) in float64, or of(Xᵀ)ᵀ; large matrices one by one, since what is best for them takes no batch.

    On a GPU with rows of zeros up to the next multiple of 8: products of such matrices are a tenth faster, and zeros add no
    direction.
    """
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X
    short = A.shape[-2]
    if A.device.type == "cuda" and short % 8:
        padded = A.new_zeros(*A.shape[:-2], short + -short % 8, A.shape[-1], dtype=torch.float64)
        padded[..., :short, :] = A
        A = padded
    else:
        A = A.to(torch.float64)
    P = (one_by_one(of, A) if short >= LARGE else of(A))[..., :short, :]
    return P.mT if tall else P


WAYS: dict[tuple[Method, Mode], Callable[[Tensor, float, Tensor | None], Tensor]] = {
    ("svd", "exact"): _by_svd,
    ("eigh", "exact"): _by_eigh,
    ("eigh", "fast"): _by_rough_eigh,
    ("products", "exact"): _by_products,
    ("products", "fast"): _by_rough_products,
}


def may_look(G: Tensor) -> bool:
    """Whether a value may decide what is done next: on a CPU it is there already; not under vmap, nor while compiling."""
    return G.device.type == "cpu" and not traced(G)


def _root(squares: Tensor) -> Tensor:
    return squares.clamp_min(0).sqrt()


def recombine(U: Tensor, gain: Tensor, Vh: Tensor) -> Tensor:
    """U diag(gain) Vh."""
    return (U * gain[..., None, :]) @ Vh


def above_cut(S: Tensor, rtol: float) -> Tensor:
    return rtol * S.amax(-1, keepdim=True) < S


def _gain(S: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    """What becomes of each singular value: 1 above the cut, s / floor above the cut but under the floor, else 0."""
    gain = torch.ones_like(S) if floor is None else S / torch.maximum(S, floor)
    return torch.where(above_cut(S, rtol), gain, 0)
