"""The toy problems refuse settings that are out of range; closed forms of GD and EGD are the recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from egalitarian.lab.theory import problem as toy
from egalitarian.lab.theory.problem import EqualProblem, ShiftedProblem, start_at


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ShiftedProblem(0.0, 1.0, 1.0, 0.1), r"eps must be in \(0, 1\], got 0.0; "),
        (lambda: ShiftedProblem(math.nan, 1.0, 1.0, 0.1), "eps must be"),
        (lambda: ShiftedProblem("0.1", 1.0, 1.0, 0.1), "eps must be"),
        (lambda: ShiftedProblem(0.1, math.pi / 2, 1.0, 0.1), r"theta must be in \(0, pi/2\), in radians, got 1.57"),
        (lambda: ShiftedProblem(0.1, 1.0, -0.1, 0.1), r"s must be in \[0, 30\], got -0.1; "),
        (lambda: ShiftedProblem(0.1, 1.0, 31.0, 0.1), "s must be"),
        (lambda: ShiftedProblem(0.1, 1.0, 1.0, 0.8), r"eta must be in \(0, 0.792\) for s = 1, got 0.8; lower it"),
        (lambda: EqualProblem(1.1, 1.0, 0.1), "eps must be"),
        (lambda: EqualProblem(0.1, math.pi, 0.1), r"theta must be in \(0, pi\)"),
        (lambda: EqualProblem(0.1, 1.0, 50.0), "eta must be in .*below 1/lambda_max"),
        (lambda: start_at(0.0), "zeta must be a finite number > 0, got 0.0; "),
        (lambda: start_at(math.inf), "zeta must be"),
        (lambda: start_at(1.0, math.nan), "angle must be"),
    ],
)
def test_bad_input_says_what_to_do(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert ShiftedProblem(1.0, 1.0, 0.0, 0.1).m2 == 1.0
    assert ShiftedProblem(1e-9, 1.0, 30.0, 1e-4).m1 > 30
    assert EqualProblem(1.0, math.pi / 2, 0.1).population().solution.shape == (2,)


def quadratics() -> list[toy.Quadratic]:
    shifted, equal = ShiftedProblem(0.05, 0.7, 1.0, 0.1), EqualProblem(0.05, 0.7, 0.1)
    drawn = [one.train(500, np.random.default_rng(6)) for one in (shifted, equal)]
    return [shifted.population(), equal.population(), *(toy.Quadratic.of_sample(x, y) for x, y in drawn)]


@pytest.mark.parametrize("quadratic", quadratics())
@pytest.mark.parametrize("method", ["gd", "egd"])
def test_closed_form_is_the_recursion(quadratic: toy.Quadratic, method: str) -> None:
    fast, slow = getattr(toy, method), getattr(toy, f"{method}_by_steps")
    steps = np.arange(60)
    assert fast(quadratic, 0.3, [2.0, -1.0], steps) == pytest.approx(slow(quadratic, 0.3, [2.0, -1.0], 59), rel=1e-9)


def test_polar_steps_have_length_eta_and_rest_at_the_solution() -> None:
    quadratic = ShiftedProblem(0.01, 0.7, 1.0, 0.1).population()
    path = toy.polar_by_steps(quadratic, 0.1, [0.0, 5.0], 100)
    assert np.linalg.norm(np.diff(path, axis=0), axis=1) == pytest.approx(np.full(100, 0.1))
    unit = toy.Quadratic(np.eye(2), np.array([1.0, 0.0]))
    assert np.array_equal(toy.polar_by_steps(unit, 0.1, [1.0, 0.0], 3), np.tile([1.0, 0.0], (4, 1)))
