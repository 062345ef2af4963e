"""polar against the float64 SVD, and the bound that holds for every finite input."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from spectra import (
    BY_VALUES,
    DTYPES,
    HALF,
    METHODS,
    SHAPES,
    bound,
    decades,
    distance,
    from_spectrum,
    gaussian,
    generator,
    largest,
    law,
    rank,
    seeds,
    sides,
    singular_values,
    svd_cut,
)
from torch import Tensor

from egalitarian import explain, polar
from egalitarian.kernels import RTOL, route

ROUNDING = 1e-14
"""Of the float64 arithmetic that measures an error."""


def duplicate_rows() -> Tensor:
    G = gaussian(20, 30, seed=3)
    G[7] = G[3]
    G[11:15] = G[3]
    return G


def zero_rows_and_columns() -> Tensor:
    G = gaussian(20, 30, seed=4)
    G[::3] = 0
    G[:, 5:20] = 0
    return G


def graded_rows() -> Tensor:
    return decades(12, 1e4)[:, None].float() * gaussian(12, 20, seed=5)


CLEAR = {
    "orthonormal": from_spectrum(40, 60, torch.ones(40)),
    "cond 10": from_spectrum(60, 60, decades(60, 10)),
    "cond 1e3": from_spectrum(40, 60, decades(40, 1e3)),
    "cond 1e4": from_spectrum(60, 40, decades(40, 1e4)),
    "cond 9e4": from_spectrum(60, 60, decades(60, 9e4)),
    "two groups": from_spectrum(30, 30, [1.0] * 15 + [2e-5] * 15),
    "rank 30, sigma_1 80": from_spectrum(100, 160, 80 * decades(30, 20)),
    "rank 1": from_spectrum(30, 20, [5.0]),
    "ones": torch.ones(60, 60),
    "triangular": torch.triu(torch.ones(30, 30)),
    "gaussian": gaussian(50, 80),
    "signs": gaussian(16, 16).sign(),
    "duplicate rows": duplicate_rows(),
    "zero rows and columns": zero_rows_and_columns(),
    "graded rows": graded_rows(),
    "row": gaussian(1, 9),
    "column": gaussian(9, 1),
    "number": torch.tensor([[-3.7]]),
}
"""No singular value within a decade of the cut."""


def at_cut(rows: int, columns: int, strong: int, spread: float, rtol: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """`strong` large directions, and all others at the cut times 1 +- spread."""
    weak = min(rows, columns) - strong
    S = torch.cat([torch.full((strong,), 80.0), 80 * rtol * torch.linspace(1 - spread, 1 + spread, weak)])
    return from_spectrum(rows, columns, S, dtype=dtype)


HARD = {
    "cluster at the cut": at_cut(40, 60, 1, 0.0, 1e-6),
    "cluster just around the cut": at_cut(60, 40, 5, 0.01, 1e-6),
    "cluster around the cut": at_cut(50, 50, 25, 0.5, 1e-6),
    "large cluster": at_cut(200, 200, 1, 0.9, 1e-6),
    "cond 1e6": from_spectrum(40, 60, decades(40, 1e6)),
    "cond 1e7": from_spectrum(60, 60, decades(60, 1e7)),
    "cond 1e12": from_spectrum(40, 40, decades(40, 1e12)),
    "hilbert": 1 / (torch.arange(12)[:, None] + torch.arange(12) + 1.0),
    "every scale": torch.tensor([[3e38, 1e-45, 1.0], [1e-38, 1e-20, 0.0], [-1e30, 1e-10, 1e20]]),
}


def has_gap(G: Tensor, rtol: float) -> bool:
    S = singular_values(G)
    relative = S / S[0]
    return not ((relative > rtol / 10) & (relative < 10 * rtol)).any()


def check_no_worse_than_float32(G: Tensor, method: str, rtol: float = RTOL[torch.float32]) -> None:
    exact = svd_cut(G, rtol)
    plain = svd_cut(G, rtol, torch.float32).to(G.dtype)
    assert distance(polar(G, method=method), exact) <= distance(plain, exact) + ROUNDING


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR)
def test_error_is_no_larger_than_that_of_the_float32_svd(name: str, method: str) -> None:
    G = CLEAR[name]
    assert has_gap(G, 1e-6)
    check_no_worse_than_float32(G, method)


LONG = {
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
"""Those that a CPU takes one by one."""


@pytest.mark.parametrize("name", LONG)
def test_long_matrices_are_no_worse_than_by_the_float32_svd_either(name: str) -> None:
    G = LONG[name]
    assert has_gap(G, 1e-6)
    check_no_worse_than_float32(G, "eigh")
    S = singular_values(G)
    kept = int((1e-6 * S[0] < S).sum())
    after = singular_values(polar(G, method="eigh"))
    assert after[0] <= 1 + 1e-4
    assert after[kept - 1] >= 1 - 1e-4
    assert (after[kept:] <= 1e-2).all()


def test_large_matrices_are_right_to_the_rounding_of_float32() -> None:
    """However weak a direction, however few the rows and columns in which it lies."""
    alike = gaussian(128, 320, seed=503)
    alike[-1] = alike[0] + alike[-1] / 250
    dead = torch.cat([from_spectrum(130, 130, [1.0] * 129 + [1e-3]), torch.zeros(130, 270)], 1)
    repeated = torch.eye(128).repeat(1, 8)
    repeated[-1] = 0.3 * repeated[0] + repeated[-1] / 700
    for G in (alike, dead, repeated, gaussian(130, 130), from_spectrum(130, 400, decades(130, 1e4)), gaussian(150, 1000)):
        for matrix in (G, G.mT):
            off = polar(matrix, method="eigh").double() - svd_cut(matrix, 1e-6)
            assert off.abs().max() < 1e-7


@pytest.mark.parametrize("rtol", [5e-3, 0.5])
def test_long_matrices_are_cut_where_it_is_said(rtol: float) -> None:
    G = from_spectrum(130, 400, [1.0] * 65 + [2e-3] * 65)
    assert rank(polar(G, rtol=rtol)) == 65
    assert rank(polar(G.bfloat16())) == 65


@pytest.mark.parametrize("power", [-100, -70, -41, 30, 60, 108, 120])
def test_a_power_of_two_changes_no_bit_of_long_matrices(power: int) -> None:
    G = from_spectrum(130, 400, decades(130, 100))
    assert torch.equal(polar(2.0**power * G), polar(G))


def test_the_smallest_numbers_there_are_do_no_harm() -> None:
    assert largest(polar((gaussian(130, 400).double() * 1e-40).float())) <= bound(torch.float32)


@pytest.fixture
def bfloat16_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(route, "_is_full_under", lambda allowed: False)
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("bfloat16_allowed")
def test_no_product_is_in_float32_where_torch_makes_it_in_less() -> None:
    """As a CPU with AMX does in bfloat16."""
    G = from_spectrum(130, 400, decades(130, 100))
    exact = svd_cut(G, 1e-6)
    for precision in ("exact", "fast"):
        assert distance(polar(G, precision=precision), exact) < 1e-6
    assert explain(G, precision="fast").startswith(
        "eigh: Gram matrix 130 x 130 in float64 and its eigenvectors; cut-off 0.0003"
    )


def test_what_torch_may_but_does_not_make_narrower_is_float32() -> None:
    """`highest`, and what a CPU without AMX makes of the others."""
    assert route.float32_is_full()
    assert route._is_full_under("ieee")


def test_large_matrices_of_a_batch_are_those_alone() -> None:
    G = torch.stack([gaussian(130, 300), from_spectrum(130, 300, decades(60, 1e3)), torch.zeros(130, 300)])
    P = polar(G)
    for matrix, factor in zip(G, P, strict=True):
        assert torch.equal(polar(matrix), factor)
    G[1, 4, 5] = math.nan
    after = polar(G)
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2]], P[[0, 2]])


@law
@given(rows=sides, columns=sides, seed=seeds, span=st.floats(0, 4.9), method=st.sampled_from(METHODS))
def test_error_on_graded_rows_is_no_larger_than_that_of_the_float32_svd(
    rows: int, columns: int, seed: int, span: float, method: str
) -> None:
    """Where a plain SVD is at its best: the scale of each row is its own."""
    scales = 10 ** (-span * torch.rand(rows, 1, generator=generator(seed)))
    G = scales * gaussian(rows, columns, seed=seed)
    assume(has_gap(G, 1e-6))
    check_no_worse_than_float32(G, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_in_half_precision_is_no_larger_than_that_of_the_float32_svd(
    shape: tuple[int, int], dtype: torch.dtype, method: str
) -> None:
    G = from_spectrum(*shape, decades(min(shape), 5), dtype=dtype)
    assert has_gap(G, RTOL[dtype])
    check_no_worse_than_float32(G, method, RTOL[dtype])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR)
def test_singular_values_are_one_above_the_cut_and_zero_below(name: str, method: str) -> None:
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


@pytest.mark.parametrize("name", CLEAR)
def test_svd_method_is_the_float64_svd_rounded_once(name: str) -> None:
    exact = svd_cut(CLEAR[name], 1e-6)
    P = polar(CLEAR[name], method="svd")
    torch.testing.assert_close(P.double(), exact, rtol=torch.finfo(torch.float32).eps, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLEAR | HARD)
def test_no_singular_value_exceeds_one(name: str, method: str) -> None:
    assert largest(polar((CLEAR | HARD)[name], method=method)) <= bound(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("strong", [1, 10])
def test_no_singular_value_exceeds_one_with_a_cluster_at_the_cut_of_any_dtype(
    dtype: torch.dtype, spread: float, strong: int
) -> None:
    assert largest(polar(at_cut(30, 20, strong, spread, RTOL[dtype], dtype))) <= bound(dtype)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5])
def test_no_singular_value_exceeds_one_with_a_cluster_at_the_finest_cut_of_eigh(spread: float) -> None:
    assert largest(polar(at_cut(60, 80, 1, spread, 5e-7), method="eigh", rtol=5e-7)) <= bound(torch.float32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transposed", [False, True])
def test_no_singular_value_exceeds_one_in_a_batch_of_easy_and_hard(transposed: bool, method: str) -> None:
    G = torch.stack([gaussian(40, 50), at_cut(40, 50, 1, 0.5, 1e-6), torch.zeros(40, 50), at_cut(40, 50, 20, 0.01, 1e-6)])
    P = polar(G.mT if transposed else G, method=method)
    assert largest(P) <= bound(torch.float32)
    assert rank(P[0]) == 40
    assert not P[2].any()


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
    """Zero rows, equal rows and low ranks come by themselves."""
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


def test_authors_formula_overshoots_where_polar_does_not() -> None:
    G = from_spectrum(100, 160, 80 * decades(30, 20))
    U, S, _ = torch.linalg.svd(G, full_matrices=False)
    authors = (U / S.clamp_min(1e-6)) @ (U.mT @ G)
    assert largest(authors) > 1.1
    assert largest(polar(G)) <= 1 + 1e-4
    assert rank(polar(G)) == 30


def test_float64_keeps_what_float32_cannot_see() -> None:
    P = polar(from_spectrum(8, 10, [1.0, 1e-10, 1e-14], dtype=torch.float64))
    assert singular_values(P)[:3].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-6)


def test_float64_is_the_float64_svd() -> None:
    G = from_spectrum(12, 9, decades(9, 1e8), dtype=torch.float64)
    torch.testing.assert_close(polar(G), svd_cut(G, 1e-12), rtol=0, atol=1e-7)
    assert torch.equal(polar(G), polar(G, method="svd"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1,), (1, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_matrix_of_any_shape_and_dtype_is_equalised(
    shape: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype, method: str
) -> None:
    G = gaussian(*batch, *shape, dtype=dtype)
    coarse = RTOL[dtype] if method in BY_VALUES else 1e-6  # the smallest of a square matrix come near a coarse cut
    P = polar(G, method=method, rtol=max(coarse, 1e-6))
    assert (P.shape, P.dtype, P.device) == (G.shape, G.dtype, G.device)
    values = singular_values(P)
    torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=max(1e-4, 2 * torch.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 2, 3, 4)])
def test_empty_stays_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
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


def test_ambient_autocast_and_default_dtype_do_not_matter() -> None:
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
def test_known_polar_factors(method: str) -> None:
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
def test_agrees_with_scipy(shape: tuple[int, int]) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    G = gaussian(*shape, dtype=torch.float64)
    U, _ = linalg.polar(G.numpy())
    torch.testing.assert_close(polar(G), torch.from_numpy(U), rtol=0, atol=1e-12)
    torch.testing.assert_close(polar(G.float()).double(), torch.from_numpy(U), rtol=0, atol=1e-5)
