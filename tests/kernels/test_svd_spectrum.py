"""spectrum: the singular values, and the measures computed from them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import DTYPES, decades, from_spectrum, gaussian, law, seeds, sides

from egalitarian import Spectrum, polar, spectrum


def test_values_and_measures_of_a_known_matrix() -> None:
    G = torch.tensor([[0.0, -2.0, 0.0], [4.0, 0.0, 0.0]])
    s = spectrum(G)
    assert s.values.tolist() == [4.0, 2.0]
    assert s.values.dtype == torch.float64
    assert s.condition == 2
    assert s.stable_rank == 1.25
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert float(s.effective_rank) == pytest.approx(math.exp(entropy), rel=1e-12)


@law
@given(rows=sides, columns=sides, seed=seeds, power=st.floats(0, 8))
def test_values_are_the_singular_values(rows: int, columns: int, seed: int, power: float) -> None:
    S = decades(min(rows, columns), 10**power)
    values = spectrum(from_spectrum(rows, columns, S, seed=seed, dtype=torch.float64)).values
    torch.testing.assert_close(values, S, rtol=0, atol=1e-13)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_ranks_count_equal_directions(count: int) -> None:
    s = spectrum(polar(from_spectrum(9, 12, decades(count, 50), dtype=torch.float64)))
    assert float(s.stable_rank) == pytest.approx(count)
    assert float(s.effective_rank) == pytest.approx(count)


@law
@given(rows=sides, columns=sides, seed=seeds, scale=st.floats(1e-20, 1e20))
def test_measures_are_scale_free_and_in_range(rows: int, columns: int, seed: int, scale: float) -> None:
    G = gaussian(rows, columns, seed=seed, dtype=torch.float64)
    s, scaled = spectrum(G), spectrum(scale * G)
    short = min(rows, columns)
    for measure in ("condition", "stable_rank", "effective_rank"):
        torch.testing.assert_close(getattr(scaled, measure), getattr(s, measure), rtol=1e-7, atol=0)
    assert s.condition >= 1
    assert 1 <= s.stable_rank <= s.effective_rank * (1 + 1e-12) <= short * (1 + 1e-9)


@law
@given(rows=sides, columns=sides, seed=seeds)
def test_stable_rank_is_frobenius_over_spectral(rows: int, columns: int, seed: int) -> None:
    G = gaussian(rows, columns, seed=seed, dtype=torch.float64)
    expected = (torch.linalg.matrix_norm(G) / torch.linalg.matrix_norm(G, 2)).square()
    torch.testing.assert_close(spectrum(G).stable_rank, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("batch", [(3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_equals_a_loop(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    G = gaussian(*batch, 5, 7, dtype=dtype)
    s = spectrum(G)
    assert s.values.shape == (*batch, 5)
    for measure in (s.condition, s.stable_rank, s.effective_rank):
        assert measure.shape == batch
    for index, matrix in enumerate(G.view(-1, 5, 7)):
        alone = spectrum(matrix)
        for measure in ("condition", "stable_rank", "effective_rank"):
            of_batch = getattr(s, measure).view(-1)[index]
            torch.testing.assert_close(of_batch, getattr(alone, measure), rtol=1e-10, atol=0)


def test_singular_matrix_has_infinite_condition() -> None:
    assert spectrum(torch.diag(torch.tensor([2.0, 1.0, 0.0]))).condition == math.inf


def test_zero_matrix_has_no_directions() -> None:
    s = spectrum(torch.zeros(3, 4))
    assert s.values.tolist() == [0.0, 0.0, 0.0]
    assert s.condition.isnan()
    assert s.stable_rank == 0
    assert s.effective_rank == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_matrix_is_nan_and_affects_no_other(value: float) -> None:
    G = gaussian(3, 4, 5)
    clean = spectrum(G)
    bad = G.clone()
    bad[1, 2, 3] = value
    s = spectrum(bad)
    for measure in ("values", "condition", "stable_rank", "effective_rank"):
        assert getattr(s, measure)[1].isnan().all()
        assert torch.equal(getattr(s, measure)[[0, 2]], getattr(clean, measure)[[0, 2]])
    assert spectrum(bad[1]).stable_rank.isnan()


def test_input_is_not_modified_and_no_gradient_is_carried() -> None:
    G = gaussian(4, 5).requires_grad_()
    before = G.detach().clone()
    assert not spectrum(G).values.requires_grad
    assert torch.equal(G, before)


def test_repr_of_one_matrix_lists_the_measures() -> None:
    text = repr(spectrum(torch.diag(torch.tensor([4.0, 2.0]))))
    assert text == "Spectrum(2 singular values, largest 4, condition 2, stable rank 1.25, effective rank 1.89)"


def test_repr_of_a_batch_has_its_shape() -> None:
    text = repr(spectrum(torch.ones(2, 3, 4, 5)))
    assert text == "Spectrum((2, 3) matrices of 4 singular values)"


def test_repr_works_for_zero_and_nan() -> None:
    assert "condition nan" in repr(spectrum(torch.zeros(2, 2)))
    assert "largest nan" in repr(spectrum(torch.full((2, 2), math.nan)))


def test_spectra_are_frozen_and_compare_by_identity() -> None:
    s = spectrum(torch.eye(2))
    assert s != Spectrum(s.values)
    with pytest.raises(AttributeError):
        s.values = torch.ones(2)  # type: ignore[misc]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)])
def test_empty_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"got shape \\({', '.join(map(str, shape))}\\)"):
        spectrum(torch.ones(shape))
