"""Polar factors of one matrix on a CPU: inverses by Cholesky and a few products, in float32 throughout.

With K = A Aᵀ / nu² (the short side first, nu at least the largest singular value) singular values x in [l, 1] go through

    first    x <- x (p + q / (1 + d x²) + r x²)                             takes [l, 1] to [l', 1]
    second   x <- x (p + q / (1 + d x²) + r x² + s x⁴ + t x⁶ + u x⁸)        takes [l', 1] to 1

each the closest to 1 on its interval. A step is one inverse, and the second has two small products. Coarse is a first step
alone, for a longer l' than fast needs.

A Gram matrix in float32 loses weak directions. The first step lifts them by a limited factor only, and it is applied to A
itself. So the second starts from a new Gram matrix, in which they are strong, and the loss stays harmless. The first
Cholesky factor is computed in float64: its matrix has a condition number near 1e7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from egalitarian.kernels.coefficients import FAST_LOW, LastStep, best_last_step
from egalitarian.kernels.eigh import polar_by_eigh
from egalitarian.kernels.route import Route
from egalitarian.kernels.scaling import contained, largest_entry, scaled

MAX_ERROR = 8.5e-4
"""The largest distance from 1 that both steps may leave. Rounding adds to that."""
COARSE_LOW = 1 / 200
"""The weakest direction that the coarse factor equalises, relative to nu."""
COARSE_CENTRE = 0.95
"""The middle of its singular values, which are from 0.65 to 1.25."""
BAND, WIDE = 64, 4096
"""Columns that a sharp Gram matrix takes at once, and whose sum is a part of it."""
FEW = 36
"""Of fewer rows than this, in effect, rounding errors do not average out: they are computed in float64."""
FEW_DIRECTIONS = 4
"""With fewer directions, in effect, rows may be so alike that rounding errors add up. A reflection tells them apart."""
ROUNDING = 2e-6
"""Of a sum of squares in float32, relative to it."""
GOLDEN = (math.sqrt(5) - 1) / 2
SMALLEST, LARGEST = 1e-16, 1e18
"""Norms of a Gram matrix for which float32 neither overflows nor underflows."""


def polar_by_rational(route: Route, G: Tensor, scale: Tensor) -> Tensor:
    """U Vᵀ of every matrix in G, one by one; refused and non-finite ones take the fallback route."""
    X = _in_float32(G)
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


def coarse_by_rational(route: Route, G: Tensor, scale: Tensor) -> Tensor:
    """The coarse factor of every matrix in G, one by one."""
    if not G.numel():
        return G.clone()
    X = _in_float32(G)
    done = [coarse_rational_factor(matrix) for matrix in X.reshape(-1, *X.shape[-2:])]
    return (done[0] if G.ndim == 2 else torch.stack(done).reshape(G.shape)).to(G.dtype)


def rational_factor(G: Tensor, *, reflected: bool = False) -> Tensor | None:
    """U Vᵀ of a float32 matrix to 1e-3, root mean square over the directions above 1e-3 of the largest.

    Weaker directions come out weaker. None where this cannot be promised: a zero matrix, non-finite entries, or more than a
    thousand directions of the same strength next to weak ones.
    """
    tall = G.shape[0] > G.shape[1]
    K = _sharp_gram(G.mT if tall else G)
    norm, rows = _norm_and_rows(K)
    if not SMALLEST < norm < LARGEST:
        X = _near_one(G)
        return None if X is None else rational_factor(X, reflected=reflected)
    if rows < FEW and G.dtype == torch.float32:
        exact = rational_factor(G.double())
        return None if exact is None else exact.float()
    if not reflected and float(K.trace()) ** 2 < FEW_DIRECTIONS * norm * norm:
        w = _mirror(K)
        P = rational_factor(_reflection(G, w, tall), reflected=True)
        return None if P is None else _reflection(P, w, tall)
    high = _upper_end(K, norm)
    steps = steps_down_to(_lower_end(K, norm, high))
    if steps is None:
        return None
    first, second = steps
    P = _times(_of_gram(_for_values(first, high, 1 + first.error), K, _sharp_inverse), G, tall)
    return _times(_of_gram(second, P.mT @ P if tall else P @ P.mT), P, tall)


def coarse_rational_factor(G: Tensor) -> Tensor:
    """The polar factor of a float32 matrix, roughly: a singular value s nu becomes one in [0.65, 1.25] where s >= 1/200.

    Here nu is from the largest singular value to |G Gᵀ|^(1/2). A smaller s becomes at most 143 s + 0.01, never above 1.25.
    A zero matrix stays zero. One with a non-finite entry becomes NaN.
    """
    tall = G.shape[0] > G.shape[1]
    K = G.mT @ G if tall else G @ G.mT
    norm, _ = _norm_and_rows(K)
    if not SMALLEST < norm < LARGEST:
        X = _near_one(G)
        return _zero_or_nan(G) if X is None else coarse_rational_factor(X)
    step = best_last_step(COARSE_LOW, 2)
    return _times(_of_gram(_for_values(step, _upper_end(K, norm), 1 / COARSE_CENTRE), K), G, tall)


@lru_cache
def steps_down_to(lower: float) -> tuple[LastStep, LastStep] | None:
    """The two steps for [lower, 1], the first up to 1 + its error; None if two are not enough."""
    first = best_last_step(lower, 2)
    second = best_last_step((1 - first.error) / (1 + first.error), 5)
    return (first, second) if second.error <= MAX_ERROR else None


def _for_values(step: LastStep, high: float, top: float) -> LastStep:
    """The step for eigenvalues up to `high` instead of 1, over `top`; and it takes A itself, not A over sqrt(high)."""
    by = 1 / (top * math.sqrt(high))
    powers = tuple(by * value / high**index for index, value in enumerate(step.powers))
    return LastStep(powers, by * step.q, step.d / high, step.error)


def _of_gram(step: LastStep, K: Tensor, inverse: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """p + q / (1 + d K) + r K, or that with s K² + t K³ + u K⁴. K is overwritten."""
    p, r, *more = step.powers
    M = (inverse or _inverse)(_shift_(K * step.d, 1.0)).mul_(step.q)
    if not more:
        return _shift_(M.add_(K, alpha=r), p)
    s, t, u = more  # u (K² + c K + h)² has these three terms, and some of the others
    c = t / (2 * u)
    h = (s / u - c * c) / 2
    _shift_(M.add_(K, alpha=r - 2 * u * c * h), p - u * h * h)
    _shift_(K, c / 2)
    S = _shift_(K @ K, h - c * c / 4)
    return M.addmm_(S, S, alpha=u)


def _times(M: Tensor, A: Tensor, tall: bool) -> Tensor:
    return A @ M if tall else M @ A


def _sharp_gram(A: Tensor) -> Tensor:
    """A Aᵀ as a sum over bands of bands: a plain product rounds about twice as much, a long one more."""
    K = A.new_zeros(len(A), len(A))
    for wide in torch.split(A, WIDE, 1):
        first, *others = torch.split(wide, BAND, 1)
        part = first @ first.mT
        for band in others:
            part.addmm_(band, band.mT)
        K += part
    return K


def _inverse(B: Tensor) -> Tensor:
    """By Cholesky; passing the factor as the upper one is a tenth faster."""
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(B).L.mT, upper=True)


def _sharp_inverse(B: Tensor) -> Tensor:
    """The same with the factor in float64, which costs little: weak directions keep a third more of their digits."""
    L: Tensor = torch.linalg.cholesky_ex(B.double()).L.to(B.dtype)
    return torch.cholesky_inverse(L.mT, upper=True)


def _mirror(K: Tensor) -> Tensor:
    """A fixed unit vector with unlike entries, for K's rows."""
    each = torch.arange(1, len(K) + 1, dtype=torch.float64, device=K.device) * GOLDEN
    w = each - each.floor() - 0.5
    unit: Tensor = w / torch.linalg.vector_norm(w)
    return unit.to(K.dtype)


def _reflection(A: Tensor, w: Tensor, tall: bool) -> Tensor:
    """A with its short side mirrored. A second time gives A again, and the polar factor commutes with it."""
    return A.addr(A @ w, w, alpha=-2) if tall else A.addr(w, w @ A, alpha=-2)


def _shift_(A: Tensor, by: float) -> Tensor:
    A.diagonal().add_(by)
    return A


def _square(A: Tensor) -> float:
    """The sum of the squares of the entries."""
    flat = A.flatten()
    return float(torch.dot(flat, flat))


def _norm_and_rows(K: Tensor) -> tuple[float, float]:
    """The norm, by rows, since one sum over all entries would round more; and how many rows make up most of it."""
    each = torch.linalg.vector_norm(K, dim=1)
    square = _square(each)
    return math.sqrt(square), float(each.sum()) ** 2 / square if square else 0.0


def _upper_end(K: Tensor, norm: float) -> float:
    """A bound of the largest eigenvalue: the norm, or what mean and variance of the eigenvalues allow."""
    mean = float(K.trace()) / len(K)
    variance = max(norm * norm / len(K) - mean * mean, ROUNDING * mean * mean)
    return min(norm, mean + math.sqrt((len(K) - 1) * variance))


def _lower_end(K: Tensor, norm: float, high: float) -> float:
    """`FAST_LOW` of the largest singular value, over the root of `high`; rounded down to a power of 2^(1/4).

    |K x| / |x| is at most the largest eigenvalue, x being a row of K. So is |K|² over the trace.
    """
    x = K[0] / norm
    square = _square(x)
    found = math.sqrt(_square(K @ x) / square) if square else 0.0
    ratio = min(max(found, norm / float(K.trace()) * norm) / high, 1.0)
    return FAST_LOW * 2 ** (math.floor(2 * math.log2(ratio)) / 4)


def _in_float32(G: Tensor) -> Tensor:
    return G if G.dtype == torch.float32 else scaled(G, largest_entry(G).to(torch.float64), torch.float32)[0].float()


def _near_one(G: Tensor) -> Tensor | None:
    """G times a power of two, so that its largest entry is near 1; None for a zero or non-finite matrix."""
    largest = float(G.abs().amax()) if G.numel() else 0.0
    if not 0 < largest < math.inf:
        return None
    power = -math.frexp(largest)[1]
    return G * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)  # the whole power may be out of range


def _zero_or_nan(G: Tensor) -> Tensor:
    """Zero for a zero matrix, NaN for one with a non-finite entry."""
    return torch.full_like(G, 0 * float(G.abs().amax()))
