"""The polynomial route: its coefficients, its two precisions, and that it reads no value."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import BY_VALUES, decades, distance, from_spectrum, gaussian, law, rank, singular_values, svd_cut
from torch import Tensor
from torch.func import vmap

from egalitarian import Polar, explain, polar
from egalitarian.kernels import coefficients, route
from egalitarian.kernels.coefficients import Coefficients, best_quintic, fast_quintics, quintics, rationals
from egalitarian.kernels.route import decide

CUDA = torch.device("cuda")


def odd(step: Coefficients, x: Tensor) -> Tensor:
    a, b, c = step
    return x * (a + b * x**2 + c * x**4)


def grid(lower: float) -> Tensor:
    return torch.logspace(math.log10(lower), 0, 4000, dtype=torch.float64)


@law
@given(lower=st.floats(0.001, 0.985))
def test_the_best_quintic_errs_alike_at_four_points(lower: float) -> None:
    step, error = best_quintic(lower)
    x = torch.linspace(lower, 1, 20_001, dtype=torch.float64)
    off = 1 - odd(step, x)
    assert off.abs().max().item() == pytest.approx(error, rel=1e-5, abs=1e-12)
    signs = off[off.abs() > 0.999 * error].sign()
    assert int((signs.diff() != 0).sum()) == 3
    for changed in range(3):  # no coefficient can be moved for the better
        for by in (1e-3 * error, -1e-3 * error):
            other = tuple(value + by * (place == changed) for place, value in enumerate(step))
            assert (1 - odd(other, x)).abs().max() >= off.abs().max() - 1e-12


@law
@given(lower=st.floats(-7, -1), tolerance=st.sampled_from([1e-2, 2e-3, 1e-6, 1e-9]))
def test_quintics_take_an_interval_to_one(lower: float, tolerance: float) -> None:
    x = grid(10**lower)
    for step in quintics(10**lower, tolerance):
        x = odd(step, x)
    assert (1 - x).abs().max() <= tolerance + 1e-12


@pytest.mark.parametrize("lower", [1e-2, 1e-4, 1e-6, 5e-7])
def test_rationals_take_an_interval_to_one(lower: float) -> None:
    x = grid(lower)
    for a, b, c in rationals(lower, 2e-3):
        x = x * (a + b * x**2) / (1 + c * x**2)
    assert (1 - x).abs().max() <= 2e-3
    assert len(rationals(lower, 2e-3)) <= 3 + (lower < 1e-6)


def test_fast_quintics_are_the_same_ones_split() -> None:
    first, rest = fast_quintics(1e-4)
    assert first + rest == quintics(1e-4, coefficients.FAST_TOLERANCE)
    x = grid(1e-4)
    for step in first:
        x = odd(step, x)
    assert x.min() > coefficients.WEAK * x.max()


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(route, "CHOLESKY_FROM", 2)
    route._remembered.cache_clear()
    yield
    route._remembered.cache_clear()


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (3, 12, 9)])
def test_large_matrices_go_by_cholesky_to_the_same_factor(shape: tuple[int, ...]) -> None:
    short = min(shape[-2:])
    G = from_spectrum(*shape[-2:], decades(short, 1e3)).expand(shape) * torch.ones(shape)
    assert distance(polar(G, method="polynomial"), polar(G, method="svd")) < 1e-6
    assert distance(polar(G, method="polynomial", precision="fast"), polar(G, method="svd")) < 1e-2 * short**0.5


@pytest.mark.parametrize("method", ["polynomial", "eigh"])
@pytest.mark.parametrize("shape", [(194, 512), (60, 60), (90, 30)])
@pytest.mark.parametrize("condition", [10.0, 100.0, 300.0, 1e3, 1e4])
def test_fast_is_right_to_a_hundredth_where_it_says(condition: float, shape: tuple[int, int], method: str) -> None:
    G = from_spectrum(*shape, decades(min(shape), condition))
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    strong = 1e-3 * S[0] < S
    off = (U.mT @ polar(G, method=method, precision="fast").double() @ Vh.mT - torch.eye(len(S)))[strong]
    assert torch.linalg.matrix_norm(off) <= 1e-2 * strong.sum().sqrt()
    assert singular_values(polar(G, method=method, precision="fast")).max() < 1.05


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_what_is_not_finite_stays_in_its_matrix(precision: str) -> None:
    G = gaussian(4, 6, 9)
    expected = polar(G, method="polynomial", precision=precision)
    G[1, 2, 3], G[2, 0, 0] = math.nan, math.inf
    P = polar(G, method="polynomial", precision=precision)
    assert P[1:3].isnan().all()
    assert torch.equal(P[[0, 3]], expected[[0, 3]])


def test_zero_is_zero_and_scale_does_not_matter() -> None:
    for precision in ("exact", "fast"):
        assert not polar(torch.zeros(2, 5, 7), method="polynomial", precision=precision).any()
    G = gaussian(5, 7)
    for scale in (1e-30, 1e30, 1e-38):
        torch.testing.assert_close(polar(G * scale, method="polynomial"), polar(G, method="polynomial"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["polynomial", "eigh", "auto"])
def test_it_goes_through_vmap(method: str) -> None:
    G = gaussian(3, 6, 9)
    mapped = vmap(lambda matrix: polar(matrix, method=method))(G)
    torch.testing.assert_close(mapped, polar(G, method=method), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
@pytest.mark.parametrize("method", ["polynomial", "auto"])
def test_it_compiles_in_one_piece(method: str) -> None:
    G = gaussian(3, 6, 9)
    compiled = torch.compile(lambda matrix: polar(matrix, method=method), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(G), polar(G, method=method), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)"),
        (
            {"precision": "fast"},
            "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)",
        ),
        (
            {"method": "polynomial"},
            "polynomial: Gram matrix 6 x 6 in float64, quintics, sharp cut-off 1e-06 (as requested)",
        ),
        ({"rtol": 1e-9}, "svd: float64 SVD, cut-off 1e-09 (a Gram matrix does not resolve a cut-off below 5e-07)"),
        ({"floor": 1e-6}, "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (a floor needs"),
    ],
)
def test_explain_says_what_polar_does(options: dict[str, object], said: str) -> None:
    assert explain(torch.zeros(6, 9), **options).startswith(said)


def on_cuda(dtype: torch.dtype, short: int, rtol: float | None = None, floor: float | None = None) -> str:
    return decide((short, short), dtype, CUDA, "auto", "exact", rtol, floor, traced=True).algorithm


def test_the_rule_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, large in ((True, "polynomial"), (False, "eigh")):
        monkeypatch.setattr("egalitarian.kernels.route.full_rate", lambda device, fast=fast: fast)
        assert {short: on_cuda(torch.float32, short) for short in (194, 4096)} == {194: "polynomial", 4096: large}
    assert on_cuda(torch.float32, 9, rtol=0.1) == "eigh"
    assert on_cuda(torch.float64, 9) == "svd"
    assert on_cuda(torch.float32, 9, floor=1e-6) == "eigh"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"precision": "quick"}, "precision must be 'exact' or 'fast', got 'quick'"),
        ({"precision": "fast", "method": "svd"}, "precision must be 'exact' for method 'svd'"),
        ({"precision": "fast", "floor": 1e-6}, "floor must be None for method 'polynomial' or precision 'fast'"),
        ({"method": "polynomial", "floor": 1e-6}, "floor must be None for method 'polynomial' or precision 'fast'"),
        ({"method": "polynomial", "rtol": 1e-8}, "rtol must be >= 5e-07 for method 'polynomial'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("'", ".")):
        polar(torch.eye(3), **options)
    with pytest.raises(ValueError, match=told.replace("'", ".")):
        Polar(**options)


def test_products_need_no_values() -> None:
    """What `BY_VALUES` is about: the factor of a matrix with a gap is that of the SVD all the same."""
    assert "polynomial" not in BY_VALUES
    G = from_spectrum(30, 40, 80 * decades(12, 50))
    assert distance(polar(G, method="polynomial"), svd_cut(G, 1e-6)) < 1e-6


HARD_FOR_FAST = {
    "two": (2, 2, [1.0, 0.3135]),
    "down to 1e-6": (150, 350, decades(150, 1e6).tolist()),
    "one, the rest weak": (200, 200, [1.0, *torch.logspace(-3, -5, 199).tolist()]),
    "one, the rest very weak": (150, 150, [1.0] + [7e-6] * 149),
    "half, half very weak": (150, 150, [1.0] * 75 + [2e-5] * 75),
    "half, half just in it": (200, 300, [1.0] * 100 + [1.1e-3] * 100),
    "half, half at the switch of float32": (64, 3000, [1.0] * 32 + [0.0505] * 32),
    "flat": (100, 130, [1.0] * 100),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("method", ["polynomial", "eigh"])
@pytest.mark.parametrize("name", HARD_FOR_FAST)
def test_fast_keeps_its_promise_where_it_is_hard(
    name: str, method: str, large: bool, request: pytest.FixtureRequest
) -> None:
    if large:
        request.getfixturevalue("all_large")
    rows, columns, values = HARD_FOR_FAST[name]
    G = from_spectrum(rows, columns, values)
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    P = polar(G, method=method, precision="fast").double()
    off = (U.mT @ P @ Vh.mT - torch.eye(len(S)))[1e-3 * S[0] < S]
    assert torch.linalg.vector_norm(off, dim=1).max() <= 1e-2  # of every direction
    assert singular_values(P).max() <= 1.02


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("scale", [1e37, 1e-20, 1e-42])
def test_products_do_not_mind_the_scale(scale: float, precision: str) -> None:
    values = singular_values(polar(gaussian(60, 60) * scale, method="polynomial", precision=precision))
    assert values.max() < 1.01
    assert values[: 55 if scale > 1e-40 else 40].min() > 0.99  # denormal numbers have few digits


def test_fast_does_not_promote_noise_of_float64() -> None:
    G = gaussian(40, 5, dtype=torch.float64) @ gaussian(5, 60, dtype=torch.float64)
    for found in (polar(G, precision="fast"), vmap(lambda matrix: polar(matrix, precision="fast"))(G[None])[0]):
        assert singular_values(found)[0] < 1.01
        assert rank(found) == 5


def test_autocast_does_not_reach_into_it() -> None:
    G = gaussian(64, 96)
    for method in ("polynomial", "eigh"):
        plain = polar(G, method=method, precision="fast")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(polar(G, method=method, precision="fast"), plain)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
def test_a_compiled_call_takes_one_shape_after_the_other() -> None:
    compiled = torch.compile(lambda matrix: polar(matrix, method="polynomial"), backend="eager", fullgraph=True)
    for shape in ((12, 20), (13, 20), (3, 12, 20), (13, 25)):
        G = gaussian(*shape)
        torch.testing.assert_close(compiled(G), polar(G, method="polynomial"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["decades", "flat", "one strong, others 2e-3", "one strong, others 3e-2"])
@pytest.mark.parametrize("shape", [(20, 30), (50, 100)])
@pytest.mark.parametrize("rank", [1, 3, 10, 19])
def test_fast_keeps_its_promise_on_gradients_of_few_directions(rank: int, shape: tuple[int, int], kind: str) -> None:
    """What rounding leaves outside the true directions must not grow, either."""
    rest = {"decades": torch.logspace(0, -2.9, rank)[1:], "flat": torch.ones(rank - 1)}
    values = torch.cat([torch.ones(1), rest.get(kind, torch.full((rank - 1,), 2e-3 if "2e-3" in kind else 3e-2))])
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        U, V = (torch.linalg.qr(torch.randn(side, rank, generator=draw, dtype=torch.float64)).Q for side in shape)
        G = ((U * values) @ V.mT).float()
        assert torch.linalg.matrix_norm(polar(G, method="polynomial", precision="fast").double() - U @ V.mT, 2) < 1e-2


@pytest.mark.parametrize("rtol", [1e-3, 5e-3])
def test_fast_does_not_make_the_noise_of_narrow_gradients_strong(rtol: float) -> None:
    G = from_spectrum(64, 64, torch.cat([torch.ones(10), torch.full((54,), rtol / 4)]))
    assert singular_values(polar(G, method="polynomial", precision="fast", rtol=rtol))[10:].max() < 1e-2


@pytest.mark.parametrize("scale", [1e300, 1e60, 1e39, 1e-45, 1e-100, 1e-300])
def test_fast_is_free_of_scale_in_float64_too(scale: float) -> None:
    G = gaussian(6, 9).double()
    for method in ("eigh", "polynomial"):
        torch.testing.assert_close(polar(G * scale, method=method, precision="fast"), polar(G), rtol=0, atol=1e-2)
