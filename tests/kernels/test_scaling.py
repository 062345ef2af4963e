"""The row norm, and non-finite matrices, which must not affect others of the batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import DTYPES, KERNELS, decades, from_spectrum, gaussian, law, seeds, sides

from egalitarian import normalize, polar

CONTAINED = [name for name in KERNELS if name not in ("normalize", "spectrum")]
"""Kernels that return a matrix, all NaN if one of its entries is not finite."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONTAINED)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_non_finite_entry_makes_its_matrix_nan_and_no_other(
    transposed: bool, name: str, value: float, dtype: torch.dtype
) -> None:
    kernel, others = KERNELS[name], [0, 2, 3, 4]
    G = gaussian(5, 9, 7, dtype=dtype).mT if transposed else gaussian(5, 7, 9, dtype=dtype)
    G[3] = from_spectrum(7, 9, decades(7, 1e5), dtype=dtype)
    clean = kernel(G)[others]
    for finite in (0.0, 1e4):
        G[1] = finite
        assert torch.equal(kernel(G)[others], clean)
    G[1, 2, 3] = value
    P = kernel(G)
    assert P.shape == G.shape
    assert P[1].isnan().all()
    assert torch.equal(P[others], clean)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONTAINED)
def test_a_non_finite_entry_at_any_index_makes_its_matrix_nan(name: str, value: float) -> None:
    for index in range(15):
        G = gaussian(3, 5)
        G.view(-1)[index] = value
        assert KERNELS[name](G).isnan().all()
        assert KERNELS[name](G.mT).isnan().all()


@pytest.mark.parametrize("name", CONTAINED)
def test_a_batch_of_non_finite_matrices_is_all_nan(name: str) -> None:
    assert KERNELS[name](torch.full((2, 3, 4), math.inf)).isnan().all()
    assert KERNELS[name](torch.tensor([[math.inf, -math.inf], [math.nan, 0.0]])).isnan().all()


# -- normalize -------------------------------------------------------------------------------------------------------


@law
@given(rows=sides, columns=sides, seed=seeds, dtype=st.sampled_from(DTYPES), floor=st.sampled_from([1e-4, 0.01, 1.0]))
def test_each_row_is_divided_by_its_length_or_the_floor(
    rows: int, columns: int, seed: int, dtype: torch.dtype, floor: float
) -> None:
    powers = 10 ** (3 * gaussian(rows, 1, seed=seed + 1, dtype=torch.float64).tanh())
    G = (gaussian(rows, columns, seed=seed, dtype=torch.float64) * powers).to(dtype)
    X = G.double()
    expected = torch.stack([row / max(row.square().sum().sqrt().item(), floor) for row in X])
    limits = torch.finfo(dtype)
    P = normalize(G, floor=floor).double()
    torch.testing.assert_close(P, expected, rtol=4 * limits.eps, atol=limits.smallest_normal * limits.eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (1, 4), (4, 1), (3, 5, 8), (2, 3, 4, 5)])
def test_rows_above_the_floor_have_length_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    G = gaussian(*shape, dtype=dtype)
    P = normalize(G)
    assert (P.shape, P.dtype, P.device) == (G.shape, G.dtype, G.device)
    lengths = torch.linalg.vector_norm(P.double(), dim=-1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=torch.finfo(dtype).eps)


def test_default_floor_is_that_of_the_paper() -> None:
    G = torch.tensor([[3.0, 4.0], [0.006, 0.008], [3e-4, 4e-4], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.03, 0.04], [0.0, 0.0]])
    torch.testing.assert_close(normalize(G), expected, rtol=1e-6, atol=0)
    assert torch.equal(normalize(G), normalize(G, floor=0.01))


def test_given_floor_is_used() -> None:
    G = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    torch.testing.assert_close(normalize(G, floor=10.0), torch.tensor([[0.3, 0.4], [0.6, 0.8]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_row_changes_no_other(value: float) -> None:
    G = gaussian(2, 4, 6)
    clean = normalize(G)
    bad = G.clone()
    bad[0, 2, 3] = value
    P = normalize(bad)
    assert P[0, 2].isnan().any()
    P[0, 2] = clean[0, 2]
    assert torch.equal(P, clean)


def test_a_nan_makes_its_whole_row_nan() -> None:
    G = gaussian(3, 4)
    G[1, 2] = math.nan
    assert normalize(G).isnan().all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_entries_do_not_overflow(dtype: torch.dtype) -> None:
    large = min(torch.finfo(dtype).max / 4, 1e30)
    G = torch.full((2, 4), large, dtype=dtype)
    torch.testing.assert_close(normalize(G), torch.full_like(G, 0.5), rtol=torch.finfo(dtype).eps, atol=0)


def test_small_entries_do_not_underflow() -> None:
    G = torch.full((2, 4), 1e-30)
    torch.testing.assert_close(normalize(G, floor=1e-35), torch.full_like(G, 0.5), rtol=1e-6, atol=0)
    torch.testing.assert_close(normalize(G), 100 * G, rtol=1e-6, atol=0)


def test_row_order_and_strides_do_not_matter() -> None:
    G = gaussian(6, 8)
    assert torch.equal(normalize(G[::2]), normalize(G)[::2])
    torch.testing.assert_close(normalize(G.mT), normalize(G.mT.contiguous()), rtol=1e-6, atol=0)


def test_input_is_not_modified_and_no_gradient_is_carried() -> None:
    G = gaussian(4, 5).requires_grad_()
    before = G.detach().clone()
    assert not normalize(G).requires_grad
    assert torch.equal(G, before)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 3, 4)])
def test_an_empty_matrix_stays_empty(shape: tuple[int, ...]) -> None:
    assert normalize(torch.ones(shape)).shape == shape


@pytest.mark.parametrize("floor", [0.0, -0.5, math.nan, math.inf])
def test_floor_out_of_range_is_refused(floor: float) -> None:
    with pytest.raises(ValueError, match=f"floor .* got {floor}"):
        normalize(torch.eye(2), floor=floor)


def test_row_norm_does_not_commute_with_transposition() -> None:
    """Unlike the polar factor: rows must be the output units."""
    G = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    torch.testing.assert_close(normalize(G), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    torch.testing.assert_close(normalize(G.mT).mT, torch.tensor([[1.0, 4 / 17**0.5], [0.0, 1 / 17**0.5]]))
    torch.testing.assert_close(polar(G.mT).mT, polar(G))


def test_row_norm_is_the_papers_column_norm_of_the_transposed_weights() -> None:
    """The paper stores weights as (in, out), torch as (out, in)."""
    gradient = gaussian(6, 4)  # of a weight (in, out)
    paper = gradient / torch.linalg.vector_norm(gradient, dim=0, keepdim=True).clamp_min(0.01)
    torch.testing.assert_close(normalize(gradient.mT).mT, paper)
