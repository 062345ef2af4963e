"""The fast polar factor of one matrix on a CPU: two inverses by Cholesky and a few products, in float32 throughout.

With K = A Aᵀ / u (the short side first, u at least its largest eigenvalue) the singular values x in [l, 1] go through

    first    x <- x (a + b x²) / (1 + c x²)                takes [l, 1] to [l', 1] (`coefficients.rationals`)
    last     x <- x (p + q / (1 + d x²) + r x² + s x⁴)     the closest to 1 on [l', 1]

on the Gram matrix. Each step is an inverse. One product makes K' from the first step, another joins the two. The term in s
costs one more product and is left out where possible; the term in r costs nothing. The inverse root is applied to A once.

A Gram matrix in float32 loses weak directions if there are many. The error from that is estimated at the end. A matrix
with too large an error is refused, and takes the route by eigenvectors.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import FAST_LOW, best_last_step, rationals
from egalitarian.kernels.eigh import gram, polar_by_eigh
from egalitarian.kernels.lowrank import gaussian
from egalitarian.kernels.route import Route
from egalitarian.kernels.scaling import contained, largest_entry, scaled

MAX_ERROR = 9.8e-3
"""The largest distance from 1 that the two steps may leave. They err to both sides, so the mean is 0.7 of that."""
NOISE = 2e-7
"""The error of a float32 Gram matrix, relative to its norm (measured: 0.7e-7 to 1.9e-7). A row's share follows its norm."""
LONG = 20_000
"""From this many columns on, the error grows with the square root of their number."""
BLUR = 3e-3
"""What that error may add to the root mean square error of the directions."""
SMALLEST, LARGEST = 1e-16, 1e18
"""Norms of a Gram matrix for which float32 neither overflows nor underflows."""
PROBES = 8
"""Random vectors that estimate sums over directions."""


class TwoSteps(NamedTuple):
    """Both steps, for one lower end: a + b / (1 + c K), then p + q / (1 + d K') + r K' + s K'²."""

    a: float
    b: float
    c: float
    p: float
    q: float
    d: float
    r: float
    s: float


def polar_by_rational(route: Route, G: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of every matrix in G, one by one; refused and non-finite ones take the fallback route."""
    X = G if G.dtype == torch.float32 else scaled(G, largest_entry(G).to(torch.float64), torch.float32)[0].float()
    matrices = X.reshape(-1, *X.shape[-2:])
    found = [rational_factor(matrix) for matrix in matrices]
    refused = [index for index, P in enumerate(found) if P is None]
    if refused:
        assert route.fallback is not None
        rest = matrices if len(refused) == len(found) else matrices[refused]
        rest = contained(rest, partial(polar_by_eigh, route.fallback), readable=True, dtype=torch.float32)
        for index, P in zip(refused, rest, strict=True):
            found[index] = P
    done = [P for P in found if P is not None]
    return (done[0] if G.ndim == 2 else torch.stack(done).reshape(G.shape)).to(G.dtype)


def rational_factor(G: Tensor) -> Tensor | None:
    """U Vᵀ of a float32 matrix to 1e-2, root mean square over the directions above 1e-3 of the largest.

    Weaker directions come out weaker. None where this cannot be promised: too many weak directions next to strong ones,
    thousands of equal ones, a zero matrix, or non-finite entries.
    """
    tall = G.shape[0] > G.shape[1]
    K = gram(G.mT if tall else G)
    rows = torch.linalg.vector_norm(K, dim=1)
    norm = math.sqrt(_square(rows))
    if not SMALLEST < norm < LARGEST:
        X = _near_one(G)
        return None if X is None else rational_factor(X)
    steps = steps_down_to(_lower_end(K, norm))
    if steps is None:
        return None
    M = _inverse_root(K, norm, steps)
    noise = NOISE * max(1.0, math.sqrt(max(G.shape) / LONG)) / norm * rows.square_()
    if not _is_sharp(M, G.mT if tall else G, noise):
        return None
    return G @ M if tall else M @ G


def _near_one(G: Tensor) -> Tensor | None:
    """G times a power of two, so that its largest entry is near 1; None for a zero or non-finite matrix."""
    largest = float(G.abs().amax()) if G.numel() else 0.0
    if not 0 < largest < math.inf:
        return None
    power = -math.frexp(largest)[1]
    return G * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)  # the whole power may be out of range


def _inverse_root(K: Tensor, norm: float, steps: TwoSteps) -> Tensor:
    """K^(-1/2). K is overwritten. Squares are completed, which needs passes over diagonals only."""
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
    """By Cholesky; passing the factor as the upper one is a tenth faster."""
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(B).L.mT, upper=True)


def _shift_(A: Tensor, by: float) -> Tensor:
    A.diagonal().add_(by)
    return A


def _square(A: Tensor) -> float:
    """The sum of the squares of the entries."""
    flat = A.flatten()
    return float(torch.dot(flat, flat))


def _lower_end(K: Tensor, norm: float) -> float:
    """`FAST_LOW` of the largest singular value, relative to the root of the norm; rounded down to a power of 2^(1/4).

    |K x| / |x| is at most the largest eigenvalue, and so is |K| / sqrt(k); x is a row of K.
    """
    x = K[0] / norm
    square = _square(x)
    ratio = math.sqrt(_square(K @ x) / square) / norm if square else 0.0
    ratio = min(max(ratio, len(K) ** -0.5), 1.0)
    return FAST_LOW * 2 ** (math.floor(2 * math.log2(ratio)) / 4)


def _is_sharp(M: Tensor, A: Tensor, noise: Tensor) -> bool:
    """Whether the rounding error E of K, E_ab² = noise_a noise_b, adds less than `BLUR` to the directions of M A.

    In the eigenbasis of K, E adds E_ij / (s_i (s_i + s_j)) to entry (i, j) of M A. So (i, j) and (j, i) together get at
    most E_ij² / (s_i s_j)². If M A has direction i but not j, 1 / M_j replaces s_j. The mean of E_ij² is t_i t_j, with t
    the noise of a direction. So the sum of t / s² decides: the squares of M, summed by rows.
    """
    weights = float(torch.dot(noise, torch.linalg.vector_norm(M, dim=1).square_()))
    if weights < BLUR * math.sqrt(2 * len(M)):  # an upper bound: all directions present
        return True
    probes = M @ (A @ gaussian(A.shape[1], PROBES, 0, A.device).float())
    have = _square(probes) / PROBES  # the number of directions
    had = float(torch.dot(noise, torch.linalg.vector_norm(M @ probes, dim=1).square_())) / PROBES  # the sum over them
    had = min(had, weights)
    return math.sqrt(had * (weights - had / 2)) < BLUR * math.sqrt(have)


@lru_cache
def steps_down_to(lower: float) -> TwoSteps | None:
    """The two steps for [lower, 1], the last without its x⁴ where possible; None if two are not enough."""
    a, b, c = rationals(lower, 0.5)[0]
    end = lower * (a + b * lower**2) / (1 + c * lower**2)
    for powers in (2, 3):
        last = best_last_step(end, powers)
        if last.error <= MAX_ERROR:
            p, r, s = (*last.powers, 0.0)[:3]
            return TwoSteps(b / c, a - b / c, c, p, last.q, last.d, r, s)
    return None
