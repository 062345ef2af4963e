"""Laws of the polar factor for every matrix, and the inputs that every kernel refuses."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from spectra import (
    BY_VALUES,
    DTYPES,
    HALF,
    KERNELS,
    METHODS,
    bound,
    conditioned,
    decades,
    distance,
    from_spectrum,
    gaussian,
    generator,
    largest,
    law,
    orthonormal,
    rank,
    seeds,
    sides,
    singular_values,
)
from torch import Tensor

from egalitarian import polar, polar_lowrank
from egalitarian.kernels import RTOL

EPS = torch.finfo(torch.float32).eps
methods = st.sampled_from(METHODS)
by_values = st.sampled_from(BY_VALUES)


def entries_near_one(rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    uniform = torch.rand(2, rows, columns, generator=generator(seed), dtype=torch.float64)
    return ((0.25 + 1.75 * uniform[0]) * (uniform[1] - 0.5).sign()).to(dtype)


def is_normal(G: Tensor) -> bool:
    limits = torch.finfo(G.dtype)
    size = G.abs()
    return bool(((size == 0) | ((size >= limits.smallest_normal) & (size <= limits.max))).all())


@law
@given(rows=sides, columns=sides, seed=seeds, dtype=st.sampled_from(DTYPES), power=st.integers(-1000, 1000), method=methods)
def test_powers_of_two_change_no_bit(
    rows: int, columns: int, seed: int, dtype: torch.dtype, power: int, method: str
) -> None:
    reach = {torch.float64: 1000, torch.float16: 11}.get(dtype, 120)
    power = round(power * reach / 1000)
    G = entries_near_one(rows, columns, seed, dtype)
    scaled = (G.double() * 2.0**power).to(dtype)
    assert is_normal(G)
    assert is_normal(scaled)
    rtol = max(RTOL[dtype], 1e-6)
    assert torch.equal(polar(scaled, method=method, rtol=rtol), polar(G, method=method, rtol=rtol))


@law
@given(case=conditioned(most=1e5), power=st.integers(-100, 100), method=methods)
def test_powers_of_two_change_no_bit_of_an_ill_conditioned_matrix(
    case: tuple[Tensor, float], power: int, method: str
) -> None:
    G, _ = case
    scaled = G * 2.0**power
    assume(is_normal(G) and is_normal(scaled))
    assert torch.equal(polar(scaled, method=method), polar(G, method=method))


@law
@given(case=conditioned(), power=st.floats(-30, 30), method=methods)
def test_a_scale_changes_the_factor_by_rounding_alone(case: tuple[Tensor, float], power: float, method: str) -> None:
    G, condition = case
    scaled = G * 10**power
    assume(is_normal(scaled))
    assert distance(polar(scaled, method=method), polar(G, method=method)) <= 10 * condition * EPS


@law
@given(case=conditioned(dtype=torch.float64), power=st.floats(-280, 280), method=methods)
def test_a_scale_in_float64_changes_the_factor_by_rounding_alone(
    case: tuple[Tensor, float], power: float, method: str
) -> None:
    G, condition = case
    P, scaled = polar(G, method=method, rtol=1e-6), polar(G * 10**power, method=method, rtol=1e-6)
    assert distance(scaled, P) <= 10 * condition * EPS


@law
@given(case=conditioned(), seed=seeds, method=methods)
def test_polar_commutes_with_rotations(case: tuple[Tensor, float], seed: int, method: str) -> None:
    G, condition = case
    Q, R = orthonormal(len(G), len(G), seed), orthonormal(G.shape[1], G.shape[1], seed + 1)
    rotated = (Q @ G.double() @ R).float()
    expected = Q @ polar(G, method=method).double() @ R
    assert distance(polar(rotated, method=method), expected) <= 10 * condition * EPS


@law
@given(case=conditioned(), seed=seeds, method=methods)
def test_polar_commutes_with_permuting_and_negating_rows(case: tuple[Tensor, float], seed: int, method: str) -> None:
    G, condition = case
    order = torch.randperm(len(G), generator=generator(seed))
    signs = gaussian(len(G), 1, seed=seed).sign()
    changed, expected = signs * G[order], signs * polar(G, method=method)[order]
    assert distance(polar(changed, method=method), expected) <= 10 * condition * EPS


@law
@given(case=conditioned(), method=methods)
def test_polar_commutes_with_transposition(case: tuple[Tensor, float], method: str) -> None:
    G, condition = case
    assert distance(polar(G.mT, method=method), polar(G, method=method).mT) <= 10 * condition * EPS


@law
@given(case=conditioned(), method=methods)
def test_polar_commutes_with_negation(case: tuple[Tensor, float], method: str) -> None:
    G, condition = case
    assert distance(polar(-G, method=method), -polar(G, method=method)) <= 10 * condition * EPS


@law
@given(rows=sides, columns=sides, kept=sides, seed=seeds, method=methods)
def test_polar_of_a_polar_factor_is_itself(rows: int, columns: int, kept: int, seed: int, method: str) -> None:
    kept = min(kept, rows, columns)
    P = polar(from_spectrum(rows, columns, decades(kept, 1e3), seed=seed), method=method)
    assert rank(P) == kept
    assert distance(polar(P, method=method), P) <= 10 * EPS


@law
@given(rows=sides, columns=sides, kept=sides, seed=seeds, method=methods)
def test_inner_product_with_the_input_is_its_nuclear_norm(
    rows: int, columns: int, kept: int, seed: int, method: str
) -> None:
    G = from_spectrum(rows, columns, decades(min(kept, rows, columns), 1e4), seed=seed)
    inner = (polar(G, method=method).double() * G.double()).sum()
    torch.testing.assert_close(inner, singular_values(G).sum(), rtol=1e-6, atol=0)


@law
@given(case=conditioned(), method=methods)
def test_the_symmetric_factor_is_positive_semidefinite(case: tuple[Tensor, float], method: str) -> None:
    """G = P H with H = Pᵀ G: the polar decomposition itself."""
    G, _ = case
    P, X = polar(G, method=method).double(), G.double()
    H = P.mT @ X
    torch.testing.assert_close(H, H.mT, rtol=0, atol=1e-6)
    assert torch.linalg.eigvalsh(H).min() >= -1e-6
    if len(G) >= G.shape[1]:
        torch.testing.assert_close(P @ H, X, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 1), (3, 4, 4)])
def test_zero_stays_zero(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zero = torch.zeros(shape, dtype=dtype)
    assert torch.equal(polar(zero), zero)
    assert torch.equal(polar(zero, method="svd"), zero)
    assert torch.equal(polar(-zero, floor=1e-6), zero)
    assert torch.equal(polar_lowrank(zero, 1), zero)


@law
@given(first=conditioned(most=1e3), second=conditioned(most=1e3), scale=st.floats(0.1, 10), method=methods)
def test_diagonal_blocks_are_equalised_independently(
    first: tuple[Tensor, float], second: tuple[Tensor, float], scale: float, method: str
) -> None:
    (A, _), B = first, second[0] * scale
    whole = polar(torch.block_diag(A, B), method=method)
    parts = torch.block_diag(polar(A, method=method), polar(B, method=method))
    assert distance(whole, parts) <= 10 * 1e4 * EPS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [(4,), (2, 3)])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (7, 7)])
def test_a_batch_equals_a_loop(shape: tuple[int, int], batch: tuple[int, ...], method: str) -> None:
    """Also where some of the matrices are ill-conditioned, singular or zero."""
    G = gaussian(*batch, *shape)
    flat = G.view(-1, *shape)
    flat[0] = from_spectrum(*shape, decades(5, 1e5))
    flat[1] = 1e20 * from_spectrum(*shape, [1.0, 1e-3])
    flat[2] = 0
    P = polar(G, method=method).view(-1, *shape)
    for matrix, factor in zip(flat, P, strict=True):
        torch.testing.assert_close(factor, polar(matrix, method=method), rtol=EPS, atol=EPS)
    assert largest(P) <= bound(torch.float32)


@pytest.mark.parametrize("method", METHODS)
def test_matrices_of_a_batch_are_scaled_independently(method: str) -> None:
    G = gaussian(3, 5, 9, dtype=torch.float64)
    scales = torch.tensor([2.0**700, 1.0, 2.0**-700], dtype=torch.float64)[:, None, None]
    assert torch.equal(polar(G * scales, method=method, rtol=1e-6), polar(G, method=method, rtol=1e-6))


@law
@given(case=conditioned(), seed=seeds)
def test_lowrank_at_full_rank_is_polar(case: tuple[Tensor, float], seed: int) -> None:
    G, condition = case
    assert distance(polar_lowrank(G, min(G.shape), seed=seed), polar(G)) <= 10 * condition * EPS


@law
@given(case=conditioned() | conditioned(dtype=torch.float64), power=st.floats(-9, 2), method=by_values)
def test_floor_is_the_authors_clamp(case: tuple[Tensor, float], power: float, method: str) -> None:
    """Directions on both sides of the floor, or all of them on one."""
    G = case[0] * 10**power
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    clamped = (U * (S / S.clamp_min(1e-6))) @ Vh
    torch.testing.assert_close(polar(G, method=method, rtol=1e-6, floor=1e-6).double(), clamped, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", BY_VALUES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_floor_is_absolute_for_every_matrix_of_a_batch(dtype: torch.dtype, method: str) -> None:
    G = torch.diag_embed(torch.tensor([[1.0, 1e-3], [1e-8, 1e-9], [1e20, 1e18], [4e-6, 5e-7]], dtype=dtype))
    expected = torch.diag_embed(torch.tensor([[1.0, 1.0], [1e-2, 1e-3], [1.0, 1.0], [1.0, 0.5]], dtype=dtype))
    torch.testing.assert_close(polar(G, method=method, rtol=1e-6, floor=1e-6), expected, rtol=1e-6, atol=0)


@law
@given(case=conditioned(), method=by_values)
def test_floor_zero_is_no_floor(case: tuple[Tensor, float], method: str) -> None:
    G, condition = case
    assert distance(polar(G, method=method, floor=0.0), polar(G, method=method)) <= 10 * condition * EPS


@law
@given(rows=sides, columns=sides, kept=sides, seed=seeds, method=methods)
def test_rank_is_kept(rows: int, columns: int, kept: int, seed: int, method: str) -> None:
    kept = min(kept, rows, columns)
    P = polar(from_spectrum(rows, columns, 80 * decades(kept, 1e4), seed=seed), method=method)
    assert rank(P) == kept
    assert (singular_values(P)[kept:] <= 1e-2).all()


@law
@given(
    powers=st.lists(st.floats(-7, 2) | st.floats(-6.2, -5.8), min_size=1, max_size=12),
    rows=st.integers(12, 16),
    columns=st.integers(12, 16),
    seed=seeds,
    dtype=st.sampled_from(DTYPES),
    method=st.sampled_from(METHODS),
)
def test_no_singular_value_exceeds_one_on_random_spectra(
    powers: list[float], rows: int, columns: int, seed: int, dtype: torch.dtype, method: str
) -> None:
    G = from_spectrum(rows, columns, [10**power for power in powers], seed=seed, dtype=dtype)
    assert largest(polar(G, method=method, rtol=max(RTOL[dtype], 1e-6))) <= bound(dtype)


@law
@given(entries=st.lists(st.integers(-2, 2), min_size=30, max_size=30), dtype=st.sampled_from(DTYPES))
def test_no_singular_value_exceeds_one_on_small_integers(entries: list[int], dtype: torch.dtype) -> None:
    """Such matrices often have zero rows, equal rows and low ranks."""
    G = torch.tensor(entries, dtype=dtype).reshape(5, 6)
    P = polar(G)
    assert largest(P) <= bound(dtype)
    if dtype not in HALF:
        assert rank(P) == int(torch.linalg.matrix_rank(G.double()))


@law
@given(entries=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=12, max_size=12))
def test_no_singular_value_exceeds_one_on_floats_of_any_size(entries: list[float]) -> None:
    G = torch.tensor(entries).reshape(3, 4)
    assert largest(polar(G)) <= bound(torch.float32)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(), (5,)])
def test_fewer_than_two_dimensions_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"got shape \({'5,' if shape else ''}\)"):
        KERNELS[name](torch.ones(shape))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint8])
def test_unsupported_dtypes_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        KERNELS[name](torch.ones(3, 4, dtype=dtype))


@pytest.mark.parametrize("name", KERNELS)
def test_sparse_tensors_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="sparse_coo"):
        KERNELS[name](torch.eye(3).to_sparse())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("value", [[[1.0, 2.0]], "G", None, 3.0])
def test_values_other_than_tensors_are_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        KERNELS[name](value)  # type: ignore[arg-type]
