"""The rational route: its two steps, its accuracy, and the matrices that it refuses."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import decades, distance, from_spectrum, gaussian, law, seeds, singular_values
from torch import Tensor
from torch.func import vmap

from egalitarian import polar
from egalitarian.kernels.rational import MAX_ERROR, rational_factor, steps_down_to


@law
@given(power=st.floats(-3.8, -3))
def test_both_steps_map_an_interval_to_one(power: float) -> None:
    lower = 10**power
    steps = steps_down_to(lower)
    assert steps is not None
    x = torch.logspace(power, 0, 4000, dtype=torch.float64)
    x = x * (steps.a + steps.b / (1 + steps.c * x**2))
    x = x * (steps.p + steps.q / (1 + steps.d * x**2) + steps.r * x**2 + steps.s * x**4)
    assert (1 - x).abs().max() <= MAX_ERROR * 1.001


def test_an_interval_too_long_for_two_steps_has_none() -> None:
    assert steps_down_to(1e-4) is None


def mean_error(G: Tensor, P: Tensor) -> float:
    """The root mean square error of the directions above 1e-3 of the largest, the worse of left and right ones."""
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    strong = 1e-3 * S[0] < S
    error = U.mT @ P.double() @ Vh.mT - torch.eye(len(S))
    worse = max(torch.linalg.matrix_norm(error[strong]), torch.linalg.matrix_norm(error[:, strong]))
    return worse.item() / math.sqrt(int(strong.sum()))


SPECTRA: dict[str, Callable[[int, float], Tensor]] = {
    "decades": decades,
    "half and half": lambda count, condition: torch.cat(
        [torch.ones(count // 2), torch.full((count - count // 2,), 1 / condition)]
    ),
    "one strong": lambda count, condition: torch.cat([torch.ones(1), torch.full((count - 1,), 1 / condition)]),
    "one weak": lambda count, condition: torch.cat([torch.ones(count - 1), torch.full((1,), 1 / condition)]),
    "even": lambda count, condition: torch.linspace(1, 1 / condition, count),
}


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
def test_the_error_is_at_most_a_hundredth_or_the_matrix_is_refused(
    kind: str, short: int, more: int, missing: int, condition: float, scale: float, tall: bool, seed: int
) -> None:
    count = max(short - missing, 1)
    G = 10**scale * from_spectrum(short, short + more, SPECTRA[kind](count, 10**condition)[:count], seed=seed)
    G = G.mT if tall else G
    P = rational_factor(G)
    if P is not None:
        assert mean_error(G, P) <= 1e-2
        assert singular_values(P).max() < 1.03
    fast = polar(G, method="rational", precision="fast")
    assert mean_error(G, fast) <= 1e-2


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0, 300.0, 1e3])
@pytest.mark.parametrize("shape", [(194, 512), (512, 194), (64, 64), (400, 600)])
def test_conditions_up_to_a_thousand_are_accepted(shape: tuple[int, int], condition: float) -> None:
    G = from_spectrum(*shape, decades(min(shape), condition))
    P = rational_factor(G)
    assert P is not None
    assert mean_error(G, P) <= 1e-2
    assert torch.equal(polar(G, precision="fast"), P)
    assert P.is_contiguous()


@pytest.mark.parametrize("rank", [1, 10, 100])
def test_directions_that_the_matrix_lacks_stay_zero(rank: int) -> None:
    P = rational_factor(from_spectrum(194, 512, decades(rank, 50)))
    assert P is not None
    assert (singular_values(P)[rank:] < 1e-2).all()


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_the_noise_of_nearly_equal_strong_rows_is_estimated(pairs: int) -> None:
    """The rounding error of the Gram matrix is uneven then."""
    for seed in range(60):
        G = 10 ** -(0.5 + 1.5 * seed / 60) * gaussian(64, 128, seed=seed)
        for pair in range(pairs):
            G[2 * pair] = gaussian(1, 128, seed=1000 + seed + pair)
            G[2 * pair + 1] = G[2 * pair] + 10 ** -(1.5 + seed % 10 / 6) * gaussian(1, 128, seed=2000 + seed + pair)
        P = rational_factor(G)
        assert P is None or (mean_error(G, P) <= 1e-2 and singular_values(P)[0] < 1.06)


def test_a_traced_call_computes_the_exact_factor() -> None:
    G, H = gaussian(70, 90), from_spectrum(70, 90, decades(70, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda matrix: polar(matrix, precision="fast"), G, check_trace=False)
    assert distance(traced(H), polar(H)) < 1e-4


REFUSED = {
    "many weak directions": from_spectrum(100, 150, [1.0] * 50 + [1.1e-3] * 50),
    "more decades than float32 resolves": from_spectrum(100, 150, decades(100, 1e6)),
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


def test_matrices_of_a_batch_equal_those_computed_alone() -> None:
    refused = [matrix for matrix in REFUSED.values() if matrix.shape == (70, 80)]
    G = torch.stack([gaussian(70, 80), *refused, 1e30 * gaussian(70, 80), 1e-30 * gaussian(70, 80)])
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
