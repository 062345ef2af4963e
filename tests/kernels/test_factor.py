"""polar by every method: against the float64 SVD, on any shape, dtype and memory layout, exact and fast."""

import math
from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from spectra import (
    BY_VALUES,
    CLEAR,
    DTYPES,
    HALF,
    METHODS,
    ROUNDING,
    SHAPES,
    at_cut_off,
    bound,
    decades,
    errors,
    from_spectrum,
    gaussian,
    generator,
    has_gap,
    largest,
    law,
    mean_error,
    rank,
    seeds,
    sides,
    singular_values,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from egalitarian import normalize, polar, polar_lowrank
from egalitarian.kernels import RTOL, TierChoice, natural

HARD = {
    "cluster at the cut-off": at_cut_off(40, 60, 1, 0.0, 1e-6),
    "cluster just around the cut-off": at_cut_off(60, 40, 5, 0.01, 1e-6),
    "cluster around the cut-off": at_cut_off(50, 50, 25, 0.5, 1e-6),
    "large cluster": at_cut_off(200, 200, 1, 0.9, 1e-6),
    "cond 1e6": from_spectrum(40, 60, decades(40, 1e6)),
    "cond 1e7": from_spectrum(60, 60, decades(60, 1e7)),
    "cond 1e12": from_spectrum(40, 40, decades(40, 1e12)),
    "hilbert": 1 / (torch.arange(12)[:, None] + torch.arange(12) + 1.0),
    "every scale": torch.tensor([[3e38, 1e-45, 1.0], [1e-38, 1e-20, 0.0], [-1e30, 1e-10, 1e20]]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR)
def test_error_is_no_larger_than_that_of_the_float32_svd(name: str, method: str) -> None:
    G = CLEAR[name]
    assert has_gap(G, 1e-6)
    ours, float32 = errors(G, method)
    assert ours <= float32 + ROUNDING


@law
@given(rows=sides, columns=sides, seed=seeds, span=st.floats(0, 4.9), method=st.sampled_from(METHODS))
def test_error_on_graded_rows_is_no_larger_than_that_of_the_float32_svd(
    rows: int, columns: int, seed: int, span: float, method: str
) -> None:
    """An SVD is most accurate on them: each row has its own scale."""
    scales = 10 ** (-span * torch.rand(rows, 1, generator=generator(seed)))
    G = scales * gaussian(rows, columns, seed=seed)
    assume(has_gap(G, 1e-6))
    ours, float32 = errors(G, method)
    assert ours <= float32 + ROUNDING


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_in_half_precision_is_no_larger_than_that_of_the_float32_svd(
    shape: tuple[int, int], dtype: torch.dtype, method: str
) -> None:
    G = from_spectrum(*shape, decades(min(shape), 5), dtype=dtype)
    assert has_gap(G, RTOL[dtype])
    ours, float32 = errors(G, method, RTOL[dtype])
    assert ours <= float32 + ROUNDING


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR)
def test_singular_values_are_one_above_the_cut_off_and_zero_below(name: str, method: str) -> None:
    G = CLEAR[name]
    S = singular_values(G)
    kept = int((1e-6 * S[0] < S).sum())
    after = singular_values(polar(G, method=method))
    assert after[kept - 1] >= 1 - 1e-4
    assert (after[kept:] <= 1e-2).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("condition", [1, 1e3, 9e3, 2e4, 9e4])
def test_singular_values_are_one_to_the_rounding_of_float32(condition: float, method: str) -> None:
    for seed in range(10):
        after = singular_values(polar(from_spectrum(30, 40, decades(30, condition), seed=seed), method=method))
        torch.testing.assert_close(after, torch.ones_like(after), rtol=0, atol=torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR | HARD)
def test_no_singular_value_exceeds_one(name: str, method: str) -> None:
    assert largest(polar((CLEAR | HARD)[name], method=method)) <= bound(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("strong", [1, 10])
def test_no_singular_value_exceeds_one_with_a_cluster_at_the_cut_off_of_any_dtype(
    dtype: torch.dtype, spread: float, strong: int
) -> None:
    assert largest(polar(at_cut_off(30, 20, strong, spread, RTOL[dtype], dtype))) <= bound(dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transposed", [False, True])
def test_no_singular_value_exceeds_one_in_a_mixed_batch(transposed: bool, method: str) -> None:
    G = torch.stack(
        [gaussian(40, 50), at_cut_off(40, 50, 1, 0.5, 1e-6), torch.zeros(40, 50), at_cut_off(40, 50, 20, 0.01, 1e-6)]
    )
    P = polar(G.mT if transposed else G, method=method)
    assert largest(P) <= bound(torch.float32)
    assert rank(P[0]) == 40
    assert not P[2].any()


def test_authors_formula_overshoots_where_polar_does_not() -> None:
    G = from_spectrum(100, 160, 80 * decades(30, 20))
    U, S, _ = torch.linalg.svd(G, full_matrices=False)
    authors = (U / S.clamp_min(1e-6)) @ (U.mT @ G)
    assert largest(authors) > 1.1
    assert largest(polar(G)) <= 1 + 1e-4
    assert rank(polar(G)) == 30


def test_polar_leaves_zero_the_directions_that_a_rank_deficient_matrix_lacks() -> None:
    """U Vᵀ of a plain SVD has them, with arbitrary signs."""
    G = from_spectrum(20, 30, decades(5, 10))
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    assert rank(U @ Vh) == 20
    assert rank(polar(G)) == 5
    torch.testing.assert_close(polar(G).double(), U[:, :5] @ Vh[:5], rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", BY_VALUES)
def test_authors_formula_is_a_clamp_of_the_singular_values_and_not_scale_free(method: str) -> None:
    """(U / max(s, floor)) Uᵀ G equals U diag(s / max(s, floor)) Vᵀ, and `floor` computes it."""
    for scale, lengths in ((1.0, [1.0, 1.0, 1.0]), (1e-5, [1.0, 1.0, 0.5]), (1e-9, [1e-3, 4e-4, 5e-5])):
        G = scale * from_spectrum(6, 9, [1.0, 0.4, 0.05], dtype=torch.float64)
        U, S, Vh = torch.linalg.svd(G, full_matrices=False)
        authors = (U / S.clamp_min(1e-6)) @ (U.mT @ G)
        torch.testing.assert_close(authors, (U * (S / S.clamp_min(1e-6))) @ Vh, rtol=0, atol=1e-9)
        torch.testing.assert_close(polar(G, method=method, rtol=1e-6, floor=1e-6), authors, rtol=0, atol=1e-7)
        torch.testing.assert_close(
            singular_values(authors)[:3], torch.tensor(lengths, dtype=torch.float64), rtol=1e-6, atol=0
        )
        torch.testing.assert_close(singular_values(polar(G))[:3], torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-7)


def test_float64_keeps_directions_that_float32_does_not_resolve() -> None:
    P = polar(from_spectrum(8, 10, [1.0, 1e-10, 1e-14], dtype=torch.float64))
    assert singular_values(P)[:3].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1,), (1, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_matrix_of_any_shape_and_dtype_is_equalised(
    shape: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype, method: str
) -> None:
    G = gaussian(*batch, *shape, dtype=dtype)
    coarse = RTOL[dtype] if method in BY_VALUES else 1e-6  # a square matrix has singular values near a coarse cut-off
    P = polar(G, method=method, rtol=max(coarse, 1e-6))
    assert (P.shape, P.dtype, P.device) == (G.shape, G.dtype, G.device)
    values = singular_values(P)
    torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=max(1e-4, 2 * torch.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 2, 3, 4)])
def test_an_empty_matrix_stays_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    P = polar(torch.ones(shape, dtype=dtype, requires_grad=True))
    assert (P.shape, P.dtype, P.requires_grad) == (shape, dtype, False)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("view", ["transposed", "strided", "reversed batch", "expanded"])
def test_memory_layout_does_not_matter(view: str, dtype: torch.dtype, method: str) -> None:
    whole = gaussian(4, 18, 22, dtype=dtype)
    G = {
        "transposed": whole.mT,
        "strided": whole[:, ::3, 1::2],
        "reversed batch": whole.transpose(0, 2),
        "expanded": whole[:1].expand(3, 18, 22),
    }[view]
    assert not G.is_contiguous()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(polar(G, method=method), polar(G.contiguous(), method=method), rtol=eps, atol=eps)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_input_is_not_modified(dtype: torch.dtype, method: str) -> None:
    G = from_spectrum(8, 10, decades(8, 1e5), dtype=dtype)
    before = G.clone()
    P = polar(G, method=method, rtol=max(RTOL[dtype], 1e-6))
    assert torch.equal(G, before)
    assert P.untyped_storage().data_ptr() != G.untyped_storage().data_ptr()


def test_result_carries_no_gradient() -> None:
    G = gaussian(4, 5).requires_grad_()
    assert not polar(G).requires_grad
    assert not polar(2 * G).requires_grad
    assert type(polar(torch.nn.Parameter(G.detach()))) is Tensor


def test_autocast_and_default_dtype_do_not_matter() -> None:
    G = from_spectrum(20, 30, decades(20, 1e5))
    P = polar(G)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(polar(G), P)
    before = torch.get_default_dtype()
    try:
        for dtype in DTYPES:
            torch.set_default_dtype(dtype)
            assert torch.equal(polar(G), P)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number_becomes_its_sign(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    for value in (limits.max, limits.tiny, limits.smallest_normal * limits.eps, 1.0, 0.3):
        G = torch.tensor([[[value]], [[-value]]], dtype=dtype)
        assert torch.equal(polar(G), G.sign())


@pytest.mark.parametrize("method", METHODS)
def test_one_row_becomes_its_direction(method: str) -> None:
    expected = torch.tensor([[0.6, 0.0, -0.8]])
    for length in (1e-30, 1e-3, 5.0, 1e30):
        torch.testing.assert_close(polar(length * expected, method=method), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(polar(length * expected.mT, method=method), expected.mT, rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_known_matrices_have_their_polar_factors(method: str) -> None:
    half = math.sqrt(0.5)
    cases = [
        ([[3.0, 0.0], [0.0, 0.01]], [[1.0, 0.0], [0.0, 1.0]]),
        ([[0.0, 2.0], [-7.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]),
        ([[1.0, 1.0], [-1.0, 1.0]], [[half, half], [-half, half]]),
        ([[2.0, 1.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]),
        ([[1.0, 2.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]),
        ([[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]),
        ([[0.0, 5.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]),
    ]
    for given_, expected in cases:
        P = polar(torch.tensor(given_), method=method)
        torch.testing.assert_close(P, torch.tensor(expected), rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (9, 9)])
def test_polar_agrees_with_scipy(shape: tuple[int, int]) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    G = gaussian(*shape, dtype=torch.float64)
    U, _ = linalg.polar(G.numpy())
    torch.testing.assert_close(polar(G), torch.from_numpy(U), rtol=0, atol=1e-12)
    torch.testing.assert_close(polar(G.float()).double(), torch.from_numpy(U), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["polynomial", "eigh", "auto"])
def test_polar_works_under_vmap(method: str) -> None:
    G = gaussian(3, 6, 9)
    mapped = vmap(lambda matrix: polar(matrix, method=method))(G)
    torch.testing.assert_close(mapped, polar(G, method=method), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
@pytest.mark.parametrize("method", ["polynomial", "auto"])
def test_polar_compiles_without_a_graph_break(method: str) -> None:
    G = gaussian(3, 6, 9)
    compiled = torch.compile(lambda matrix: polar(matrix, method=method), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(G), polar(G, method=method), rtol=0, atol=1e-6)


CALLS: list[Callable[[Tensor], Tensor]] = [
    *(partial(polar, precision=precision) for precision in get_args(TierChoice)),
    *(partial(polar, method=method) for method in METHODS),
    *(partial(polar, precision="fast", method=method) for method in ("polynomial", "eigh", "rational")),
    partial(polar_lowrank, rank=2),
    normalize,
    natural,
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", [(8, 6), (140, 130), (3, 8, 6)])
def test_a_tensor_without_values_gives_one_of_its_shape(shape: tuple[int, ...], call: Callable[[Tensor], Tensor]) -> None:
    found = call(torch.zeros(shape, device="meta"))
    assert found.is_meta
    assert (found.shape, found.dtype) == (shape, torch.float32)
    with FakeTensorMode():
        found = call(torch.zeros(shape))
    assert isinstance(found, FakeTensor)
    assert (found.shape, found.dtype) == (shape, torch.float32)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("method", ["polynomial", "eigh", "auto"])
def test_make_fx_records_a_factor_of_any_values(method: str, mode: str) -> None:
    recorded = make_fx(lambda matrix: polar(matrix, method=method), tracing_mode=mode)(gaussian(6, 9))
    G = gaussian(6, 9, seed=1)
    torch.testing.assert_close(recorded(G), polar(G, method=method), rtol=0, atol=1e-6)


# -- fast ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["polynomial", "eigh"])
@pytest.mark.parametrize("shape", [(194, 512), (60, 60), (90, 30)])
@pytest.mark.parametrize("condition", [10.0, 100.0, 300.0, 1e3, 1e4])
def test_fast_has_an_error_of_at_most_a_thousandth(condition: float, shape: tuple[int, int], method: str) -> None:
    G = from_spectrum(*shape, decades(min(shape), condition))
    P = polar(G, method=method, precision="fast")
    assert mean_error(G, P) <= 1e-3
    assert singular_values(P).max() < 1.003


HARD_FOR_FAST = {
    "two": (2, 2, [1.0, 0.3135]),
    "down to 1e-6": (150, 350, decades(150, 1e6).tolist()),
    "one, the rest weak": (200, 200, [1.0, *torch.logspace(-3, -5, 199).tolist()]),
    "one, the rest very weak": (150, 150, [1.0] + [7e-6] * 149),
    "half, half very weak": (150, 150, [1.0] * 75 + [2e-5] * 75),
    "half, half just above 1e-3": (200, 300, [1.0] * 100 + [1.1e-3] * 100),
    "half, half just above the split of float32": (130, 3000, [1.0] * 65 + [0.101] * 65),
    "flat": (100, 130, [1.0] * 100),
}


@pytest.mark.parametrize("cholesky", [False, True])
@pytest.mark.parametrize("method", ["polynomial", "eigh"])
@pytest.mark.parametrize("name", HARD_FOR_FAST)
def test_fast_has_an_error_of_at_most_a_thousandth_on_hard_spectra(
    name: str, method: str, cholesky: bool, request: pytest.FixtureRequest
) -> None:
    if cholesky:
        request.getfixturevalue("cholesky_for_all_sizes")
    rows, columns, values = HARD_FOR_FAST[name]
    G = from_spectrum(rows, columns, values)
    P = polar(G, method=method, precision="fast")
    assert mean_error(G, P) <= 1e-3
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    error = (U.mT @ P.double() @ Vh.mT - torch.eye(len(S)))[1e-3 * S[0] < S]
    assert torch.linalg.vector_norm(error, dim=1).max() <= 1e-2  # for every direction
    assert singular_values(P).max() < 1.003


def test_fast_does_not_amplify_the_noise_of_float64() -> None:
    G = gaussian(40, 5, dtype=torch.float64) @ gaussian(5, 60, dtype=torch.float64)
    for found in (polar(G, precision="fast"), vmap(lambda matrix: polar(matrix, precision="fast"))(G[None])[0]):
        assert singular_values(found)[0] < 1.01
        assert rank(found) == 5


def test_autocast_does_not_change_fast() -> None:
    G = gaussian(64, 96)
    for method in ("polynomial", "eigh"):
        plain = polar(G, method=method, precision="fast")
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(polar(G, method=method, precision="fast"), plain)


@pytest.mark.parametrize("scale", [1e300, 1e60, 1e39, 1e-45, 1e-100, 1e-300])
def test_fast_is_scale_free_in_float64(scale: float) -> None:
    G = gaussian(6, 9).double()
    for method in ("eigh", "polynomial"):
        torch.testing.assert_close(polar(G * scale, method=method, precision="fast"), polar(G), rtol=0, atol=1e-2)
