"""The appendix: one distribution for training and test. Dynamics and plateau, as printed and corrected.

For acute theta, by `wedge_moments`: a, b, d are of order eps and c of order sqrt(eps). So *both* modes are slow, the
condition number is a constant, and w_ols is at a distance of order eps^(-1/2). From a fixed start the plateau is of order
1/(eta sqrt(eps)); from |w(0)| >> eps^(-1/2) it is of order 1/(eta eps) and no longer grows with |w(0)|.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from egalitarian.lab.theory.distributions import Array, WedgeMoments
from egalitarian.lab.theory.error import plateau_length
from egalitarian.lab.theory.problem import EqualProblem, Quadratic


def factors(moments: WedgeMoments, eta: float) -> tuple[float, float]:
    """r_± = 1 - 2 eta lambda_±, in this order (so r_+ < r_-)."""
    low, high = np.linalg.eigvalsh(moments.sigma)
    return 1 - 2 * eta * float(high), 1 - 2 * eta * float(low)


def cayley_hamilton(moments: WedgeMoments, eta: float, steps: ArrayLike) -> tuple[Array, Array]:
    """alpha_k = (r+ r-^k - r- r+^k) / (r+ - r-), beta_k = (r+^k - r-^k) / (r+ - r-); M^k = alpha_k I + beta_k M.

    r_+ and r_- differ for every theta in (0, pi), since b does not vanish there.
    """
    plus, minus = factors(moments, eta)
    k = np.asarray(steps, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        up, down = np.power(plus, k), np.power(minus, k)
        return (plus * down - minus * up) / (plus - minus), (up - down) / (plus - minus)


def power(moments: WedgeMoments, eta: float, k: int) -> Array:
    """M^k for M = I - 2 eta Sigma, by Cayley-Hamilton."""
    alpha, beta = cayley_hamilton(moments, eta, [k])
    result: Array = alpha * np.eye(2) + beta * (np.eye(2) - 2 * eta * moments.sigma)
    return result


def path(moments: WedgeMoments, eta: float, start: ArrayLike, steps: ArrayLike) -> Array:
    """(mu_k, nu_k) = w_* - (alpha_k I + beta_k M)(w_* - w(0)): the appendix's display, with these moments."""
    solution = Quadratic(moments.sigma, moments.c).solution
    gap = solution - np.asarray(start, dtype=np.float64)
    alpha, beta = cayley_hamilton(moments, eta, steps)
    with np.errstate(over="ignore", invalid="ignore"):
        moved: Array = solution - alpha[:, None] * gap - beta[:, None] * (gap - 2 * eta * moments.sigma @ gap)
    return moved


def gd_path(problem: EqualProblem, start: ArrayLike, steps: ArrayLike) -> Array:
    """`path` with the true moments: GD on the population, (K, 2)."""
    return path(problem.moments, problem.eta, start, steps)


def plateau(problem: EqualProblem, start: ArrayLike) -> float:
    """k_* = min {k : error of the population's w(k) < 1}, step by step; it holds where the boxed bounds do not."""
    return plateau_length(lambda k: gd_path(problem, start, k), problem.theta)


def slow_direction(moments: WedgeMoments) -> Array:
    """q_-, the eigenvector of the smaller eigenvalue, its second entry >= 0. Printed: e_2 + O(sqrt(eps))."""
    vector = np.linalg.eigh(moments.sigma)[1][:, 0]
    return -vector if vector[1] < 0 else vector


def plateau_as_printed(problem: EqualProblem, start: Array, moments: WedgeMoments) -> float:
    """log(|u2 - nu_*| / T) / (2 eta lambda_-), T = |mu_*| tan(theta): the boxed bounds, with their constants C = 1.

    The paper has C = 1 + O(sqrt(eps)), not further specified. `moments` may be the printed or the corrected ones; infinite
    where lambda_- is not positive.
    """
    first, second = Quadratic(moments.sigma, moments.c).solution
    low = float(np.linalg.eigvalsh(moments.sigma)[0])
    line = abs(first) * abs(math.tan(problem.theta))
    return math.log(abs(float(start[1]) - second) / line) / (2 * problem.eta * low) if low > 0 else math.inf


def plateau_near(problem: EqualProblem, start: Array) -> float:
    """(u2 cos - u1 sin) / (2 eta (c1 sin - c2 cos)) ~ 1/(eta sqrt(eps)): the plateau of a start with |u| << eps^(-1/2).

    There w(k) = w(0) + 2 eta k c to leading order: w_ols is far away and Sigma w is small against c. Acute theta only.
    """
    sine, cosine = math.sin(problem.theta), math.cos(problem.theta)
    ahead = float(start[1]) * cosine - float(start[0]) * sine
    speed = 2 * problem.eta * (problem.moments.c1 * sine - problem.moments.c2 * cosine)
    return ahead / speed if start[1] > 0 and ahead > 0 else 0.0


def plateau_far(problem: EqualProblem, start: Array) -> float:
    """log(-x_+/x_-) / log(r_-/r_+), x_± = (n.q_±)(q_±.u), n = (-sin, cos): a start with |u| >> eps^(-1/2).

    There w_ols is negligible and w(k) = M^k w(0), so the length depends on the direction of u, not on its size: of order
    1/(eta eps), with no logarithm of |u|. Infinite if that direction never crosses the line of v.
    """
    normal = np.array([-math.sin(problem.theta), math.cos(problem.theta)])
    vectors = np.linalg.eigh(problem.moments.sigma)[1]
    slow, fast = (float((normal @ vectors[:, i]) * (vectors[:, i] @ start)) for i in (0, 1))
    if slow + fast <= 0 or start[1] <= 0:
        return 0.0
    plus, minus = factors(problem.moments, problem.eta)
    return math.log(-fast / slow) / math.log(minus / plus) if slow < 0 else math.inf
