"""The format of records: which epochs are kept, and how exact numbers are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import law

from egalitarian.lab.config import SKETCH, Coarse, is_kept, is_snapshot, single
from egalitarian.lab.config.records import PER_DECADE


def test_kept_epochs_are_dense_first_and_then_even_in_the_logarithm() -> None:
    kept = [epoch for epoch in range(20000) if is_kept(epoch)]
    assert kept[:20] == list(range(20))
    assert len(kept) <= 400
    steps = [math.log10((after + 1) / (before + 1)) for before, after in zip(kept[-50:], kept[-49:], strict=False)]
    assert max(steps) == pytest.approx(1 / PER_DECADE, rel=0.05)


def test_every_snapshot_is_kept() -> None:
    """On a GPU a run has spectra of these epochs alone: a condition number that is thinned out of them would end early."""
    assert all(is_kept(epoch) for epoch in range(20_000) if is_snapshot(epoch))


@law
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_coarse_sketch_is_itself_when_rounded_again(values: list[float]) -> None:
    once = Coarse.of(np.array(values))
    again = Coarse.of(once.vector())
    assert np.array_equal(again.vector(), once.vector())
    assert np.abs(once.vector() - values).max() <= once.unit / 2


def test_rounding_a_sketch_is_far_below_its_own_error() -> None:
    """Norms and angles change by less than a thousandth; the sketch itself keeps them to 3 %."""
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(2, SKETCH))
    rounded = [Coarse.of(each).vector() for each in (first, first + second)]
    exact = first @ (first + second)
    assert rounded[0] @ rounded[1] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0]])
def test_a_sketch_that_is_not_finite_stays_so(values: list[float]) -> None:
    assert not np.isfinite(Coarse.of(np.array(values)).vector()).any()


def test_single_keeps_finite_values_finite() -> None:
    """An overflow to infinity would read as a run that diverged."""
    rounded = single(np.array([1e300, -1e300, 0.1, math.inf, math.nan]))
    assert np.isfinite(rounded).tolist() == [True, True, True, False, False]
    assert np.array_equal(single(rounded), rounded, equal_nan=True)


@law
@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=20))
def test_few_bits_are_right_to_half_of_the_last(values: list[float]) -> None:
    rounded = single(np.array(values), 12)
    assert np.abs(rounded / np.array(values) - 1).max() <= 2**-12 + 2**-24
    assert np.array_equal(single(rounded, 12), rounded)
    assert not (rounded.view(np.int32) & 0xFFF).any()
