"""The coefficients: each function is the closest to 1 on its interval, and together they map the interval to 1."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import law
from torch import Tensor

from egalitarian.kernels.coefficients import (
    Coefficients,
    LastStep,
    best_last_step,
    best_quintic,
    quintics,
    rationals,
)


def odd(step: Coefficients, x: Tensor) -> Tensor:
    a, b, c = step
    return x * (a + b * x**2 + c * x**4)


def grid(lower: float) -> Tensor:
    return torch.logspace(math.log10(lower), 0, 4000, dtype=torch.float64)


def last(step: LastStep, x: Tensor) -> Tensor:
    powers = sum(value * x ** (2 * index) for index, value in enumerate(step.powers))
    return x * (powers + step.q / (1 + step.d * x**2))


@law
@given(lower=st.floats(0.001, 0.985))
def test_the_error_of_the_best_quintic_alternates_between_four_extremes(lower: float) -> None:
    step, error = best_quintic(lower)
    x = torch.linspace(lower, 1, 20_001, dtype=torch.float64)
    off = 1 - odd(step, x)
    assert off.abs().max().item() == pytest.approx(error, rel=1e-5, abs=1e-12)
    signs = off[off.abs() > 0.999 * error].sign()
    assert int((signs.diff() != 0).sum()) == 3
    for changed in range(3):  # no change of a coefficient lowers the error
        for by in (1e-3 * error, -1e-3 * error):
            other = tuple(value + by * (index == changed) for index, value in enumerate(step))
            assert (1 - odd(other, x)).abs().max() >= off.abs().max() - 1e-12


@law
@given(lower=st.floats(-7, -1), tolerance=st.sampled_from([1e-2, 2e-3, 1e-6, 1e-9]))
def test_quintics_map_an_interval_to_one(lower: float, tolerance: float) -> None:
    x = grid(10**lower)
    for step in quintics(10**lower, tolerance):
        x = odd(step, x)
    assert (1 - x).abs().max() <= tolerance + 1e-12


@pytest.mark.parametrize("lower", [1e-2, 1e-4, 1e-6, 5e-7])
def test_rationals_map_an_interval_to_one(lower: float) -> None:
    x = grid(lower)
    for a, b, c in rationals(lower, 2e-3):
        x = x * (a + b * x**2) / (1 + c * x**2)
    assert (1 - x).abs().max() <= 2e-3
    assert len(rationals(lower, 2e-3)) <= 3 + (lower < 1e-6)


@pytest.mark.parametrize("powers", [2, 3])
@pytest.mark.parametrize("lower", [0.1, 0.158, 0.25, 0.4])
def test_the_error_of_the_best_last_step_alternates(lower: float, powers: int) -> None:
    step = best_last_step(lower, powers)
    x = torch.logspace(math.log10(lower), 0, 20_001, dtype=torch.float64)
    off = 1 - last(step, x)
    assert off.abs().max().item() == pytest.approx(step.error, rel=1e-3)
    signs = off[off.abs() > 0.99 * step.error].sign()
    assert int((signs.diff() != 0).sum()) == powers + 2  # as many alternations as coefficients: the powers, q and d


@pytest.mark.parametrize("powers", [2, 3])
def test_no_change_of_a_coefficient_lowers_the_error_of_the_last_step(powers: int) -> None:
    step = best_last_step(0.2, powers)
    x = torch.logspace(math.log10(0.2), 0, 20_001, dtype=torch.float64)
    least = (1 - last(step, x)).abs().max().item()
    for by in (1.003, 0.997):
        others = [step._replace(q=step.q * by), step._replace(d=step.d * by)]
        for index, value in enumerate(step.powers):
            changed = (*step.powers[:index], value * by, *step.powers[index + 1 :])
            others.append(step._replace(powers=changed))
        for other in others:
            assert (1 - last(other, x)).abs().max().item() > least - 1e-6


@pytest.mark.parametrize("lower", [0.9, 0.97, 0.995])
def test_the_exchange_ends_for_intervals_near_one(lower: float) -> None:
    assert best_last_step(lower, 3).error < 1e-6


@pytest.mark.parametrize(("lower", "powers"), [(1e-3, 2), (1.8e-4, 2), (5e-3, 2), (0.33, 5), (0.19, 5)])
def test_steps_for_other_intervals_alternate_as_well(lower: float, powers: int) -> None:
    step = best_last_step(lower, powers)
    x = torch.logspace(math.log10(lower), 0, 200_001, dtype=torch.float64)
    off = 1 - last(step, x)
    assert off.abs().max().item() == pytest.approx(step.error, rel=1e-3)
    signs = off[off.abs() > 0.99 * step.error].sign()
    assert int((signs.diff() != 0).sum()) == powers + 2
