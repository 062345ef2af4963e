"""The half-precision chain, on a CPU: the promises of the coarse and the fast tier, batches, tracing and extreme inputs."""

import math
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spectra import (
    DTYPES,
    HALF,
    SPECTRA,
    decades,
    distance,
    from_spectrum,
    gaussian,
    mean_error,
    seeds,
    singular_values,
)
from torch import Tensor
from torch.func import vmap

from egalitarian import polar
from egalitarian.kernels import half
from egalitarian.kernels.coefficients import Coefficients, quintics

LOOSE = ("coarse", "fast")
SHAPES = [(1, 1), (1, 9), (9, 1), (8, 8), (30, 44), (46, 30), (20, 300), (300, 20), (130, 130)]


def factor(G: Tensor, precision: str) -> Tensor:
    return polar(G, method="polynomial", precision=precision)


def relative(G: Tensor) -> Tensor:
    """Singular values over the Schatten-8 norm."""
    S = singular_values(G)
    S = S / S[0]
    return S / S.pow(8).sum().pow(1 / 8)


def stepped(x: Tensor, steps: Sequence[Coefficients]) -> Tensor:
    for a, b, c in steps:
        x = x * (a + b * x**2 + c * x**4)
    return x


def check_coarse(G: Tensor, P: Tensor) -> None:
    """The promise of the coarse tier. Rounding of the result to bfloat16 adds to it."""
    slack = 0.01 if P.dtype == torch.bfloat16 else 0.0
    s, after = relative(G), singular_values(P)
    assert P.shape == G.shape
    assert P.dtype == G.dtype
    assert after[0] <= 1.25 + slack
    assert (after[s >= 1 / 40] >= 0.65 - slack).all()
    assert (after <= 250 * s + 0.05 + slack).all()


# -- the steps ---------------------------------------------------------------------------------------------------------


def test_there_are_four_coarse_and_seven_fast_quintics() -> None:
    """Memory traffic and launches are those of so many steps, for every matrix."""
    assert len(quintics(half.COARSE_LOW, half.COARSE_TOLERANCE)) == 4
    assert len(quintics(half.FAST_LOW, half.FAST_TOLERANCE)) == 7


def test_the_quintics_alone_keep_the_promises() -> None:
    """In exact arithmetic, on every singular value that they may see."""
    x = torch.logspace(-6, 0, 20_000, dtype=torch.float64)
    coarse = stepped(x, [half._eased(step) for step in quintics(half.COARSE_LOW, half.COARSE_TOLERANCE)])
    assert coarse.max() <= 1.2
    assert coarse[x >= 1 / 40].min() >= 0.75
    assert (coarse <= 250 * x + 1e-9).all()
    fast = stepped(x, quintics(half.FAST_LOW, half.FAST_TOLERANCE))
    assert (fast[x >= half.FAST_LOW] - 1).abs().max() <= 1.001e-3
    assert fast.max() <= 1.001


# -- the promises ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(list(SPECTRA)),
    short=st.integers(1, 40),
    more=st.sampled_from([0, 1, 17, 60]),
    missing=st.sampled_from([0, 0, 1, 20]),
    condition=st.floats(0, 5),
    scale=st.floats(-30, 30),
    tall=st.booleans(),
    seed=seeds,
)
def test_both_tiers_keep_their_promises(
    kind: str, short: int, more: int, missing: int, condition: float, scale: float, tall: bool, seed: int
) -> None:
    count = max(short - missing, 1)
    G = 10**scale * from_spectrum(short, short + more, SPECTRA[kind](count, 10**condition)[:count], seed=seed)
    G = G.mT if tall else G
    check_coarse(G, factor(G, "coarse"))
    fast = factor(G, "fast")
    assert mean_error(G, fast) <= 1e-3
    assert singular_values(fast)[0] <= 1.003


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("condition", [1.0, 900.0, 1e6])
def test_the_factor_has_the_singular_vectors(shape: tuple[int, int], condition: float) -> None:
    """Direction by direction: not only the singular values of the factor are as promised."""
    G = from_spectrum(*shape, decades(min(shape), condition))
    check_coarse(G, factor(G, "coarse"))
    assert mean_error(G, factor(G, "fast")) <= 1e-3
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    found = U.mT @ factor(G, "coarse").double() @ Vh.mT
    values = found.diagonal()
    s = S / S.pow(8).sum().pow(1 / 8)
    assert ((values >= 0.65) & (values <= 1.25))[s >= 1 / 40].all()
    assert (values.abs() <= 250 * s + 0.05).all()
    assert torch.linalg.matrix_norm(found - values.diag(), 2) < 0.1


CLUSTERS: dict[str, Callable[[int], Tensor]] = {
    "equal": lambda k: torch.ones(k),
    "two clusters": lambda k: torch.cat([torch.full((k // 2,), 1.0), torch.full((k - k // 2,), 2e-3)]),
    "nearly equal": lambda k: 1 + 1e-4 * torch.linspace(0, 1, k),
    "a cluster at 1/40": lambda k: torch.cat([torch.ones(1), torch.full((k - 1,), 1 / 39)]),
    "many strong": lambda k: torch.cat([torch.full((k - 1,), 1.0), torch.tensor([1.1e-3])]),
    "half the rank": lambda k: torch.ones(k // 2),
    "rank one": lambda k: torch.ones(1),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("shape", [(40, 40), (40, 70), (90, 40)], ids=str)
def test_clusters_and_missing_directions(name: str, shape: tuple[int, int]) -> None:
    """Directions that the matrix lacks stay weak: the rounding noise there is amplified 240 times at most."""
    values = CLUSTERS[name](min(shape))
    G = from_spectrum(*shape, values, seed=3)
    coarse, fast = factor(G, "coarse"), factor(G, "fast")
    check_coarse(G, coarse)
    assert mean_error(G, fast) <= 1e-3
    assert (singular_values(coarse)[len(values) :] <= 0.05).all()
    assert (singular_values(fast)[len(values) :] <= 0.01).all()


@pytest.mark.parametrize(("rows", "columns"), [(2, 8), (2, 64), (3, 3)])
def test_a_matrix_of_a_few_rows_keeps_the_promise_though_its_rounding_does_not_average_out(rows: int, columns: int) -> None:
    """Thousands of them, among zero rows: with four steps in two words some have 1.2e-3."""
    draw = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(4000, rows, rows, generator=draw, dtype=torch.float64))[0]
    Vh = torch.linalg.qr(torch.randn(4000, columns, rows, generator=draw, dtype=torch.float64))[0].mT
    S = 10 ** (-2.9 * torch.rand(4000, rows, 1, generator=draw, dtype=torch.float64))
    G = torch.zeros(4000, 16, columns)
    G[:, :rows] = U @ (S * Vh)
    P = factor(G, "fast").double()
    U, S, Vh = torch.linalg.svd(G[:, :rows].double(), full_matrices=False)
    strong = 1e-3 * S[:, :1] < S
    squares = ((U.mT @ P[:, :rows] - Vh).square().sum(-1) * strong).sum(-1) / strong.sum(-1)
    assert squares.max().sqrt() <= 1e-3


@pytest.mark.parametrize("shape", [(1, 1), (9, 1), (1, 9), (20, 30)], ids=str)
def test_one_direction_is_as_exact_whatever_its_scale(shape: tuple[int, int]) -> None:
    """Its singular value is the norm itself, at the upper end of the first step, above which it is steep."""
    for seed in range(40):
        G = (1 + seed / 40) * from_spectrum(*shape, [1.0], seed=seed)
        check_coarse(G, factor(G, "coarse"))
        assert mean_error(G, factor(G, "fast")) <= 1e-3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (20, 30), (70, 40), (24, 200)], ids=str)
def test_every_dtype_keeps_the_promises(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """The result in half precision adds the rounding of its entries."""
    for condition in (2.0, 100.0):
        G = from_spectrum(*shape, decades(min(shape), condition), dtype=dtype)
        check_coarse(G, factor(G, "coarse"))
        fast = factor(G, "fast")
        assert fast.dtype == dtype
        assert mean_error(G, fast) <= 1e-3 + (torch.finfo(dtype).eps if dtype in HALF else 0)


@pytest.mark.parametrize("precision", LOOSE)
@pytest.mark.parametrize("power", [-100, -60, -14, -1, 7, 60, 100])
def test_a_power_of_two_changes_no_bit(power: int, precision: str) -> None:
    G = from_spectrum(30, 50, decades(30, 100))
    assert torch.equal(factor(2.0**power * G, precision), factor(G, precision))
    assert torch.equal(factor((2.0**power * G).double(), precision).float(), factor(G, precision))


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_the_range_of_float64(scale: float) -> None:
    G = from_spectrum(20, 30, decades(20, 50), dtype=torch.float64)
    check_coarse(scale * G, factor(scale * G, "coarse"))
    assert mean_error(G, factor(scale * G, "fast")) <= 1e-3


def test_the_smallest_and_the_largest_numbers_of_float16() -> None:
    G = from_spectrum(20, 30, decades(20, 8), dtype=torch.float64)
    for largest in (6e4, 1e-3):
        H = (G / G.abs().max() * largest).half()
        check_coarse(H, factor(H, "coarse"))


def test_rows_longer_than_float16_can_sum() -> None:
    """70000 ones have a sum of squares above the largest float16."""
    ones = torch.ones(2, 70_000)
    ones[1] = torch.arange(70_000) % 2 * 2 - 1.0
    for G in (ones, ones.mT):
        check_coarse(G, factor(G, "coarse"))
        assert mean_error(G, factor(G, "fast")) <= 1e-3


# -- zero, non-finite, empty -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", LOOSE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_stays_zero(dtype: torch.dtype, precision: str) -> None:
    for shape in ((1, 1), (5, 7), (3, 40, 20)):
        G = torch.zeros(shape, dtype=dtype)
        assert torch.equal(factor(G, precision), G)


@pytest.mark.parametrize("precision", LOOSE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_entry_makes_its_matrix_nan_and_no_other(value: float, precision: str) -> None:
    G = gaussian(4, 12, 30)
    expected = factor(G, precision)
    G[2, 3, 5] = value
    P = factor(G, precision)
    assert P[2].isnan().all()
    assert torch.equal(P[[0, 1, 3]], expected[[0, 1, 3]])
    assert factor(G[2], precision).isnan().all()


@pytest.mark.parametrize("precision", LOOSE)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 4, 5), (2, 0, 5), (2, 4, 0)])
def test_an_empty_tensor_stays_empty(shape: tuple[int, ...], precision: str) -> None:
    assert factor(torch.ones(shape), precision).shape == shape


# -- batches, transposition, tracing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", LOOSE)
@pytest.mark.parametrize("shape", [(5, 9), (24, 12)], ids=str)
@pytest.mark.parametrize("batch", [(4,), (2, 3)], ids=str)
def test_a_batch_equals_a_loop(batch: tuple[int, ...], shape: tuple[int, int], precision: str) -> None:
    count = math.prod(batch)
    each = [10.0 ** (7 * index - 15) * from_spectrum(*shape, decades(min(shape), 20), seed=index) for index in range(count)]
    P = factor(torch.stack(each).reshape(*batch, *shape), precision)
    assert P.shape == (*batch, *shape)
    for matrix, found in zip(each, P.reshape(count, *shape), strict=True):
        torch.testing.assert_close(found, factor(matrix, precision), rtol=0, atol=5e-3 if precision == "coarse" else 1e-3)


@pytest.mark.parametrize("shape", [(12, 12), (20, 50), (64, 100)], ids=str)
def test_transposition_changes_rounding_alone(shape: tuple[int, int]) -> None:
    G = from_spectrum(*shape, decades(min(shape), 10))
    for precision, error in (("coarse", 0.05), ("fast", 3e-3)):
        turned = factor(G.mT, precision).mT
        assert torch.linalg.matrix_norm(turned - factor(G, precision), 2) < error


@pytest.mark.parametrize("precision", LOOSE)
def test_views_and_the_callers_tensor(precision: str) -> None:
    """Strides do not matter, and the input does not change."""
    G = gaussian(20, 60)
    kept = G.clone()
    expected = factor(G[:, ::2].contiguous(), precision)
    torch.testing.assert_close(factor(G[:, ::2], precision), expected, rtol=0, atol=0)
    assert torch.equal(G, kept)
    assert factor(G, precision).data_ptr() != G.data_ptr()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
@pytest.mark.parametrize("precision", LOOSE)
def test_vmap_traces_and_compiled_calls_compute_the_same(precision: str) -> None:
    """No value decides an operation, so all of them are possible."""
    G = torch.stack([from_spectrum(20, 34, decades(20, 50), seed=seed) for seed in range(3)])
    expected, error = factor(G, precision), (0.03 if precision == "coarse" else 2e-3) * math.sqrt(20)
    assert distance(vmap(lambda matrix: factor(matrix, precision))(G), expected) < error
    compiled = torch.compile(lambda matrix: factor(matrix, precision), backend="eager", fullgraph=True)
    assert distance(compiled(G), expected) < error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda matrix: factor(matrix, precision), G, check_trace=False)
    assert distance(traced(G.flip(0)), expected.flip(0)) < error


@pytest.mark.parametrize("precision", LOOSE)
def test_autocast_around_it_changes_nothing(precision: str) -> None:
    G = gaussian(20, 30)
    with torch.autocast("cpu", torch.bfloat16):
        inside = factor(G, precision)
    assert torch.equal(inside, factor(G, precision))


@pytest.mark.parametrize("shape", [(300, 300), (257, 400)], ids=str)
def test_the_size_from_which_auto_is_coarse_on_a_gpu(shape: tuple[int, int]) -> None:
    G = from_spectrum(*shape, decades(min(shape), 300))
    check_coarse(G, factor(G, "coarse"))


def test_the_coarse_factor_is_coarse_rather_than_slow() -> None:
    """Four steps, not seven: it is not the fast factor under another name."""
    G = gaussian(70, 90)
    assert 0.02 < distance(factor(G, "coarse"), factor(G, "fast")) / math.sqrt(70) < 0.35
