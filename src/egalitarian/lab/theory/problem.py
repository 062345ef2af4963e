"""The two toy problems as frozen values: Section 3 (train and test laws differ) and the appendix (one law)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from egalitarian.lab.theory.dynamics import Quadratic
from egalitarian.lab.theory.moments import WedgeMoments, folded_first, folded_second, wedge_moments
from egalitarian.lab.theory.sample import Array, Generator, folded, labels, wedge

LARGEST_MARGIN = 30.0
"""Beyond it Q(s) nears the smallest double and the sampler would have no points left."""


def check_open(what: str, value: float, low: float, high: float, rule: str, way_out: str) -> None:
    """low < value < high, or a ValueError that says so."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low < float(value) < high:
        raise ValueError(f"{what} must be {rule}, got {value}; {way_out}")


def check_eps(eps: float) -> None:
    check_open("eps", eps, 0.0, math.nextafter(1.0, 2.0), "in (0, 1]", "it is the variance of the slow feature")


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
        right = "a larger angle has no slow test direction"
        check_open("theta", self.theta, 0.0, math.pi / 2, "in (0, pi/2), in radians", right)
        top = math.nextafter(LARGEST_MARGIN, math.inf)
        check_open("s", self.s, -5e-324, top, f"in [0, {LARGEST_MARGIN:g}]", "it is half the margin of the training data")
        most = min(1.0, 2 / self.m2)
        check_open("eta", self.eta, 0.0, most, f"in (0, {most:.4g}) for s = {self.s:g}", "lower it, or GD diverges")

    @property
    def m1(self) -> float:
        return folded_first(self.s)

    @property
    def m2(self) -> float:
        return folded_second(self.s)

    @property
    def rate(self) -> float:
        """eta: Section 3 takes half the loss's gradient."""
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
        theta: angle of v with e_1, in (0, pi); the paper also allows 0 and pi, where the event has no mass or all of it.
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
        """2 eta: the appendix takes the whole gradient of the loss."""
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
