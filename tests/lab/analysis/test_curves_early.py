"""Rank correlations of early spectra with the epoch of grokking: known answers."""

from __future__ import annotations

import pytest

from egalitarian.lab.analysis.curves import FEWEST_POINTS, correlations


def test_a_perfect_order_is_one_and_its_reverse_minus_one() -> None:
    points = [(float(value), 10.0 * value) for value in range(8)]
    backwards = [(seen, -crossed) for seen, crossed in points]
    found = correlations({("up",): points, ("down",): backwards})
    assert found.values == pytest.approx((1.0, -1.0))
    assert found.significant == 2


def test_small_groups_and_ties_throughout_have_no_correlation() -> None:
    few = [(float(value), float(value)) for value in range(FEWEST_POINTS - 1)]
    alike = [(1.0, float(value)) for value in range(9)]
    assert correlations({("few",): few, ("alike",): alike}).values == ()
    assert str(correlations({})) == "–"


def test_ranks_decide_not_sizes() -> None:
    points = [(1.0, 5.0), (2.0, 6.0), (3.0, 7.0), (4.0, 8.0), (1e9, 9.0)]
    assert correlations({("one",): points}).values == pytest.approx((1.0,))
