"""Section 3: the plateau of GD and of EGD under distribution shift, in closed form; the Corollary as printed and corrected.

Test error one means nu_k >= |mu_k| tan(theta) on v's side, and w(k) = (mu_k, nu_k) is known: every length below solves
that inequality for k. Lengths are real numbers; the first step off the plateau is the next integer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from egalitarian.lab.theory.distributions import Array, wedge_angle
from egalitarian.lab.theory.error import plateau_length
from egalitarian.lab.theory.problem import ShiftedProblem, egd, gd


def gd_path(problem: ShiftedProblem, start: ArrayLike, steps: ArrayLike) -> Array:
    """mu_k = alpha^k u1 + (1 - alpha^k) m1/m2, nu_k = beta^k u2: Lemma 2, as (K, 2)."""
    return gd(problem.population(), problem.rate, start, steps)


def egd_path(problem: ShiftedProblem, start: ArrayLike, steps: ArrayLike) -> Array:
    """mu_k = a^k u1 + (1 - a^k) m1/m2, nu_k = a^k u2 with a = 1 - eta, as (K, 2)."""
    return egd(problem.population(), problem.rate, start, steps)


def plateau(problem: ShiftedProblem, start: ArrayLike) -> float:
    """k_* = min {k : error of the population's w(k) < 1} for GD, step by step; the closed forms below approximate it."""
    return plateau_length(lambda k: gd_path(problem, start, k), problem.theta)


def cosine(w: Array, eps: float) -> Array:
    """r_k = mu_k / L_k, L_k = sqrt(mu_k² + eps nu_k²): Theorem 1. It *rises* above r = rho/gamma when the plateau ends."""
    ratio: Array = w[..., 0] / np.sqrt(w[..., 0] ** 2 + eps * w[..., 1] ** 2)
    return ratio


def cosine_as_printed(w: Array) -> Array:
    """r_k = mu_k / nu_k: the display before Theorem 1. Not a cosine; the theorem itself has mu_k / L_k."""
    ratio: Array = w[..., 0] / w[..., 1]
    return ratio


def tau(problem: ShiftedProblem, start: Array) -> float:
    """|u2| cot(theta) m2/m1: how far the start is above the line of v, measured at the limit of mu_k."""
    return abs(float(start[1])) / math.tan(problem.theta) * problem.m2 / problem.m1


def tau_as_printed(problem: ShiftedProblem, start: Array) -> float:
    """|u2| |tan(theta)| m2/m1: the Corollary. The two agree at pi/4 only."""
    return abs(float(start[1])) * math.tan(problem.theta) * problem.m2 / problem.m1


def plateau_large(problem: ShiftedProblem, start: Array) -> float:
    """log(tau) / log(1/beta) for u2 > 0 and tau > 1: Corollary (A), corrected. 0 for u2 < 0: no plateau on that side."""
    size = tau(problem, start)
    return math.log(size) / -math.log1p(-problem.eta * problem.eps) if start[1] > 0 and size > 1 else 0.0


def plateau_large_as_printed(problem: ShiftedProblem, start: Array) -> float:
    """log(tau) / log(1/beta) with tan in tau and either sign of u2: Corollary (A) and its proof."""
    return math.log(tau_as_printed(problem, start)) / -math.log1p(-problem.eta * problem.eps)


def plateau_small(problem: ShiftedProblem, start: Array) -> float:
    """log[(1 - u1 m2/m1) / (1 - tau)] / log(1/alpha), tau < 1: Corollary (B), corrected. Free of eps.

    Only mu_k moves on this time scale; the length is the limit eps -> 0 and holds for u2 > 0, u1 < u2 cot(theta).
    """
    size, first = tau(problem, start), float(start[0]) * problem.m2 / problem.m1
    if size >= 1 or problem.alpha <= 0:
        what, value, remedy = ("tau", size, "use plateau_large") if size >= 1 else ("alpha", problem.alpha, "lower eta")
        raise ValueError(f"{what} must be {'< 1' if size >= 1 else '> 0'} for a small start, got {value:.4g}; {remedy}")
    return max(0.0, math.log((1 - first) / (1 - size)) / -math.log(problem.alpha)) if start[1] > 0 and first < size else 0.0


def plateau_small_as_printed(problem: ShiftedProblem, start: Array) -> float:
    """(1/eta) log(1 / (tau eps)): Corollary (B)."""
    return math.log(1 / (tau_as_printed(problem, start) * problem.eps)) / problem.eta


def plateau_egd(problem: ShiftedProblem, start: Array) -> float:
    """log(1 + (u2 cot(theta) - u1) m2/m1) / log(1/(1 - eta)): no eps in it, but log(zeta). 0 below the line of v."""
    above = (float(start[1]) / math.tan(problem.theta) - float(start[0])) * problem.m2 / problem.m1
    return math.log1p(above) / -math.log1p(-problem.eta) if start[1] > 0 and above > 0 else 0.0


def steps_to_error(problem: ShiftedProblem, start: Array, level: float) -> float:
    """log(|u2| sqrt(eps) m2/m1 / tan(level phi)) / log(1/beta), about log(tau/level) / (eta eps): GD's error is `level`.

    For the late steps, where mu_k has reached m1/m2. Of order 1/eps for a small start (tau < 1) as well: there the plateau
    is short, the descent behind it is not. Level 1 is `plateau_large`.
    """
    line = math.tan(level * wedge_angle(problem.eps, problem.theta)) / math.sqrt(problem.eps) * problem.m1 / problem.m2
    ahead = float(start[1]) / line
    return math.log(ahead) / -math.log1p(-problem.eta * problem.eps) if ahead > 1 else 0.0


def spread_of_solution(problem: ShiftedProblem, n: int) -> float:
    """sd of the slow entry of w_ols: sqrt((1 - m1²/m2) / (n eps)). The paper's O(n^(-1/2)) hides the eps."""
    return math.sqrt((1 - problem.m1**2 / problem.m2) / (n * problem.eps))


def late_error(problem: ShiftedProblem, n: int) -> float:
    """E[max(0, N)] / (tan(theta) m1/m2), N ~ (0, spread²): the mean test error of w_ols, where Theorem 1 has 0.

    Holds for GD and EGD alike, both end at w_ols; to first order in the spread.
    """
    limit = math.tan(problem.theta) * problem.m1 / problem.m2
    return spread_of_solution(problem, n) / (math.sqrt(2 * math.pi) * limit)
