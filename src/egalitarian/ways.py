"""The ways to the polar factor of a matrix that has been scaled and is finite, or may spread what is not: by SVD, by the
eigenvectors of the Gram matrix, by products. `kernels.polar` chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from egalitarian.choice import FAST_RTOL, Method, Mode, traced
from egalitarian.products import LARGE, fast_polar_by_products, polar_by_products

STRONG = 0.05
"""Directions above this share of the largest come out of a float32 Gram matrix to 1e-4."""
REFINE_BELOW = 1e-4
"""Directions weaker than this come out of `eigh` with a relative error above 1e-7: one Newton-Schulz step."""


def _by_svd(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    return recombine(U, _gain(S, rtol, floor), Vh)


def _by_eigh(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X  # the short side in front
    S, Q = _left(A)  # ascending
    inverse = torch.where(above_cut(S, rtol), 1 / S, 0)
    P = recombine(Q, inverse, Q.mT) @ A
    weakest = torch.where(inverse > 0, S, math.inf).amin(-1)
    rough = weakest < REFINE_BELOW * S[..., -1]
    if not may_look(X) or rough.any():  # one Newton-Schulz step, which squares the distance of the singular values from 1
        refined = 1.5 * P - 0.5 * (P @ P.mT) @ P
        P = torch.where(rough[..., None, None], refined, P)
    if floor is not None:
        P = recombine(Q, _gain(S, rtol, floor), Q.mT) @ P
    return P.mT if tall else P


def _by_rough_eigh(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    """In float32 throughout; exact where no value may be looked at.

    A float32 Gram matrix knows its strong directions well and its weak ones not at all. So these are taken by themselves:
    A's part in their span is small as a whole, and its own Gram matrix knows them.
    """
    if not may_look(X):
        return _by_eigh(X.to(torch.float64), max(rtol, FAST_RTOL), floor)
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X
    S, Q = _left(A)  # ascending
    weak = int((STRONG * S[..., -1:] > S).sum(-1).amax())
    if weak:
        W = Q[..., :weak]
        s, V = _left(W.mT @ A)
        S, Q = torch.cat([s, S[..., weak:]], -1), torch.cat([W @ V, Q[..., weak:]], -1)
    P = recombine(Q, torch.where(above_cut(S, max(rtol, FAST_RTOL)), 1 / S, 0), Q.mT) @ A
    return P.mT if tall else P


def _left(A: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, ascending, and left singular vectors, by the Gram matrix."""
    eigenvalues, Q = torch.linalg.eigh(A @ A.mT)
    return eigenvalues.clamp_min(0).sqrt(), Q


def _by_products(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    return _short_side_in_front(X, lambda A: polar_by_products(A, rtol))


def _by_rough_products(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    return _short_side_in_front(X, fast_polar_by_products)


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
    if A.ndim > 2 and short >= LARGE:
        P = torch.stack([of(matrix) for matrix in A.flatten(0, -3)]).reshape(A.shape)
    else:
        P = of(A)
    P = P[..., :short, :]
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


def recombine(U: Tensor, gain: Tensor, Vh: Tensor) -> Tensor:
    """U diag(gain) Vh."""
    return (U * gain[..., None, :]) @ Vh


def above_cut(S: Tensor, rtol: float) -> Tensor:
    return rtol * S.amax(-1, keepdim=True) < S


def _gain(S: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    """What becomes of each singular value: 1 above the cut, s / floor above the cut but under the floor, else 0."""
    gain = torch.ones_like(S) if floor is None else S / torch.maximum(S, floor)
    return torch.where(above_cut(S, rtol), gain, 0)
