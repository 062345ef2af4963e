"""The error of x -> sign(x.w), in closed form and counted on samples; the plateau, how long the test error stays at one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, owens_t  # type: ignore[import-untyped]

from egalitarian.lab.theory.claim import mean_and_error
from egalitarian.lab.theory.distributions import Array, labels, wedge_angle, wedge_by_rejection
from egalitarian.lab.theory.problem import Problem, Quadratic, gd

Walk = Callable[[NDArray[np.int64]], Array]
"""Steps (K,) -> weights (K, 2)."""
Descent = Callable[[Quadratic, float, ArrayLike, ArrayLike], Array]
"""`gd` or `egd`: (quadratic, rate, start, steps) -> weights."""


def error_on_test(w: Array, eps: float, theta: float) -> Array:
    """min(1, phi_w / phi) for phi_w >= 0, max(0, (phi - phi_w - pi) / phi) otherwise; phi_w = atan2(sqrt(eps) nu, mu).

    The general two-sided formula in the proof of Theorem 1, P(z1 (z.w) <= 0 | z1 (z.v) <= 0), in angles of the whitened
    plane instead of differences of arccosines. `w` is (..., 2); w = 0 counts as all wrong.
    """
    phi = wedge_angle(eps, theta)
    angle = np.arctan2(math.sqrt(eps) * w[..., 1], w[..., 0])
    error = np.clip(np.where(angle >= 0, angle, phi - angle - math.pi) / phi, 0.0, 1.0)
    return np.where(np.any(w != 0, axis=-1), error, 1.0)


def error_on_test_by_arccos(w: Array, eps: float, theta: float) -> Array:
    """(arccos r_ev + arccos r_we - arccos r_wv) / (2 arccos r_ev), as in the proof; loses digits for small eps."""
    scale = np.array([1.0, math.sqrt(eps)])
    v = scale * np.array([math.cos(theta), math.sin(theta)])
    bar = scale * w
    size = np.linalg.norm(bar, axis=-1)
    to_first = np.arccos(np.clip(bar[..., 0] / size, -1.0, 1.0))
    to_v = np.arccos(np.clip(bar @ v / (size * np.linalg.norm(v)), -1.0, 1.0))
    phi = np.arccos(v[0] / np.linalg.norm(v))
    error: Array = (phi + to_first - to_v) / (2 * phi)
    return error


def error_on_test_one_sided(w: Array, eps: float, theta: float) -> Array:
    """min(1, arccos(r_k) / arccos(r)), r_k = mu / L: Theorem 1 (and the appendix) as printed.

    Right for nu >= 0 only: r_k does not see the sign of nu.
    """
    ratio = np.arctan2(math.sqrt(eps) * np.abs(w[..., 1]), w[..., 0]) / wedge_angle(eps, theta)
    return np.minimum(1.0, ratio)


def error_on_train(w: Array, eps: float, s: float) -> Array:
    """P(z1 (z.w) <= 0 | |z1| >= s) = 1/2 - T(s, mu / (sqrt(eps) |nu|)) / Q(s) with Owen's T. Not in the paper."""
    slow = math.sqrt(eps) * np.abs(w[..., 1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope = np.where(slow > 0, w[..., 0] / slow, np.copysign(np.inf, w[..., 0]))
    error: Array = 0.5 - owens_t(s, slope) / ndtr(-s)
    return np.where(np.any(w != 0, axis=-1), np.maximum(error, 0.0), 1.0)


def sampled_error(w: Array, x: Array, y: Array) -> Array:
    """The share of points with y (x.w) <= 0: `w` (K, 2), `x` (n, 2), result (K,)."""
    share: Array = np.mean(y * (w @ x.T) <= 0, axis=1)
    return share


def on_plateau(w: Array, theta: float) -> NDArray[np.bool_]:
    """Test error one: nu >= 0 and nu cos(theta) >= mu sin(theta), i.e. phi_w >= phi."""
    stuck: NDArray[np.bool_] = (w[..., 1] >= 0) & (w[..., 1] * math.cos(theta) >= w[..., 0] * math.sin(theta))
    return stuck


def first_step(walk: Walk, reached: Callable[[Array], NDArray[np.bool_]], limit: int = 50_000_000) -> float:
    """min {k >= 0 : reached(w(k))}, searched at every step in blocks that double; infinity if none up to `limit`."""
    begin, size = 0, 1024
    while begin <= limit:
        hit = reached(walk(np.arange(begin, min(begin + size, limit + 1))))
        if hit.any():
            return float(begin + int(np.argmax(hit)))
        begin, size = begin + size, min(2 * size, 1 << 20)
    return math.inf


def plateau_length(walk: Walk, theta: float, limit: int = 50_000_000) -> float:
    """k_* = min {k >= 0 : test error of w(k) < 1}; infinity if it is one at every step up to `limit`."""
    return first_step(walk, lambda w: ~on_plateau(w, theta), limit)


def quadratics(problem: Problem, n: int, seeds: int, key: Sequence[int]) -> list[Quadratic]:
    """One training sample of n points per seed, as its least-squares loss."""
    return [Quadratic.of_sample(*problem.train(n, np.random.default_rng([*key, seed]))) for seed in range(seeds)]


def wedge_points(eps: float, theta: float, n: int, rng: np.random.Generator) -> Array:
    """n test points straight from the definition, by rejection."""
    share, found = wedge_angle(eps, theta) / math.pi, np.empty((0, 2))
    while len(found) < n:
        found = np.concatenate(
            [found, wedge_by_rejection(math.ceil(1.1 * (n - len(found)) / share) + 100, eps, theta, rng)]
        )
    return found[:n]


def simulated_errors(
    trained: Sequence[Quadratic], tests: Sequence[Array], rate: float, start: Array, steps: ArrayLike, method: Descent = gd
) -> Array:
    """The test error of one method on each training sample, counted on its own test sample: (R, K)."""
    runs = zip(trained, tests, strict=True)
    return np.stack([sampled_error(method(one, rate, start, steps), x, labels(x)) for one, x in runs])


def counted(errors: Array, points: int) -> tuple[Array, Array]:
    """Mean and standard error of shares (R, K) of `points` each. The error is at least that of counting."""
    mean, spread = mean_and_error(errors)
    total = points * len(errors)
    hits = mean * total
    share = (hits + 1) / (total + 2)
    return mean, np.where(
        (hits == 0) | (hits == total), 1 / total, np.maximum(spread, np.sqrt(share * (1 - share) / total))
    )


def simulated_plateaus(trained: Sequence[Quadratic], method: Descent, problem: Problem, start: Array) -> Array:
    """k_* of one method on each training sample: (R,)."""

    def length(one: Quadratic) -> float:
        return plateau_length(lambda k: method(one, problem.rate, start, k), problem.theta)

    return np.array([length(one) for one in trained])
