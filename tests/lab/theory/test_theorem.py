"""Section 3: closed forms of the path and of the plateau against the step-by-step search; orders by fitted slope."""

from __future__ import annotations

import math

import numpy as np
import pytest
from theory_grid import ACUTE, EPS, grid

from egalitarian.lab.theory import theorem
from egalitarian.lab.theory.error import error_on_test, first_step, on_plateau, plateau_length
from egalitarian.lab.theory.problem import ShiftedProblem, polar_by_steps, start_at


def test_the_population_path_is_lemma_2() -> None:
    problem, k = ShiftedProblem(0.01, 0.7, 1.0, 0.1), np.arange(50)
    path = theorem.gd_path(problem, [0.3, 2.0], k)
    limit = problem.m1 / problem.m2
    assert path[:, 0] == pytest.approx(problem.alpha**k * 0.3 + (1 - problem.alpha**k) * limit)
    assert path[:, 1] == pytest.approx(problem.beta**k * 2.0)


GRID = grid(EPS, ACUTE, (0.0, 1.0))


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def egd_plateau(problem: ShiftedProblem, start: np.ndarray) -> float:
    return plateau_length(lambda k: theorem.egd_path(problem, start, k), problem.theta)


@pytest.mark.parametrize(("eps", "theta", "s"), GRID)
def test_large_starts_last_log_tau_over_eta_eps(eps: float, theta: float, s: float) -> None:
    problem, start = ShiftedProblem(eps, theta, s, 0.1), start_at(10.0)
    assert theorem.plateau(problem, start) == pytest.approx(theorem.plateau_large(problem, start), abs=1.001)
    agrees = abs(theorem.plateau_large_as_printed(problem, start) - theorem.plateau(problem, start)) <= 1.001
    assert agrees == math.isclose(theta, math.pi / 4)  # tan and cot


@pytest.mark.parametrize(("eps", "theta", "s"), GRID)
@pytest.mark.parametrize("u1", [-2.0, 0.0])
def test_small_starts_last_a_time_free_of_eps(eps: float, theta: float, s: float, u1: float) -> None:
    problem = ShiftedProblem(eps / 100, theta, s, 0.1)
    start = np.array([u1, 0.5 * math.tan(theta) * problem.m1 / problem.m2])
    assert theorem.plateau(problem, start) == pytest.approx(theorem.plateau_small(problem, start), abs=1.01)
    assert theorem.plateau_small_as_printed(problem, start) > 3 * theorem.plateau(problem, start)


@pytest.mark.parametrize(("eps", "theta", "s"), GRID)
def test_there_is_no_plateau_on_the_other_side(eps: float, theta: float, s: float) -> None:
    problem, start = ShiftedProblem(eps, theta, s, 0.1), start_at(10.0, -math.pi / 2)
    assert (
        theorem.plateau(problem, start) == theorem.plateau_large(problem, start) == theorem.plateau_egd(problem, start) == 0
    )
    assert theorem.plateau_large_as_printed(problem, start) > 0


def test_plateaus_of_gd_are_of_order_one_over_eps() -> None:
    lengths = [theorem.plateau(ShiftedProblem(eps, 0.6, 1.0, 0.1), start_at(10.0)) for eps in EPS]
    assert slope([1 / eps for eps in EPS], lengths) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("zeta", "angle"), grid((1.0, 100.0), (math.pi / 2, 2.0)))
def test_egd_does_not_know_eps_but_knows_zeta(zeta: float, angle: float) -> None:
    lengths = {egd_plateau(ShiftedProblem(eps, 0.6, 1.0, 0.1), start_at(zeta, angle)) for eps in (*EPS, 1e-8)}
    assert len(lengths) == 1
    problem = ShiftedProblem(0.01, 0.6, 1.0, 0.1)
    assert lengths.pop() == math.ceil(theorem.plateau_egd(problem, start_at(zeta, angle)))
    gained = egd_plateau(problem, start_at(1e4 * zeta)) - egd_plateau(problem, start_at(1e2 * zeta))
    assert gained == pytest.approx(math.log(100) / -math.log(0.9), abs=1.5)


@pytest.mark.parametrize(("eps", "level"), grid(EPS, (0.1, 0.5, 1.0)))
def test_the_descent_behind_a_short_plateau_takes_one_over_eps(eps: float, level: float) -> None:
    problem = ShiftedProblem(eps, math.pi / 4, 1.0, 0.1)
    for start in (start_at(0.5 * problem.m1 / problem.m2), start_at(10.0)):
        found = first_step(
            lambda k, u=start: theorem.gd_path(problem, u, k), lambda w: error_on_test(w, eps, problem.theta) <= level
        )
        if found > 100:  # past the fast mode
            assert found == pytest.approx(theorem.steps_to_error(problem, start, level), abs=1.01)


def test_the_polar_step_keeps_a_plateau_of_order_one_over_eps() -> None:
    lengths = []
    for eps in (0.01, 0.001):
        problem, start = ShiftedProblem(eps, math.pi / 8, 1.0, 0.1), np.array([0.05, 10.0])
        path = polar_by_steps(problem.population(), problem.eta, start, 10_000)
        lengths.append(float(np.argmin(on_plateau(path, problem.theta))))
    assert slope([100, 1000], lengths) == pytest.approx(1.0, abs=0.05)


def test_r_rises_above_its_bound_when_the_plateau_ends() -> None:
    problem, start = ShiftedProblem(0.01, 0.6, 1.0, 0.1), start_at(10.0)
    end = theorem.plateau(problem, start)
    before, after = theorem.cosine(theorem.gd_path(problem, start, [end - 1, end]), problem.eps)
    rho = math.cos(problem.theta)
    bound = rho / math.sqrt(rho**2 + problem.eps * (1 - rho**2))
    assert before <= bound < after
    assert theorem.cosine_as_printed(theorem.gd_path(problem, start, [end])) > 1  # no cosine


def test_small_starts_need_a_small_tau_and_a_small_step() -> None:
    problem = ShiftedProblem(0.01, math.pi / 4, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"tau must be < 1 .*use plateau_large"):
        theorem.plateau_small(problem, start_at(10.0))
    with pytest.raises(ValueError, match=r"alpha must be > 0 .*lower eta"):
        theorem.plateau_small(ShiftedProblem(0.01, math.pi / 4, 1.0, 0.5), start_at(0.1))
