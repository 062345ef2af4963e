"""The two toy problems as frozen values, and w(k) for gradient descent and for EGD on (1/n)|X w - Y|², exactly.

In Section 3 training and test distributions differ, in the appendix they are equal. Both methods run on a sample, or on the
population by its moments. EGD here is the modified scheme of Section 3, a damped Newton step; `polar_by_steps` is the EGD
of Section 4. Each closed form has a slow reference version `_by_steps` that iterates the recursion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from egalitarian.lab.theory.distributions import (
    Array,
    Generator,
    WedgeMoments,
    folded,
    folded_first,
    folded_second,
    labels,
    wedge,
    wedge_moments,
)

LARGEST_MARGIN = 30.0
"""Above it, P(z1 > s) nears the smallest double, and the sampler would have no points left."""


def check_open(what: str, value: float, low: float, high: float, rule: str, remedy: str) -> None:
    """A ValueError unless low < value < high."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low < float(value) < high:
        raise ValueError(f"{what} must be {rule}, got {value}; {remedy}")


def check_eps(eps: float) -> None:
    check_open("eps", eps, 0.0, math.nextafter(1.0, 2.0), "in (0, 1]", "it is the variance of the slow feature")


@dataclass(frozen=True, eq=False)
class Quadratic:
    """wᵀ Sigma w - 2 cᵀ w: the least-squares loss of a sample or of its distribution, up to a constant."""

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

    def half_gradient(self, w: Array) -> Array:
        """Sigma w - c: half the gradient of the loss. Section 3 multiplies this by eta, the appendix by 2 eta."""
        return self.sigma @ w - self.c


@dataclass(frozen=True)
class ShiftedProblem:
    """Train on z given |z1| >= s, test on z given z1 (z.v) <= 0; y = sign(x1), z ~ N(0, diag(1, eps)).

    Args:
        eps: variance of the slow feature, in (0, 1].
        theta: angle of v with e_1, in (0, pi/2).
        s: half the margin of the training data, in [0, 30].
        eta: step size, in (0, min(1, 2/m2)): GD diverges above 2/m2, EGD needs eta < 1.

    >>> problem = ShiftedProblem(eps=0.01, theta=math.pi / 4, s=1.0, eta=0.1)
    >>> problem.population().solution.round(3).tolist()
    [0.604, 0.0]
    """

    eps: float
    theta: float
    s: float
    eta: float

    def __post_init__(self) -> None:
        check_eps(self.eps)
        remedy = "a larger angle has no slow test direction"
        check_open("theta", self.theta, 0.0, math.pi / 2, "in (0, pi/2), in radians", remedy)
        low, high = math.nextafter(0.0, -1.0), math.nextafter(LARGEST_MARGIN, math.inf)  # both ends are allowed
        check_open("s", self.s, low, high, f"in [0, {LARGEST_MARGIN:g}]", "it is half the margin of the training data")
        most = min(1.0, 2 / self.m2)
        check_open("eta", self.eta, 0.0, most, f"in (0, {most:.4g}) for s = {self.s:g}", "lower it, or GD diverges")

    @property
    def m1(self) -> float:
        """The mean of |x1| over the training distribution."""
        return folded_first(self.s)

    @property
    def m2(self) -> float:
        """The mean of x1² over the training distribution."""
        return folded_second(self.s)

    @property
    def rate(self) -> float:
        """eta: Section 3 steps along half the gradient of the loss."""
        return self.eta

    @property
    def alpha(self) -> float:
        """1 - eta m2, the fast factor."""
        return 1.0 - self.eta * self.m2

    @property
    def beta(self) -> float:
        """1 - eta eps, the slow factor."""
        return 1.0 - self.eta * self.eps

    def population(self) -> Quadratic:
        """Sigma = diag(m2, eps), c = (m1, 0)."""
        return Quadratic(np.diag([self.m2, self.eps]), np.array([self.m1, 0.0]))

    def train(self, n: int, rng: Generator) -> tuple[Array, Array]:
        x = folded(n, self.eps, self.s, rng)
        return x, labels(x)

    def test(self, n: int, rng: Generator) -> tuple[Array, Array]:
        x = wedge(n, self.eps, self.theta, rng)
        return x, labels(x)


@dataclass(frozen=True)
class EqualProblem:
    """Train and test on z given z1 (z.v) <= 0; y = sign(x1), z ~ N(0, diag(1, eps)): the appendix.

    Args:
        eps: variance of the slow feature, in (0, 1].
        theta: angle of v with e_1, in (0, pi); the paper also allows 0 and pi, where the condition is never or always true.
        eta: step size, in (0, 1/lambda_max). The recursion steps with 2 eta.
    """

    eps: float
    theta: float
    eta: float

    def __post_init__(self) -> None:
        check_eps(self.eps)
        check_open("theta", self.theta, 0.0, math.pi, "in (0, pi), in radians", "at the ends there is no wedge")
        most = 1 / float(np.linalg.eigvalsh(self.moments.sigma)[-1])
        check_open("eta", self.eta, 0.0, most, f"in (0, {most:.4g}), below 1/lambda_max", "lower it, or GD diverges")

    @property
    def moments(self) -> WedgeMoments:
        return wedge_moments(self.eps, self.theta)

    @property
    def rate(self) -> float:
        """2 eta: the appendix steps along the whole gradient of the loss."""
        return 2 * self.eta

    def population(self) -> Quadratic:
        return Quadratic(self.moments.sigma, self.moments.c)

    def train(self, n: int, rng: Generator) -> tuple[Array, Array]:
        x = wedge(n, self.eps, self.theta, rng)
        return x, labels(x)

    def test(self, n: int, rng: Generator) -> tuple[Array, Array]:
        return self.train(n, rng)


Problem = ShiftedProblem | EqualProblem


def start_at(zeta: float, angle: float = math.pi / 2) -> Array:
    """w(0) = zeta (cos angle, sin angle). The paper fixes |w(0)| = zeta and leaves the direction open."""
    check_open("zeta", zeta, 0.0, math.inf, "a finite number > 0", "it is the size of w(0)")
    check_open("angle", angle, -math.inf, math.inf, "a finite number of radians", "pi/2 is the slow direction")
    along = np.array([math.cos(angle), math.sin(angle)])
    along[np.abs(along) < 1e-15] = 0.0
    return zeta * along


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
        w.append(w[-1] - rate * quadratic.half_gradient(w[-1]))
    return np.stack(w)


def egd(quadratic: Quadratic, rate: float, start: ArrayLike, steps: ArrayLike) -> Array:
    """w(k) = a^k w(0) + (1 - a^k) w_ols with a = 1 - rate: EGD in Section 3, a damped Newton step.

    The paper calls it a modified scheme. It multiplies the gradient by Sigma⁻¹, and is not the polar factor of Section 4.
    """
    shrink = np.power(1.0 - rate, np.asarray(steps, dtype=np.float64))[:, None]
    moved: Array = shrink * np.asarray(start, dtype=np.float64) + (1.0 - shrink) * quadratic.solution
    return moved


def egd_by_steps(quadratic: Quadratic, rate: float, start: ArrayLike, count: int) -> Array:
    """w(k) = w(k-1) - rate Sigma⁻¹ (Sigma w(k-1) - c) for k = 0..count: the recursion of `egd`."""
    w = [np.asarray(start, dtype=np.float64)]
    for _ in range(count):
        w.append(w[-1] - rate * np.linalg.solve(quadratic.sigma, quadratic.half_gradient(w[-1])))
    return np.stack(w)


def polar_by_steps(quadratic: Quadratic, rate: float, start: ArrayLike, count: int) -> Array:
    """w(k) = w(k-1) - rate g/|g|, k = 0..count: EGD as Section 4 defines it, on this model's one-row gradient.

    The polar factor of a 1 x 2 matrix g is g/|g|. Section 3 has another scheme, `egd`. Where the gradient is zero, so is
    the step.
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
