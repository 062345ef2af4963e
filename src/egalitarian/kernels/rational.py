"""The fast polar factor of one matrix on a CPU: two inverses by Cholesky and a few products, in float32 throughout.

With K = A Aᵀ / u (the short side in front, u at least its largest eigenvalue) the singular values x in [l, 1] go through

    first    x <- x (a + b x²) / (1 + c x²)                takes [l, 1] to [l', 1] (`minimax.rationals`)
    last     x <- x (p + q / (1 + d x²) + r x² + s x⁴)     the closest to 1 on [l', 1]

on the Gram matrix. Each is an inverse; a product makes K' of the first, another joins the two, and the term in s is one
more, left out where it can be; that in r costs nothing. The inverse root that comes of it is applied to A once.

A Gram matrix in float32 has forgotten weak directions that are many. How much that matters is estimated at the end, and a
matrix for which it matters is refused.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import best_last_step, rationals
from egalitarian.kernels.gram import gram
from egalitarian.kernels.polynomial import FAST_LOW
from egalitarian.transforms.sketches import gaussian

OFF = 9.8e-3
"""How far from 1 the two steps may leave a direction; they err to both sides alike, so the mean is 0.7 of that."""
NOISE = 2e-7
"""By how much a float32 Gram matrix errs, of its norm (measured: 0.7e-7 to 1.9e-7); a row of it, as it is long."""
LONG = 20_000
"""Columns from which on it errs more, by the root of their number."""
BLUR = 3e-3
"""What that may add to the root mean square error of the directions."""
SMALLEST, LARGEST = 1e-16, 1e18
"""Norms of a Gram matrix whose squares, and all that matters of it, are in the range of float32."""
PROBES = 8
"""Random vectors by which sums over directions are estimated."""


class Steps(NamedTuple):
    """Both steps, for one lower end: a + b / (1 + c K), then p + q / (1 + d K') + r K' + s K'²."""

    a: float
    b: float
    c: float
    p: float
    q: float
    d: float
    r: float
    s: float


def polar_by_inverses(G: Tensor) -> Tensor | None:
    """U Vᵀ of a float32 matrix to 1e-2, root mean square over the directions above 1e-3 of the largest; weaker ones weaker.

    None where that cannot be promised: too many weak directions next to strong ones, thousands that are all alike, nothing
    but zeros, or numbers that are not finite.
    """
    tall = G.shape[0] > G.shape[1]
    K = gram(G.mT if tall else G)
    rows = torch.linalg.vector_norm(K, dim=1)
    norm = math.sqrt(_square(rows))
    if not SMALLEST < norm < LARGEST:
        X = _near_one(G)
        return None if X is None else polar_by_inverses(X)
    steps = steps_down_to(_lower_end(K, norm))
    if steps is None:
        return None
    M = _inverse_root(K, norm, steps)
    noise = NOISE * max(1.0, math.sqrt(max(G.shape) / LONG)) / norm * rows.square_()
    if not _is_sharp(M, G.mT if tall else G, noise):
        return None
    return G @ M if tall else M @ G


def _near_one(G: Tensor) -> Tensor | None:
    """G times a power of two, so that its largest number is near 1; None where there is none such."""
    largest = float(G.abs().amax()) if G.numel() else 0.0
    if not 0 < largest < math.inf:
        return None
    power = -math.frexp(largest)[1]
    return G * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)  # the power as a whole may be beyond float32


def _inverse_root(K: Tensor, norm: float, steps: Steps) -> Tensor:
    """K^(-1/2), K being overwritten. Squares are completed: no pass over a matrix, but over its diagonal."""
    a, b, c, p, q, d, r, s = steps
    B = _shift_(K.mul_(c / norm), 1.0)  # 1 + c K
    Z = _inverse(B)
    # with h = a + b Z, K' = h² K: c K' = a² B + 2 a b - a² + (b² - 2 a b) Z - b² Z², since c K = B - 1 and B Z = 1
    centre = a / b - 0.5
    _shift_(Z, centre)
    B.addmm_(Z, Z, beta=d / c * a * a, alpha=-d / c * b * b)
    _shift_(B, 1 + d / c * (2 * a * b - a * a + b * b * centre * centre))  # 1 + d K'
    W = _inverse(B)
    _shift_(Z, 0.5)  # h / b
    if s:
        F = W.addmm_(_shift_(B, d * r / (2 * s) - 1), B, beta=q, alpha=s / (d * d))
        scale, rest, spare = b, p - r * r / (4 * s), B
    else:
        F = B.add_(W, alpha=q * d / r)
        scale, rest, spare = b * r / d, p * d / r - 1, W
    return spare.addmm_(_shift_(F, rest), Z, beta=0, alpha=scale / math.sqrt(norm))


def _inverse(B: Tensor) -> Tensor:
    """By Cholesky's factor, handed over as the upper one: a tenth faster."""
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(B).L.mT, upper=True)


def _shift_(A: Tensor, by: float) -> Tensor:
    A.diagonal().add_(by)
    return A


def _square(A: Tensor) -> float:
    """The sum of the squares of the entries."""
    flat = A.flatten()
    return float(torch.dot(flat, flat))


def _lower_end(K: Tensor, norm: float) -> float:
    """Where `FAST_LOW` of the largest singular value lies when that of the norm is 1; rounded down to a power of 2^(1/4).

    |K x| / |x| is no larger than the largest eigenvalue, nor is |K| / sqrt(k); for x a row of K will do.
    """
    x = K[0] / norm
    square = _square(x)
    ratio = math.sqrt(_square(K @ x) / square) / norm if square else 0.0
    ratio = min(max(ratio, len(K) ** -0.5), 1.0)
    return FAST_LOW * 2 ** (math.floor(2 * math.log2(ratio)) / 4)


def _is_sharp(M: Tensor, A: Tensor, noise: Tensor) -> bool:
    """Whether what K has forgotten, E_ab² = noise_a noise_b, adds less than `BLUR` to the directions that M A has.

    In K's own directions E adds E_ij / (s_i (s_i + s_j)) to what M A makes of j in i, so to (i, j) and (j, i) together at
    most E_ij² / (s_i s_j)²; where M A has i and not j, the same with 1 / M_j for s_j. In the mean E_ij² is t_i t_j, with t
    the noise in a direction: what matters is the sum of t / s², the squares of M by its rows.
    """
    weights = float(torch.dot(noise, torch.linalg.vector_norm(M, dim=1).square_()))
    if weights < BLUR * math.sqrt(2 * len(M)):  # as if it had all
        return True
    probes = M @ (A @ gaussian(A.shape[1], PROBES, 0, A.device).float())
    have = _square(probes) / PROBES  # how many directions
    had = float(torch.dot(noise, torch.linalg.vector_norm(M @ probes, dim=1).square_())) / PROBES  # the sum over these
    had = min(had, weights)
    return math.sqrt(had * (weights - had / 2)) < BLUR * math.sqrt(have)


@lru_cache
def steps_down_to(lower: float) -> Steps | None:
    """The steps for [lower, 1], the last without its x⁴ if it can be; None if they are not enough."""
    a, b, c = rationals(lower, 0.5)[0]
    end = lower * (a + b * lower**2) / (1 + c * lower**2)
    for powers in (2, 3):
        last = best_last_step(end, powers)
        if last.error <= OFF:
            p, r, s = (*last.powers, 0.0)[:3]
            return Steps(b / c, a - b / c, c, p, last.q, last.d, r, s)
    return None
