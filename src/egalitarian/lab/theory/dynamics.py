"""w(k) for gradient descent and for EGD on (1/n)|X w - Y|², exactly: on a sample or, with its moments, on the population.

Each closed form has a slow twin `_by_steps` that walks the recursion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from egalitarian.lab.theory.sample import Array


@dataclass(frozen=True, eq=False)
class Quadratic:
    """wᵀ Sigma w - 2 cᵀ w: what least squares sees of a sample, or of the law behind it."""

    sigma: Array
    c: Array

    @classmethod
    def of_sample(cls, x: Array, y: Array) -> Quadratic:
        """Sigma^ = XᵀX / n and c^ = XᵀY / n of `x` (n, 2) and `y` (n,)."""
        return cls(x.T @ x / len(x), x.T @ y / len(x))

    @property
    def solution(self) -> Array:
        """w_ols = Sigma⁻¹ c."""
        solved: Array = np.linalg.solve(self.sigma, self.c).astype(np.float64)
        return solved

    def gradient(self, w: Array) -> Array:
        """Sigma w - c: *half* the gradient of the loss. Section 3 steps with eta of this, the appendix with 2 eta."""
        return self.sigma @ w - self.c


def gd(quadratic: Quadratic, rate: float, start: ArrayLike, steps: ArrayLike) -> Array:
    """w(k) = w_ols - (I - rate Sigma)^k (w_ols - w(0)), one row per entry of `steps`."""
    values, vectors = np.linalg.eigh(quadratic.sigma)
    solution, k = quadratic.solution, np.asarray(steps, dtype=np.float64)
    gap = vectors.T @ (solution - np.asarray(start, dtype=np.float64))
    damped = np.power(1.0 - rate * values, k[:, None]) * gap
    moved: Array = solution - damped @ vectors.T
    return moved


def gd_by_steps(quadratic: Quadratic, rate: float, start: ArrayLike, count: int) -> Array:
    """w(k) = w(k-1) - rate (Sigma w(k-1) - c) for k = 0..count: the recursion itself."""
    w = [np.asarray(start, dtype=np.float64)]
    for _ in range(count):
        w.append(w[-1] - rate * quadratic.gradient(w[-1]))
    return np.stack(w)


def egd(quadratic: Quadratic, rate: float, start: ArrayLike, steps: ArrayLike) -> Array:
    """w(k) = a^k w(0) + (1 - a^k) w_ols with a = 1 - rate: Section 3's modified scheme."""
    shrink = np.power(1.0 - rate, np.asarray(steps, dtype=np.float64))[:, None]
    moved: Array = shrink * np.asarray(start, dtype=np.float64) + (1.0 - shrink) * quadratic.solution
    return moved


def egd_by_steps(quadratic: Quadratic, rate: float, start: ArrayLike, count: int) -> Array:
    """w(k) = w(k-1) - rate Sigma⁻¹ (Sigma w(k-1) - c) for k = 0..count: a damped Newton step."""
    w = [np.asarray(start, dtype=np.float64)]
    for _ in range(count):
        w.append(w[-1] - rate * np.linalg.solve(quadratic.sigma, quadratic.gradient(w[-1])))
    return np.stack(w)


def polar_by_steps(quadratic: Quadratic, rate: float, start: ArrayLike, count: int) -> Array:
    """w(k) = w(k-1) - rate g/|g|, k = 0..count: EGD as Section 4 *defines* it, on this model's one-row gradient.

    The polar factor of a 1 x 2 matrix g is g/|g|. This is not the scheme of Section 3, which inverts Sigma; where the
    gradient is zero, so is the step.
    """
    (s11, s12), (_, s22) = quadratic.sigma.tolist()
    c1, c2 = quadratic.c.tolist()
    mu, nu = np.asarray(start, dtype=np.float64).tolist()
    path = np.empty((count + 1, 2))
    path[0] = mu, nu
    for k in range(1, count + 1):
        g1, g2 = s11 * mu + s12 * nu - c1, s12 * mu + s22 * nu - c2
        size = (g1 * g1 + g2 * g2) ** 0.5
        if size > 0:
            mu, nu = mu - rate * g1 / size, nu - rate * g2 / size
        path[k] = mu, nu
    return path
