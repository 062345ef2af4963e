"""The two distributions: draws against rejection, moments against integrals and known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from theory_grid import ACUTE, EPS, OBTUSE, SIGMAS, grid

from egalitarian.lab.theory import distributions
from egalitarian.lab.theory.problem import ShiftedProblem


def close_to(values: np.ndarray, expected: float) -> bool:
    """Whether a sample's mean is within four standard errors of what is expected."""
    return bool(abs(values.mean() - expected) <= SIGMAS * values.std(ddof=1) / math.sqrt(len(values)))


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
    fast = distributions.folded(20_000, 0.1, s, np.random.default_rng(1))
    slow = distributions.folded_by_rejection(80_000, 0.1, s, np.random.default_rng(2))
    assert stats.ks_2samp(fast[:, 0], slow[:, 0]).pvalue > 1e-3


@pytest.mark.parametrize(("eps", "theta"), grid((0.1, 0.01), (*ACUTE, *OBTUSE)))
def test_wedge_draws_are_the_rejection_draws(eps: float, theta: float) -> None:
    fast = distributions.wedge(20_000, eps, theta, np.random.default_rng(3))
    slow = distributions.wedge_by_rejection(400_000, eps, theta, np.random.default_rng(4))
    direction = np.array([math.cos(theta), math.sin(theta)])
    assert np.all(fast[:, 0] * (fast @ direction) <= 0)
    for entry in (0, 1):
        assert stats.ks_2samp(fast[:, entry], slow[:, entry]).pvalue > 1e-3


def test_a_seed_is_a_sample() -> None:
    problem = ShiftedProblem(0.01, 1.0, 1.0, 0.1)
    first, second = (problem.train(100, np.random.default_rng(5))[0] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("s", [0.0, 0.5, 2.0])
def test_folded_moments_are_their_integrals(s: float) -> None:
    tail = quad(distributions.density, s, 40)[0]
    assert distributions.folded_first(s) == pytest.approx(quad(lambda t: t * distributions.density(t), s, 40)[0] / tail)
    assert distributions.folded_second(s) == pytest.approx(
        quad(lambda t: t * t * distributions.density(t), s, 40)[0] / tail
    )


def test_the_first_moment_leaves_the_papers_range() -> None:
    assert distributions.folded_first(0.0) < 1 < distributions.folded_first(0.5)
    assert distributions.folded_first(30.0) == pytest.approx(30.0333, rel=1e-4)


@pytest.mark.parametrize(("eps", "theta"), grid((1.0, 0.1, 1e-3, 1e-6), (*ACUTE, math.pi / 2, *OBTUSE)))
def test_wedge_moments_are_their_integrals(eps: float, theta: float) -> None:
    closed, integral = distributions.wedge_moments(eps, theta), distributions.wedge_moments_by_integral(eps, theta)
    for name in ("Z", "a", "b", "d", "c1", "c2"):
        assert getattr(closed, name) == pytest.approx(getattr(integral, name), rel=1e-7), name


def test_the_series_near_zero_meets_the_closed_form() -> None:
    below, above = distributions._one_minus_sinc(0.00999999), distributions._one_minus_sinc(0.01000001)
    assert below == pytest.approx(above, rel=1e-5)


@pytest.mark.parametrize(("eps", "theta"), grid(EPS, ACUTE))
def test_printed_moments_are_wrong_in_three_places(eps: float, theta: float) -> None:
    true, printed = distributions.wedge_moments(eps, theta), distributions.wedge_moments_as_printed(eps, theta)
    for name in ("Z", "b", "c2"):
        assert getattr(printed, name) == pytest.approx(getattr(true, name), rel=1e-7)
    for name in ("a", "d", "c1"):
        assert getattr(printed, name) > 1.5 * getattr(true, name)


def test_known_moments() -> None:
    printed, true = (
        form(0.1, math.pi / 4) for form in (distributions.wedge_moments_as_printed, distributions.wedge_moments)
    )
    assert [printed.a, printed.d, printed.c1] == pytest.approx([10.20, 0.832, 7.99], rel=1e-3)
    assert [true.a, true.d, true.c1] == pytest.approx([0.0614, 0.1939, 0.1904], rel=1e-3)
