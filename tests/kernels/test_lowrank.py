"""polar_lowrank: the paper's Algorithms 2 and 3, reproducibly."""

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import DTYPES, decades, distance, from_spectrum, gaussian, generator, law, seeds, singular_values
from torch import Tensor

from egalitarian import polar_lowrank
from egalitarian.kernels import gaussian as sketch_of
from egalitarian.kernels import lowrank

SLOW = 1 / torch.arange(1, 41, dtype=torch.float64)
FLAT = torch.ones(40, dtype=torch.float64)


def algorithm_3(G: Tensor, rank: int, seed: int, iterations: int = 2) -> Tensor:
    X = G.double()
    Q = torch.randn(X.shape[1], rank, generator=generator(seed), dtype=torch.float64)
    for _ in range(iterations):
        Q = torch.linalg.qr(X @ Q).Q
        Q = torch.linalg.qr(X.mT @ Q).Q
    U, S, _ = torch.linalg.svd(X @ Q, full_matrices=False)
    return U @ torch.diag(1 / S) @ U.mT @ X


def truncated(G: Tensor, rank: int) -> Tensor:
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    return U[:, :rank] @ Vh[:rank]


@law
@given(seed=seeds, rank=st.integers(1, 10), iterations=st.integers(1, 4), wide=st.booleans())
def test_polar_lowrank_is_the_papers_algorithm(seed: int, rank: int, iterations: int, wide: bool) -> None:
    G = from_spectrum(14, 20, SLOW[:14], seed=seed, dtype=torch.float64)
    G = G if wide else G.mT
    expected = algorithm_3(G, rank, seed, iterations)
    torch.testing.assert_close(
        polar_lowrank(G, rank, iterations=iterations, seed=seed), expected, rtol=0, atol=1e-6 * float(expected.norm())
    )


def test_polar_lowrank_is_the_papers_algorithm_by_default() -> None:
    G = from_spectrum(40, 60, SLOW)
    torch.testing.assert_close(polar_lowrank(G, 8).double(), algorithm_3(G, 8, seed=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 7])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (12, 12)])
def test_result_has_the_given_rank(shape: tuple[int, int], rank: int, dtype: torch.dtype) -> None:
    G = from_spectrum(*shape, decades(12, 30), dtype=dtype)
    P = polar_lowrank(G, rank)
    assert (P.shape, P.dtype, P.requires_grad) == (G.shape, G.dtype, False)
    values = singular_values(P)
    assert (values[:rank] > 0.5).all()
    assert (values[rank:] < 10 * torch.finfo(dtype).eps).all()


def test_rank_beyond_that_of_the_matrix_adds_nothing() -> None:
    G = from_spectrum(12, 20, [80.0, 5.0])
    torch.testing.assert_close(polar_lowrank(G, 6).double(), truncated(G, 2), rtol=0, atol=1e-5)


@law
@given(seed=seeds, rank=st.integers(1, 6), shape=st.sampled_from([(12, 20), (20, 12), (12, 12)]))
def test_leading_directions_are_kept_where_there_is_a_gap(seed: int, rank: int, shape: tuple[int, int]) -> None:
    values = torch.cat([torch.linspace(2, 1, rank), 1e-4 * decades(12 - rank, 10)])
    G = from_spectrum(*shape, values, seed=seed)
    assert distance(polar_lowrank(G, rank, seed=seed + 1), truncated(G, rank)) <= 1e-3


def test_more_iterations_approach_the_leading_directions() -> None:
    G = from_spectrum(40, 60, SLOW, dtype=torch.float64)
    few, many = (distance(polar_lowrank(G, 5, iterations=count), truncated(G, 5)) for count in (1, 100))
    assert many < 1e-6 < few


@pytest.mark.parametrize("values", [SLOW, FLAT], ids=["slow", "flat"])
def test_the_seed_determines_the_sketch(values: Tensor) -> None:
    G = from_spectrum(40, 60, values)
    P = polar_lowrank(G, 3, seed=5)
    assert torch.equal(P, polar_lowrank(G, 3, seed=5))
    assert distance(P, polar_lowrank(G, 3, seed=6)) > 1e-3


def test_global_generator_is_neither_read_nor_changed() -> None:
    G = from_spectrum(40, 60, FLAT)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        P = polar_lowrank(G, 3)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert torch.equal(polar_lowrank(G, 3), P)


@pytest.mark.parametrize("batch", [(3,), (2, 2)])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_matrices_of_a_batch_equal_those_computed_alone(shape: tuple[int, int], batch: tuple[int, ...]) -> None:
    G = gaussian(*batch, *shape)
    eps = torch.finfo(torch.float32).eps
    for P, alone in zip(polar_lowrank(G, 4, seed=9).flatten(0, -3), G.flatten(0, -3), strict=True):
        torch.testing.assert_close(P, polar_lowrank(alone, 4, seed=9), rtol=eps, atol=eps)


def test_oversampling_does_not_worsen_the_approximation() -> None:
    G = from_spectrum(40, 60, SLOW)
    exact = truncated(G, 5)
    error = {
        extra: median(distance(polar_lowrank(G, 5, oversample=extra, seed=seed), exact) for seed in range(9))
        for extra in (0, 5, 10, 35)
    }
    assert error[0] >= error[5] >= error[10] >= error[35]
    assert error[35] < 1e-5


def test_oversampling_ends_at_the_short_side() -> None:
    G = from_spectrum(10, 14, decades(10, 10))
    assert torch.equal(polar_lowrank(G, 4, oversample=6), polar_lowrank(G, 4, oversample=1000))


@pytest.mark.parametrize("power", [-30, -10, 10, 30])
def test_scale_does_not_matter(power: int) -> None:
    G = from_spectrum(12, 20, SLOW[:12])
    assert torch.equal(polar_lowrank(G * 2.0**power, 4), polar_lowrank(G, 4))
    assert distance(polar_lowrank(G * 10.0**power, 4), polar_lowrank(G, 4)) <= 1e-4


def test_input_is_not_modified() -> None:
    G = gaussian(3, 8, 6)
    before = G.clone()
    polar_lowrank(G, 2)
    assert torch.equal(G, before)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 3, 4), (2, 0, 4)])
def test_an_empty_matrix_stays_empty(shape: tuple[int, ...]) -> None:
    assert polar_lowrank(torch.ones(shape), 1).shape == shape


@pytest.mark.parametrize("rank", [0, -2, 5, 100])
def test_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"rank must be in \[1, 4\] for .*\(4, 6\).* got {rank}"):
        polar_lowrank(torch.ones(3, 4, 6), rank)


@pytest.mark.parametrize("iterations", [0, -1])
def test_iterations_out_of_range_are_refused(iterations: int) -> None:
    with pytest.raises(ValueError, match=f"iterations .* got {iterations}"):
        polar_lowrank(torch.ones(4, 6), 2, iterations=iterations)


def test_oversample_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"oversample .* got -3"):
        polar_lowrank(torch.ones(4, 6), 2, oversample=-3)


# -- by the polynomial, as on CUDA -----------------------------------------------------------------------------------


@pytest.fixture
def by_polynomial(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    def polar_lowrank_by_polynomial(*arguments: Any, **options: Any) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(lowrank, "choose_lowrank", lambda *_: "quintics")
            return polar_lowrank(*arguments, **options)

    return polar_lowrank_by_polynomial


@pytest.mark.parametrize("values", [SLOW, FLAT, decades(40, 1e3), decades(40, 1e5), [80.0, 5.0], [0.0]])
@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
@pytest.mark.parametrize("rank", [1, 7, 40])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_polynomial_and_qr_agree(
    by_polynomial: Callable[..., Tensor], values: Tensor, shape: tuple[int, int], rank: int, iterations: int
) -> None:
    G = from_spectrum(*shape, values)
    expected = polar_lowrank(G, rank, iterations=iterations, seed=3)
    P = by_polynomial(G, rank, iterations=iterations, seed=3)
    torch.testing.assert_close(P, expected, rtol=0, atol=1e-5)
    assert float(singular_values(P)[0]) <= float(singular_values(expected)[0]) + 1e-4


def test_polynomial_and_qr_agree_near_the_cut_off(by_polynomial: Callable[..., Tensor]) -> None:
    G = from_spectrum(40, 60, torch.cat([torch.ones(8), torch.full((20,), 5e-6)]))
    torch.testing.assert_close(by_polynomial(G, 28), polar_lowrank(G, 28), rtol=0, atol=1e-3)


def test_polynomial_and_qr_agree_on_a_batch_with_a_nan(by_polynomial: Callable[..., Tensor]) -> None:
    G = gaussian(2, 3, 12, 20)
    G[0, 1, 2, 3] = torch.nan
    P = by_polynomial(G, 4, seed=9)
    torch.testing.assert_close(P, polar_lowrank(G, 4, seed=9), rtol=0, atol=1e-6, equal_nan=True)
    assert P[0, 1].isnan().all()


def test_oversampling_and_share_do_not_take_the_polynomial(by_polynomial: Callable[..., Tensor]) -> None:
    G = gaussian(12, 20)
    for options in ({"oversample": 3}, {"share": 0.5}):
        assert torch.equal(by_polynomial(G, 4, **options), polar_lowrank(G, 4, **options))  # type: ignore[arg-type]


# -- adaptive rank ---------------------------------------------------------------------------------------------------


def kept(P: Tensor) -> int:
    return int((singular_values(P) > 0.5).sum())


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
@pytest.mark.parametrize(
    ("share", "expected"),
    [(1e-9, 1), (0.53, 1), (0.54, 2), (0.83, 2), (0.84, 3), (0.96, 3), (0.97, 4), (0.999999, 4), (1.0, 4)],
)
def test_share_keeps_the_fewest_directions_that_hold_it(shape: tuple[int, int], share: float, expected: int) -> None:
    """4² + 3² + 2² + 1² = 30: the shares of the leading ones are 16/30, 25/30, 29/30 and 1."""
    G = from_spectrum(*shape, [4.0, 3.0, 2.0, 1.0])
    P = polar_lowrank(G, 6, share=share)
    assert kept(P) == expected
    torch.testing.assert_close(P.double(), truncated(G, expected), rtol=0, atol=1e-5)


def test_share_never_keeps_more_than_the_rank() -> None:
    G = from_spectrum(40, 60, FLAT)
    assert kept(polar_lowrank(G, 8, share=0.999)) == 8
    assert torch.equal(polar_lowrank(G, 8, share=0.999), polar_lowrank(G, 8))


@law
@given(seed=seeds, rank=st.integers(1, 12), oversample=st.integers(0, 4))
def test_a_share_of_one_keeps_the_whole_rank(seed: int, rank: int, oversample: int) -> None:
    G = from_spectrum(12, 20, decades(12, 40), seed=seed)
    plain = polar_lowrank(G, rank, oversample=oversample, seed=seed)
    assert torch.equal(polar_lowrank(G, rank, oversample=oversample, seed=seed, share=1), plain)


@law
@given(seed=seeds, share=st.floats(0.05, 0.99))
def test_the_kept_directions_hold_the_share_and_one_fewer_would_not(seed: int, share: float) -> None:
    G = from_spectrum(12, 20, SLOW[:12], seed=seed, dtype=torch.float64)
    energy = SLOW[:12].square().cumsum(0) / SLOW[:12].square().sum()
    count = kept(polar_lowrank(G, 12, share=share, seed=seed))
    assert energy[count - 1] >= share - 1e-9
    assert count == 1 or energy[count - 2] < share + 1e-9


@pytest.mark.parametrize("power", [-30, 30])
def test_share_is_scale_free(power: int) -> None:
    G = from_spectrum(12, 20, SLOW[:12])
    assert torch.equal(polar_lowrank(G * 2.0**power, 8, share=0.9), polar_lowrank(G, 8, share=0.9))


def test_share_sets_the_rank_of_each_matrix_of_a_batch() -> None:
    G = torch.stack([from_spectrum(12, 20, values) for values in (SLOW[:12], [1.0], [1.0, 1.0, 1.0], [0.0])])
    P = polar_lowrank(G, 6, share=0.9)
    assert [kept(each) for each in P] == [4, 1, 3, 0]
    eps = torch.finfo(torch.float32).eps
    for each, alone in zip(P, G, strict=True):
        torch.testing.assert_close(each, polar_lowrank(alone, 6, share=0.9), rtol=eps, atol=eps)


def test_share_is_not_affected_by_a_nan_in_another_matrix() -> None:
    G = torch.stack([from_spectrum(12, 20, SLOW[:12]), torch.full((12, 20), torch.nan)])
    P = polar_lowrank(G, 6, share=0.9)
    assert P[1].isnan().all()
    assert kept(P[0]) == 4


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"share must be in \(0, 1\], got {share}; None keeps"):
        polar_lowrank(torch.ones(4, 6), 2, share=share)


@pytest.mark.parametrize("share", [True, "all"])
def test_share_must_be_a_number(share: object) -> None:
    with pytest.raises(TypeError, match=r"share must be in \(0, 1\]"):
        polar_lowrank(torch.ones(4, 6), 2, share=share)  # type: ignore[arg-type]


def test_a_given_sketch_is_used() -> None:
    G = gaussian(7, 12)
    own = sketch_of(12, 4, 5, torch.device("cpu"))
    assert torch.equal(polar_lowrank(G, 4, sketch=own), polar_lowrank(G, 4, seed=5))
    assert torch.equal(polar_lowrank(G, 4, sketch=own, seed=9), polar_lowrank(G, 4, seed=5))
    with pytest.raises(ValueError, match=r"sketch must be of shape \(12, 4\), got \(4, 12\)"):
        polar_lowrank(G, 4, sketch=own.mT)
