"""The toy problem's closed forms: laws, known answers, slow twins and Monte Carlo."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from egalitarian.lab.theory import dynamics, equidistribution, moments, sample, theorem
from egalitarian.lab.theory import error as measure
from egalitarian.lab.theory.problem import EqualProblem, ShiftedProblem

EPS = (0.1, 0.01, 0.001)
ACUTE = (math.pi / 8, math.pi / 4, 3 * math.pi / 8)
OBTUSE = (5 * math.pi / 8, 3 * math.pi / 4)
SIGMAS = 4.0


def grid(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*axes))


def close_to(values: np.ndarray, expected: float) -> bool:
    """Whether a sample's mean is within four standard errors of what is expected."""
    return bool(abs(values.mean() - expected) <= SIGMAS * values.std(ddof=1) / math.sqrt(len(values)))


# samplers


@pytest.mark.parametrize(("eps", "s"), grid((0.1, 0.001), (0.0, 1.0, 3.0)))
def test_folded_data_have_the_papers_moments(eps: float, s: float) -> None:
    problem = ShiftedProblem(eps, math.pi / 4, s, 0.1)
    x, y = problem.train(200_000, np.random.default_rng(0))
    assert np.abs(x[:, 0]).min() >= s
    assert close_to(np.abs(x[:, 0]), problem.m1)
    assert close_to(x[:, 0] ** 2, problem.m2)
    assert close_to(x[:, 1] ** 2, eps)
    assert close_to(x[:, 0] * x[:, 1], 0.0)
    assert close_to(y * x[:, 1], 0.0)


@pytest.mark.parametrize("s", [0.0, 1.0])
def test_folded_draws_are_the_rejection_draws(s: float) -> None:
    fast = sample.folded(20_000, 0.1, s, np.random.default_rng(1))
    slow = sample.folded_by_rejection(80_000, 0.1, s, np.random.default_rng(2))
    assert stats.ks_2samp(fast[:, 0], slow[:, 0]).pvalue > 1e-3


@pytest.mark.parametrize(("eps", "theta"), grid((0.1, 0.01), (*ACUTE, *OBTUSE)))
def test_wedge_draws_are_the_rejection_draws(eps: float, theta: float) -> None:
    fast = sample.wedge(20_000, eps, theta, np.random.default_rng(3))
    slow = sample.wedge_by_rejection(400_000, eps, theta, np.random.default_rng(4))
    direction = np.array([math.cos(theta), math.sin(theta)])
    assert np.all(fast[:, 0] * (fast @ direction) <= 0)
    for entry in (0, 1):
        assert stats.ks_2samp(fast[:, entry], slow[:, entry]).pvalue > 1e-3


def test_a_seed_is_a_sample() -> None:
    problem = ShiftedProblem(0.01, 1.0, 1.0, 0.1)
    first, second = (problem.train(100, np.random.default_rng(5))[0] for _ in range(2))
    assert np.array_equal(first, second)


# moments


@pytest.mark.parametrize("s", [0.0, 0.5, 2.0])
def test_folded_moments_are_their_integrals(s: float) -> None:
    tail = quad(moments.density, s, 40)[0]
    assert moments.folded_first(s) == pytest.approx(quad(lambda t: t * moments.density(t), s, 40)[0] / tail)
    assert moments.folded_second(s) == pytest.approx(quad(lambda t: t * t * moments.density(t), s, 40)[0] / tail)


def test_the_first_moment_leaves_the_papers_range() -> None:
    assert moments.folded_first(0.0) < 1 < moments.folded_first(0.5)
    assert moments.folded_first(30.0) == pytest.approx(30.0333, rel=1e-4)


@pytest.mark.parametrize(("eps", "theta"), grid((1.0, 0.1, 1e-3, 1e-6), (*ACUTE, math.pi / 2, *OBTUSE)))
def test_wedge_moments_are_their_integrals(eps: float, theta: float) -> None:
    closed, integral = moments.wedge_moments(eps, theta), moments.wedge_moments_by_integral(eps, theta)
    for name in ("Z", "a", "b", "d", "c1", "c2"):
        assert getattr(closed, name) == pytest.approx(getattr(integral, name), rel=1e-7), name


def test_the_series_near_zero_meets_the_closed_form() -> None:
    below, above = moments._one_minus_sinc(0.00999999), moments._one_minus_sinc(0.01000001)
    assert below == pytest.approx(above, rel=1e-5)


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, ACUTE))
def test_printed_moments_are_wrong_in_three_places(eps: float, theta: float) -> None:
    true, printed = moments.wedge_moments(eps, theta), moments.wedge_moments_as_printed(eps, theta)
    for name in ("Z", "b", "c2"):
        assert getattr(printed, name) == pytest.approx(getattr(true, name), rel=1e-7)
    for name in ("a", "d", "c1"):
        assert getattr(printed, name) > 1.5 * getattr(true, name)


def test_known_moments() -> None:
    printed, true = (form(0.1, math.pi / 4) for form in (moments.wedge_moments_as_printed, moments.wedge_moments))
    assert [printed.a, printed.d, printed.c1] == pytest.approx([10.20, 0.832, 7.99], rel=1e-3)
    assert [true.a, true.d, true.c1] == pytest.approx([0.0614, 0.1939, 0.1904], rel=1e-3)


# dynamics


def quadratics() -> list[dynamics.Quadratic]:
    shifted, equal = ShiftedProblem(0.05, 0.7, 1.0, 0.1), EqualProblem(0.05, 0.7, 0.1)
    drawn = [one.train(500, np.random.default_rng(6)) for one in (shifted, equal)]
    return [shifted.population(), equal.population(), *(dynamics.Quadratic.of_sample(x, y) for x, y in drawn)]


@pytest.mark.parametrize("quadratic", quadratics())
@pytest.mark.parametrize("method", ["gd", "egd"])
def test_closed_form_is_the_recursion(quadratic: dynamics.Quadratic, method: str) -> None:
    fast, slow = getattr(dynamics, method), getattr(dynamics, f"{method}_by_steps")
    steps = np.arange(60)
    assert fast(quadratic, 0.3, [2.0, -1.0], steps) == pytest.approx(slow(quadratic, 0.3, [2.0, -1.0], 59), rel=1e-9)


def test_the_population_path_is_lemma_2() -> None:
    problem, k = ShiftedProblem(0.01, 0.7, 1.0, 0.1), np.arange(50)
    path = theorem.gd_path(problem, [0.3, 2.0], k)
    limit = problem.m1 / problem.m2
    assert path[:, 0] == pytest.approx(problem.alpha**k * 0.3 + (1 - problem.alpha**k) * limit)
    assert path[:, 1] == pytest.approx(problem.beta**k * 2.0)


def test_polar_steps_have_length_eta_and_rest_at_the_solution() -> None:
    quadratic = ShiftedProblem(0.01, 0.7, 1.0, 0.1).population()
    path = dynamics.polar_by_steps(quadratic, 0.1, [0.0, 5.0], 100)
    assert np.linalg.norm(np.diff(path, axis=0), axis=1) == pytest.approx(np.full(100, 0.1))
    unit = dynamics.Quadratic(np.eye(2), np.array([1.0, 0.0]))
    assert np.array_equal(dynamics.polar_by_steps(unit, 0.1, [1.0, 0.0], 3), np.tile([1.0, 0.0], (4, 1)))


@pytest.mark.parametrize(("eps", "theta", "k"), grid((0.1, 1e-4), (*ACUTE, *OBTUSE), (0, 1, 7, 5000)))
def test_powers_by_cayley_hamilton(eps: float, theta: float, k: int) -> None:
    problem = EqualProblem(eps, theta, 0.1)
    step = np.eye(2) - problem.rate * problem.moments.sigma
    by_theorem = equidistribution.power(problem.moments, problem.eta, k)
    assert by_theorem == pytest.approx(np.linalg.matrix_power(step, k), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, (*ACUTE, *OBTUSE)))
def test_the_appendix_path_is_gd(eps: float, theta: float) -> None:
    problem, steps = EqualProblem(eps, theta, 0.1), np.array([0, 1, 10, 1000])
    path = dynamics.gd(problem.population(), problem.rate, [1.0, 3.0], steps)
    assert equidistribution.gd_path(problem, [1.0, 3.0], steps) == pytest.approx(path, rel=1e-6, abs=1e-8)


# errors


@given(st.floats(0.001, 1.0), st.floats(0.05, 3.0), st.floats(-math.pi, math.pi), st.floats(1e-3, 1e3))
def test_two_sided_error_laws(eps: float, theta: float, angle: float, size: float) -> None:
    w = size * np.array([[math.cos(angle), math.sin(angle)]])
    error = measure.error_on_test(w, eps, theta)[0]
    assert 0 <= error <= 1
    assert error == pytest.approx(measure.error_on_test_by_arccos(w, eps, theta)[0], abs=1e-5)
    assert error == pytest.approx(measure.error_on_test(7.0 * w, eps, theta)[0])
    assert error + measure.error_on_test(-w, eps, theta)[0] == pytest.approx(1.0)  # -w errs where w does not


def test_two_sided_error_known_answers() -> None:
    theta = math.pi / 4
    along = np.array([math.cos(theta), math.sin(theta)])
    w = np.array([[1, 0], [-1, 0], along, 0.5 * along + [0.5, 0], [0, 1], [0, -1], [0, 0]])
    errors = measure.error_on_test(w, 0.01, theta)
    assert errors[[0, 1, 2, 4, 5, 6]] == pytest.approx([0, 1, 1, 1, 0, 1])
    assert 0 < errors[3] < 1


@pytest.mark.parametrize(("eps", "theta"), grid((0.1, 0.01), (math.pi / 4, 3 * math.pi / 4)))
def test_two_sided_error_is_a_share_of_test_points(eps: float, theta: float) -> None:
    x = sample.wedge_by_rejection(1_000_000, eps, theta, np.random.default_rng(7))
    angles = np.linspace(-math.pi, math.pi, 25)
    w = np.stack([np.cos(angles), np.sin(angles) / math.sqrt(eps)], axis=1)  # evenly in the whitened plane
    exact = measure.error_on_test(w, eps, theta)
    found = measure.sampled_error(w, x, sample.labels(x))
    assert np.all(np.abs(found - exact) <= SIGMAS * np.sqrt(exact * (1 - exact) / len(x)) + 2 / len(x))
    wrong = np.abs(found - measure.error_on_test_one_sided(w, eps, theta)) > 0.01
    assert wrong.any()
    assert np.all(w[wrong, 1] < 0)  # the printed formula fails on the other side only


@pytest.mark.parametrize("s", [0.0, 1.0])
def test_training_error_by_owens_t(s: float) -> None:
    eps = 0.1
    x = sample.folded_by_rejection(400_000, eps, s, np.random.default_rng(8))
    w = np.array([[1, 5], [1, -5], [-1, 5], [0.3, 2], [0, 1]])
    exact, found = measure.error_on_train(w, eps, s), measure.sampled_error(w, x, sample.labels(x))
    assert np.all(np.abs(found - exact) <= SIGMAS * np.sqrt(exact * (1 - exact) / len(x)))
    assert measure.error_on_train(np.array([[1.0, 0], [-1, 0], [0, 1], [0, 0]]), eps, s) == pytest.approx([0, 1, 0.5, 1])


def test_a_plateau_is_error_one() -> None:
    w = np.random.default_rng(9).standard_normal((5000, 2)) * [1.0, 3.0]
    for theta in (*ACUTE, *OBTUSE):
        assert np.array_equal(measure.on_plateau(w, theta), measure.error_on_test(w, 0.1, theta) >= 1 - 1e-12)


def test_first_step_looks_at_every_step() -> None:
    def walk(k: np.ndarray) -> np.ndarray:
        return np.stack([k == 3000, k], axis=1).astype(float)

    assert measure.first_step(walk, lambda w: w[:, 0] > 0) == 3000
    assert measure.first_step(walk, lambda w: w[:, 1] < 0, limit=10_000) == math.inf
