"""The appendix: powers, paths and plateaus with equal distributions; orders by fitted slope."""

from __future__ import annotations

import math

import numpy as np
import pytest
from theory_grid import ACUTE, EPS, OBTUSE, grid

from egalitarian.lab.theory import equidistribution
from egalitarian.lab.theory.error import error_on_test, error_on_test_one_sided
from egalitarian.lab.theory.problem import EqualProblem, gd, start_at


@pytest.mark.parametrize(("eps", "theta", "k"), grid((0.1, 1e-4), (*ACUTE, *OBTUSE), (0, 1, 7, 5000)))
def test_powers_by_cayley_hamilton(eps: float, theta: float, k: int) -> None:
    problem = EqualProblem(eps, theta, 0.1)
    step = np.eye(2) - problem.rate * problem.moments.sigma
    by_theorem = equidistribution.power(problem.moments, problem.eta, k)
    assert by_theorem == pytest.approx(np.linalg.matrix_power(step, k), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, (*ACUTE, *OBTUSE)))
def test_the_appendix_path_is_gd(eps: float, theta: float) -> None:
    problem, steps = EqualProblem(eps, theta, 0.1), np.array([0, 1, 10, 1000])
    path = gd(problem.population(), problem.rate, [1.0, 3.0], steps)
    assert equidistribution.gd_path(problem, [1.0, 3.0], steps) == pytest.approx(path, rel=1e-6, abs=1e-8)


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@pytest.mark.parametrize("theta", ACUTE)
def test_with_one_law_both_modes_are_slow(theta: float) -> None:
    small = [1e-3, 1e-4, 1e-5]
    values = np.array([np.linalg.eigvalsh(EqualProblem(eps, theta, 0.1).moments.sigma) for eps in small])
    for column in (0, 1):
        assert slope(small, values[:, column]) == pytest.approx(1.0, abs=0.01)
    condition = values[:, 1] / values[:, 0]
    assert condition == pytest.approx(np.full(3, condition[0]), rel=0.01)
    assert equidistribution.slow_direction(EqualProblem(1e-5, theta, 0.1).moments)[1] < 0.9


@pytest.mark.parametrize("theta", ACUTE)
def test_with_one_law_the_plateau_is_of_order_root_one_over_eps(theta: float) -> None:
    small = [1e-4, 1e-5, 1e-6]
    lengths = [equidistribution.plateau(EqualProblem(eps, theta, 0.1), start_at(1.0)) for eps in small]
    assert slope(small, lengths) == pytest.approx(-0.5, abs=0.01)
    near = equidistribution.plateau_near(EqualProblem(1e-6, theta, 0.1), start_at(1.0))
    assert lengths[-1] == pytest.approx(near, rel=0.01)
    problem = EqualProblem(1e-6, theta, 0.1)
    assert equidistribution.plateau_as_printed(problem, start_at(1.0), problem.moments) > 100 * lengths[-1]


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, ACUTE))
def test_with_one_law_the_plateau_stops_growing_with_the_start(eps: float, theta: float) -> None:
    problem = EqualProblem(eps, theta, 0.02)
    far = equidistribution.plateau_far(problem, start_at(1.0))
    for zeta in (1e9, 1e11):
        assert equidistribution.plateau(problem, start_at(zeta)) == pytest.approx(far, abs=1.01)
    assert equidistribution.plateau_far(problem, start_at(1.0, 0.1 * theta)) == 0
    assert equidistribution.plateau_near(problem, start_at(1.0, 0.1 * theta)) == 0


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, ACUTE))
def test_with_one_law_the_solution_errs_nowhere_and_print_says_everywhere(eps: float, theta: float) -> None:
    w = EqualProblem(eps, theta, 0.02).population().solution[None]
    assert w[0, 1] < 0 < w[0, 0]
    assert error_on_test(w, eps, theta) == pytest.approx(0.0)
    assert error_on_test_one_sided(w, eps, theta) == pytest.approx(1.0)


def test_r_plus_leaves_the_printed_range() -> None:
    problem = EqualProblem(0.1, math.pi / 4, 0.1)
    largest = 1 / np.linalg.eigvalsh(problem.moments.sigma)[-1]
    assert equidistribution.factors(problem.moments, 0.9 * largest)[0] == pytest.approx(-0.8)
