"""The rational route: its two steps, its accuracy, and the matrices that it refuses. The coarse factor: its bounds."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import SPECTRA, decades, distance, from_spectrum, gaussian, law, mean_error, seeds, singular_values
from torch import Tensor
from torch.func import vmap

from egalitarian import polar
from egalitarian.kernels import rational
from egalitarian.kernels.coefficients import FAST_LOW, LastStep
from egalitarian.kernels.rational import (
    MAX_ERROR,
    coarse_by_rational,
    coarse_rational_factor,
    rational_factor,
    steps_down_to,
)
from egalitarian.kernels.route import decide


@pytest.mark.parametrize("quarters", range(11))
def test_both_steps_map_an_interval_to_one(quarters: int) -> None:
    """Of every lower end that the route may ask for."""
    lower = FAST_LOW * 2 ** (-quarters / 4)
    steps = steps_down_to(lower)
    assert steps is not None
    x = torch.logspace(math.log10(lower), 0, 4000, dtype=torch.float64)
    x = stepped(steps[0], x) / (1 + steps[0].error)
    assert (1 - stepped(steps[1], x)).abs().max() <= MAX_ERROR * 1.001


def stepped(step: LastStep, x: Tensor) -> Tensor:
    powers = sum(value * x ** (2 * index) for index, value in enumerate(step.powers))
    return x * (powers + step.q / (1 + step.d * x**2))


def test_an_interval_too_long_for_two_steps_has_none() -> None:
    assert steps_down_to(1e-4) is None


@law
@given(
    kind=st.sampled_from(list(SPECTRA)),
    short=st.integers(1, 60),
    more=st.sampled_from([0, 1, 17, 200]),
    missing=st.sampled_from([0, 0, 1, 20]),
    condition=st.floats(0, 5),
    scale=st.floats(-6, 6),
    tall=st.booleans(),
    seed=seeds,
)
def test_the_error_is_at_most_a_thousandth(
    kind: str, short: int, more: int, missing: int, condition: float, scale: float, tall: bool, seed: int
) -> None:
    count = max(short - missing, 1)
    G = 10**scale * from_spectrum(short, short + more, SPECTRA[kind](count, 10**condition)[:count], seed=seed)
    G = G.mT if tall else G
    P = rational_factor(G)
    assert P is not None
    assert mean_error(G, P) <= 1e-3
    assert singular_values(P).max() < 1.001
    torch.testing.assert_close(polar(G, method="rational", precision="fast"), P, rtol=0, atol=0)


@pytest.mark.parametrize("condition", [1.0, 10.0, 300.0, 1e3, 1e5])
@pytest.mark.parametrize("shape", [(194, 512), (512, 194), (64, 64), (400, 600)])
def test_any_condition_is_accepted(shape: tuple[int, int], condition: float) -> None:
    G = from_spectrum(*shape, decades(min(shape), condition))
    P = rational_factor(G)
    assert P is not None
    assert mean_error(G, P) <= 1e-3
    assert torch.equal(polar(G, precision="fast"), P)
    assert P.is_contiguous()


@pytest.mark.parametrize("rank", [1, 10, 100])
def test_directions_that_the_matrix_lacks_stay_zero(rank: int) -> None:
    P = rational_factor(from_spectrum(194, 512, decades(rank, 50)))
    assert P is not None
    assert (singular_values(P)[rank:] < 1e-3).all()


GROUPS = [(22, 22, 1.5e-3), (8, 28, 2e-3), (16, 24, 4e-3), (32, 16, 6e-3)]
"""Strong directions, middle ones and their strength: the Gram matrix blurs middle and weak ones, here the most."""


@pytest.mark.parametrize(("strong", "middle", "strength"), GROUPS)
@pytest.mark.parametrize("shape", [(64, 64), (64, 600), (200, 800)])
def test_rounding_of_the_gram_matrix_stays_below_the_error(
    shape: tuple[int, int], strong: int, middle: int, strength: float
) -> None:
    by = shape[0] // 64
    values = [1.0] * (by * strong) + [strength] * (by * middle)
    for weakest in (1.05e-3, 2e-4):
        G = from_spectrum(*shape, values + [weakest] * (shape[0] - len(values)))
        P = rational_factor(G)
        assert P is not None
        assert mean_error(G, P) <= 1e-3
        assert singular_values(P)[0] < 1.001


@pytest.mark.parametrize("seed", range(80, 90))
@pytest.mark.parametrize("side", [64, 129, 171, 341])
def test_matrices_of_few_distinct_values_are_as_exact(side: int, seed: int) -> None:
    """All errors on the Gram matrix's diagonal have one sign there, and are larger than elsewhere."""
    G = (torch.randint(0, 2, (side, side), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1) / 3
    for matrix in (G, G.clamp_min(0), (3 * G).round() / 7, torch.where(G > 0, 0.1, -0.3)):
        P = polar(matrix, precision="fast")
        assert mean_error(matrix, P) <= 1e-3
        assert singular_values(P)[0] < 1.001


@pytest.mark.parametrize("rows", [2, 3, 10, 30])
def test_few_rows_in_effect_are_as_exact(rows: int) -> None:
    for seed in range(10):
        G = torch.zeros(64, 128)
        G[5 : 5 + rows] = from_spectrum(rows, 128, decades(rows, 900), seed=seed)
        P = rational_factor(G)
        assert P is not None
        assert mean_error(G, P) <= 1e-3


@pytest.mark.parametrize("shape", [(128, 128), (275, 550), (500, 500)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_rows_that_are_alike_are_as_exact(shape: tuple[int, int], rank: int) -> None:
    """Of few distinct values and few directions: without the reflection, rounding errors have one sign and add up."""
    signs = [
        torch.outer(gaussian(shape[0], seed=seed).sign(), gaussian(shape[1], seed=9 + seed).sign()) for seed in range(3)
    ]
    G = sum(0.3**power * sign / 3 for power, sign in enumerate(signs[:rank]))
    for matrix in (G, G.mT, 1e-30 * G):
        P = rational_factor(matrix)
        assert P is not None
        assert mean_error(matrix, P) <= 5e-4
        assert singular_values(P)[0] < 1.001


@pytest.mark.parametrize("shape", [(80, 80), (200, 200), (128, 256)])
@pytest.mark.parametrize("share", [0.35, 0.45, 0.6])
def test_directions_at_the_edge_next_to_missing_ones(shape: tuple[int, int], share: float) -> None:
    """The float32 factor of the first inverse lost them to directions that the matrix lacks."""
    rank = shape[0] // 2
    strong = int(share * rank)
    for seed in range(10):
        P = rational_factor(G := from_spectrum(*shape, [1.0] * strong + [1.02e-3] * (rank - strong), seed=seed))
        assert P is not None
        assert mean_error(G, P) <= 9e-4


@pytest.mark.parametrize("tall", [False, True])
def test_a_reflection_is_its_own_inverse_and_commutes_with_the_factor(tall: bool) -> None:
    G = from_spectrum(70, 90, decades(70, 30)).double()
    G = G.mT if tall else G
    w = rational._mirror(G.mT @ G if tall else G @ G.mT)
    turned = rational._reflection(G, w, tall)
    assert distance(turned, G) > 0.1
    torch.testing.assert_close(rational._reflection(turned, w, tall), G)
    torch.testing.assert_close(rational._reflection(polar(turned), w, tall), polar(G))


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_nearly_equal_strong_rows_are_as_exact(pairs: int) -> None:
    """The rounding error of the Gram matrix is uneven then."""
    for seed in range(60):
        G = 10 ** -(0.5 + 1.5 * seed / 60) * gaussian(64, 128, seed=seed)
        for pair in range(pairs):
            G[2 * pair] = gaussian(1, 128, seed=1000 + seed + pair)
            G[2 * pair + 1] = G[2 * pair] + 10 ** -(1.5 + seed % 10 / 6) * gaussian(1, 128, seed=2000 + seed + pair)
        P = rational_factor(G)
        assert P is not None
        assert mean_error(G, P) <= 1e-3
        assert singular_values(P)[0] < 1.001


def test_many_columns_lose_no_accuracy() -> None:
    G = from_spectrum(64, 50_000, [1.0] * 22 + [1.5e-3] * 21 + [1.05e-3] * 21)
    P = rational_factor(G)
    assert P is not None
    assert mean_error(G, P) <= 1e-3


def test_a_traced_call_computes_the_exact_factor() -> None:
    G, H = gaussian(70, 90), from_spectrum(70, 90, decades(70, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda matrix: polar(matrix, precision="fast"), G, check_trace=False)
    assert distance(traced(H), polar(H)) < 1e-4


REFUSED = {
    "zero": torch.zeros(70, 80),
    "nan": torch.full((70, 80), math.nan),
    "inf": gaussian(70, 80).index_fill(0, torch.tensor(3), math.inf),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_matrices_take_the_route_by_eigenvectors(name: str) -> None:
    G = REFUSED[name]
    assert rational_factor(G) is None
    torch.testing.assert_close(
        polar(G, precision="fast"), polar(G, method="eigh", precision="fast"), rtol=0, atol=0, equal_nan=True
    )


def test_an_interval_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rational, "steps_down_to", lambda lower: None)
    G = gaussian(70, 80)
    assert rational_factor(G) is None
    assert torch.equal(polar(G, precision="fast"), polar(G, method="eigh", precision="fast"))


def test_matrices_of_a_batch_equal_those_computed_alone() -> None:
    G = torch.stack([gaussian(70, 80), *REFUSED.values(), 1e30 * gaussian(70, 80), 1e-30 * gaussian(70, 80)])
    P = polar(G, precision="fast")
    for matrix, factor in zip(G, P, strict=True):
        torch.testing.assert_close(factor, polar(matrix, precision="fast"), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(polar(G.reshape(2, 3, 70, 80), precision="fast").reshape(G.shape).nan_to_num(), P.nan_to_num())


@pytest.mark.parametrize("shape", [(0, 70, 90), (2, 0, 70, 90), (0, 90), (70, 0)])
@pytest.mark.parametrize("method", ["auto", "rational"])
def test_an_empty_matrix_stays_empty(method: str, shape: tuple[int, ...]) -> None:
    assert polar(torch.ones(shape), method=method, precision="fast").shape == shape


@pytest.mark.parametrize("power", [-110, -20, -3, 1, 15, 120])
def test_a_power_of_two_changes_no_bit(power: int) -> None:
    G = from_spectrum(70, 90, decades(70, 300))
    assert torch.equal(polar(2.0**power * G, precision="fast"), polar(G, precision="fast"))


def test_float64_and_views_give_the_same_factor() -> None:
    G = from_spectrum(90, 70, decades(70, 300))
    expected = polar(G, precision="fast")
    torch.testing.assert_close(polar(G.double(), precision="fast").float(), expected, rtol=0, atol=1e-5)
    assert polar(G.double(), precision="fast").dtype == torch.float64
    torch.testing.assert_close(polar(G.mT, precision="fast").mT, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(polar(G.repeat(1, 2)[:, ::2][:, :70], precision="fast").shape, G.shape)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
def test_the_factor_is_exact_where_no_value_can_be_read() -> None:
    G = torch.stack([from_spectrum(70, 90, decades(70, 100), seed=seed) for seed in range(2)])
    exact = polar(G)
    assert distance(vmap(lambda matrix: polar(matrix, precision="fast"))(G), exact) < 1e-4
    compiled = torch.compile(lambda matrix: polar(matrix, precision="fast"), backend="eager", fullgraph=True)
    assert distance(compiled(G), exact) < 1e-4


def relative(G: Tensor) -> Tensor:
    """Singular values over the Schatten-4 norm."""
    S = singular_values(G)
    return S / S.pow(4).sum().pow(0.25)


@law
@given(
    kind=st.sampled_from(list(SPECTRA)),
    short=st.integers(1, 60),
    more=st.sampled_from([0, 1, 17, 200]),
    missing=st.sampled_from([0, 0, 1, 20]),
    condition=st.floats(0, 5),
    scale=st.floats(-30, 30),
    tall=st.booleans(),
    seed=seeds,
)
def test_the_coarse_factor_keeps_its_bounds(
    kind: str, short: int, more: int, missing: int, condition: float, scale: float, tall: bool, seed: int
) -> None:
    count = max(short - missing, 1)
    G = from_spectrum(short, short + more, SPECTRA[kind](count, 10**condition)[:count], seed=seed)
    s = relative(G)
    G = 10**scale * (G.mT if tall else G)
    P = coarse_rational_factor(G)
    out = singular_values(P)
    assert P.shape == G.shape
    assert out.max() <= 1.25
    assert int((out >= 0.65).sum()) >= int((s >= 1 / 40).sum())
    assert (out[count:] <= 0.01).all()


@pytest.mark.parametrize("shape", [(64, 64), (64, 300), (300, 64), (194, 512)])
@pytest.mark.parametrize("condition", [30.0, 1e3, 1e6])
def test_the_coarse_factor_has_the_singular_vectors(shape: tuple[int, int], condition: float) -> None:
    """Direction by direction. The bound of a weak one is in terms of nu, here at least the largest singular value."""
    G = from_spectrum(*shape, decades(min(shape), condition))
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    found = U.mT @ coarse_rational_factor(G).double() @ Vh.mT
    values = found.diagonal()
    assert (values - 143 * S / S[0]).max() <= 0.01
    assert ((values >= 0.65) & (values <= 1.25))[relative(G) >= 1 / 40].all()
    assert torch.linalg.matrix_norm(found - values.diag(), 2) < 0.01


def test_the_coarse_factor_is_coarse_rather_than_slow() -> None:
    """One step, not two: it is not the fast factor under another name."""
    G = gaussian(70, 90)
    fast = rational_factor(G)
    assert fast is not None
    assert 0.05 < distance(coarse_rational_factor(G), fast) / math.sqrt(70) < 0.35


@pytest.mark.parametrize("shape", [(70, 80), (80, 70), (1, 1), (1, 9)])
def test_the_coarse_factor_of_a_zero_matrix_is_zero(shape: tuple[int, int]) -> None:
    assert torch.equal(coarse_rational_factor(torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_one_non_finite_entry_makes_the_coarse_factor_nan(value: float, scale: float) -> None:
    G = scale * gaussian(70, 80)
    G[3, 5] = value
    assert coarse_rational_factor(G).isnan().all()


@pytest.mark.parametrize("power", [-110, -20, -3, 1, 15, 120])
def test_a_power_of_two_changes_no_bit_of_the_coarse_factor(power: int) -> None:
    G = from_spectrum(70, 90, decades(70, 300))
    assert torch.equal(coarse_rational_factor(2.0**power * G), coarse_rational_factor(G))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_coarse_factor_of_batches_and_other_dtypes(dtype: torch.dtype) -> None:
    G = torch.stack([gaussian(70, 80), torch.zeros(70, 80), torch.full((70, 80), math.nan)]).to(dtype)
    route = decide(G.shape, torch.float32, G.device, "rational", "fast", readable=True, float32=True)
    P = coarse_by_rational(route, G, G.new_ones(1))
    assert P.dtype == dtype
    assert P.shape == G.shape
    alone = [coarse_rational_factor(matrix.float()) for matrix in G]
    torch.testing.assert_close(P.float(), torch.stack(alone), rtol=0, atol=1e-2, equal_nan=True)
    assert coarse_by_rational(route, G[:0], G.new_ones(1)).shape == (0, 70, 80)
