"""The polar factor by eigenvectors, of matrices that a CPU computes one by one."""

import math
from collections.abc import Callable
from typing import Any

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
    mean_error,
    rank,
    singular_values,
    svd_cut,
)
from torch import Tensor

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


# -- fast: eigenvectors in float32 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_nearly_equal_strong_rows_are_as_exact_in_float32(pairs: int) -> None:
    """What a float32 Gram matrix leaves of such rows in a weak direction would make it longer than 1."""
    for seed in range(0, 60, 2):
        G = 10 ** -(0.5 + 1.5 * seed / 60) * gaussian(130, 200, seed=seed)
        for pair in range(pairs):
            G[2 * pair] = gaussian(1, 200, seed=1000 + seed + pair)
            G[2 * pair + 1] = G[2 * pair] + 10 ** -(1.5 + seed % 10 / 6) * gaussian(1, 200, seed=2000 + seed + pair)
        P = polar(G, method="eigh", precision="fast")
        assert mean_error(G, P) <= 1e-3
        assert largest(P) <= 1 + 1e-5


@pytest.mark.parametrize("strong", [2, 5, 30])
@pytest.mark.parametrize("tall", [False, True])
def test_many_zero_rows_in_float32(strong: int, tall: bool) -> None:
    for seed in range(5):
        G = torch.zeros(130, 520)
        G[:strong] = from_spectrum(strong, 520, decades(strong, 100), seed=seed)
        G = G.mT if tall else G
        P = polar(G, method="eigh", precision="fast")
        assert mean_error(G, P) <= 1e-3
        assert rank(P) == strong


def fails(*arguments: Any, **options: Any) -> Any:
    raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")


def loses(*arguments: Any, **options: Any) -> Any:
    squares, Q = EIGH(*arguments, **options)
    return squares, Q * math.nan


EIGH = torch.linalg.eigh


@pytest.mark.parametrize("broken", [fails, loses])
@pytest.mark.parametrize("shape", [(130, 200), (200, 130)])
def test_where_lapack_fails_in_float32_float64_takes_over(
    broken: Callable[..., Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does on some finite matrices with many zero rows, depending on its version: eigenvalues in clusters at zero."""
    G = from_spectrum(*shape, decades(130, 300))

    def eigh(K: Tensor, UPLO: str = "L") -> Any:
        return (broken if K.dtype == torch.float32 else EIGH)(K, UPLO=UPLO)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    P = polar(torch.stack([G, 2 * G]), method="eigh", precision="fast")
    for factor in P:
        assert mean_error(G, factor) <= 1e-4
    assert torch.equal(P[0], polar(G, method="eigh", precision="fast"))
