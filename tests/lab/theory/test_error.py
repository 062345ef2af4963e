"""The error of a direction: laws, known values, and shares of sampled points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_grid import ACUTE, OBTUSE, SIGMAS, grid

from egalitarian.lab.theory import distributions
from egalitarian.lab.theory import error as measure


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
    x = distributions.wedge_by_rejection(1_000_000, eps, theta, np.random.default_rng(7))
    angles = np.linspace(-math.pi, math.pi, 25)
    w = np.stack([np.cos(angles), np.sin(angles) / math.sqrt(eps)], axis=1)  # evenly in the whitened plane
    exact = measure.error_on_test(w, eps, theta)
    found = measure.sampled_error(w, x, distributions.labels(x))
    assert np.all(np.abs(found - exact) <= SIGMAS * np.sqrt(exact * (1 - exact) / len(x)) + 2 / len(x))
    wrong = np.abs(found - measure.error_on_test_one_sided(w, eps, theta)) > 0.01
    assert wrong.any()
    assert np.all(w[wrong, 1] < 0)  # the printed formula fails on the other side only


@pytest.mark.parametrize("s", [0.0, 1.0])
def test_training_error_by_owens_t(s: float) -> None:
    eps = 0.1
    x = distributions.folded_by_rejection(400_000, eps, s, np.random.default_rng(8))
    w = np.array([[1, 5], [1, -5], [-1, 5], [0.3, 2], [0, 1]])
    exact, found = measure.error_on_train(w, eps, s), measure.sampled_error(w, x, distributions.labels(x))
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
