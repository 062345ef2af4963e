"""Many seeds at once: training samples, test errors counted on test samples, plateau lengths; all with their spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from egalitarian.lab.theory.claim import mean_and_error
from egalitarian.lab.theory.dynamics import Quadratic, gd
from egalitarian.lab.theory.error import plateau_length, sampled_error
from egalitarian.lab.theory.problem import Problem
from egalitarian.lab.theory.sample import Array, labels, wedge_angle, wedge_by_rejection

Method = Callable[[Quadratic, float, ArrayLike, ArrayLike], Array]
"""`gd` or `egd`: (quadratic, rate, start, steps) -> weights."""


def quadratics(problem: Problem, n: int, seeds: int, key: Sequence[int]) -> list[Quadratic]:
    """One training sample of n points per seed, as what least squares sees of it."""
    return [Quadratic.of_sample(*problem.train(n, np.random.default_rng([*key, seed]))) for seed in range(seeds)]


def wedge_points(eps: float, theta: float, n: int, rng: np.random.Generator) -> Array:
    """n test points straight from the definition: reject until there are enough."""
    share, found = wedge_angle(eps, theta) / math.pi, np.empty((0, 2))
    while len(found) < n:
        found = np.concatenate(
            [found, wedge_by_rejection(math.ceil(1.1 * (n - len(found)) / share) + 100, eps, theta, rng)]
        )
    return found[:n]


def simulated_errors(
    trained: Sequence[Quadratic], tests: Sequence[Array], rate: float, start: Array, steps: ArrayLike, method: Method = gd
) -> Array:
    """The test error of one method on each training sample, counted on its own test sample: (R, K)."""
    runs = zip(trained, tests, strict=True)
    return np.stack([sampled_error(method(one, rate, start, steps), x, labels(x)) for one, x in runs])


def counted(errors: Array, points: int) -> tuple[Array, Array]:
    """Mean and standard error of shares (R, K) of `points` each; never below what counting alone leaves."""
    mean, spread = mean_and_error(errors)
    total = points * len(errors)
    hits = mean * total
    share = (hits + 1) / (total + 2)
    return mean, np.where(
        (hits == 0) | (hits == total), 1 / total, np.maximum(spread, np.sqrt(share * (1 - share) / total))
    )


def simulated_plateaus(trained: Sequence[Quadratic], method: Method, problem: Problem, start: Array) -> Array:
    """k_* of one method on each training sample: (R,)."""

    def length(one: Quadratic) -> float:
        return plateau_length(lambda k: method(one, problem.rate, start, k), problem.theta)

    return np.array([length(one) for one in trained])
