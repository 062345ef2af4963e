"""The polar factor by eigenvectors, of matrices that a CPU computes one by one."""

import math

import pytest
import torch
from spectra import (
    ROUNDING,
    at_cut_off,
    bound,
    decades,
    errors,
    from_spectrum,
    gaussian,
    has_gap,
    largest,
    rank,
    singular_values,
    svd_cut,
)

from egalitarian import polar

LARGE = {
    f"{name}, {rows} x {columns}": from_spectrum(rows, columns, values(min(rows, columns)))
    for rows, columns in ((128, 256), (194, 512), (300, 140), (130, 1000))
    for name, values in {
        "cond 10": lambda short: decades(short, 10),
        "cond 1e3": lambda short: decades(short, 1e3),
        "cond 3e3": lambda short: decades(short, 3e3),
        "one strong": lambda short: torch.tensor([1.0] + [1 / 300] * (short - 1)),
        "one weak": lambda short: torch.tensor([1.0] * (short - 1) + [1 / 900]),
        "few weak": lambda short: torch.tensor([1.0] * (short - 4) + [0.005, 0.004, 0.003, 0.002]),
        "half weak": lambda short: torch.tensor([1.0] * (short // 2) + [2e-3] * (short - short // 2)),
        "not of full rank": lambda short: decades(short // 2, 100),
    }.items()
} | {
    "gaussian": gaussian(150, 400),
    "uniform": gaussian(150, 400).abs(),
    "signs": gaussian(150, 400).sign(),
    "graded rows": decades(150, 100)[:, None].float() * gaussian(150, 400),
}
"""Matrices that a CPU computes one by one."""


@pytest.mark.parametrize("name", LARGE)
def test_error_on_large_matrices_is_no_larger_than_that_of_the_float32_svd(name: str) -> None:
    G = LARGE[name]
    assert has_gap(G, 1e-6)
    ours, float32 = errors(G, "eigh")
    assert ours <= float32 + ROUNDING
    S = singular_values(G)
    kept = int((1e-6 * S[0] < S).sum())
    after = singular_values(polar(G, method="eigh"))
    assert after[0] <= 1 + 1e-4
    assert after[kept - 1] >= 1 - 1e-4
    assert (after[kept:] <= 1e-2).all()


def test_large_matrices_are_accurate_to_the_rounding_of_float32() -> None:
    """However weak a direction is, and however few rows and columns contain it."""
    alike = gaussian(128, 320, seed=503)
    alike[-1] = alike[0] + alike[-1] / 250
    dead = torch.cat([from_spectrum(130, 130, [1.0] * 129 + [1e-3]), torch.zeros(130, 270)], 1)
    repeated = torch.eye(128).repeat(1, 8)
    repeated[-1] = 0.3 * repeated[0] + repeated[-1] / 700
    for G in (alike, dead, repeated, gaussian(130, 130), from_spectrum(130, 400, decades(130, 1e4)), gaussian(150, 1000)):
        for matrix in (G, G.mT):
            error = polar(matrix, method="eigh").double() - svd_cut(matrix, 1e-6)
            assert error.abs().max() < 1e-7


@pytest.mark.parametrize("rtol", [5e-3, 0.5])
def test_large_matrices_have_the_given_cut_off(rtol: float) -> None:
    G = from_spectrum(130, 400, [1.0] * 65 + [2e-3] * 65)
    assert rank(polar(G, rtol=rtol)) == 65
    assert rank(polar(G.bfloat16())) == 65


@pytest.mark.parametrize("power", [-100, -70, -41, 30, 60, 108, 120])
def test_a_power_of_two_changes_no_bit_of_a_large_matrix(power: int) -> None:
    G = from_spectrum(130, 400, decades(130, 100))
    assert torch.equal(polar(2.0**power * G), polar(G))


def test_no_singular_value_exceeds_one_with_subnormal_entries() -> None:
    assert largest(polar((gaussian(130, 400).double() * 1e-40).float())) <= bound(torch.float32)


def test_large_matrices_of_a_batch_equal_those_computed_alone() -> None:
    G = torch.stack([gaussian(130, 300), from_spectrum(130, 300, decades(60, 1e3)), torch.zeros(130, 300)])
    P = polar(G)
    for matrix, factor in zip(G, P, strict=True):
        assert torch.equal(polar(matrix), factor)
    G[1, 4, 5] = math.nan
    after = polar(G)
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], P[[0, 2]])


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5])
def test_no_singular_value_exceeds_one_with_a_cluster_at_the_smallest_cut_off(spread: float) -> None:
    assert largest(polar(at_cut_off(60, 80, 1, spread, 5e-7), method="eigh", rtol=5e-7)) <= bound(torch.float32)
