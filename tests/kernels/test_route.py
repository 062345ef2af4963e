"""`explain` prints the route that `polar` follows. The tests record torch's operations as they are dispatched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spectra import decades as spread
from spectra import distance, from_spectrum, rank, svd_cut
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import egalitarian as eg
from egalitarian.kernels import Route, choose, decide, route
from egalitarian.kernels.route import FAST_CUT
from egalitarian.transforms import Polar

FACTORISATIONS = {
    "_linalg_svd": "svd",
    "_linalg_eigh": "eigh",
    "linalg_cholesky_ex": "cholesky",
}

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Recorder(TorchDispatchMode):
    """Lists the factorisations and products that torch runs: (name, dtype, dimensions, short side)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype, int, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        kind = FACTORISATIONS.get(name, "product" if name in ("mm", "bmm", "addmm", "baddbmm", "addmm_") else "")
        if kind:
            A: Tensor = args[0]
            self.seen.append((kind, A.dtype, A.ndim, min(A.shape[-2:])))
        return function(*args, **(kwargs or {}))

    def of(self, kind: str) -> list[tuple[torch.dtype, int, int]]:
        return [each[1:] for each in self.seen if each[0] == kind]


def matrix(shape: tuple[int, ...], dtype: torch.dtype, decades: float, seed: int) -> Tensor:
    """Random rows whose scales spread over some decades."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** (-decades * torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64))
    return (scales * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def check(found: Route, G: Tensor, recorder: Recorder) -> None:
    """Asserts that the recorded operations are those of the route."""
    count = G.shape[:-2].numel() if G.ndim > 2 else 1
    svds, eighs, choleskys = recorder.of("svd"), recorder.of("eigh"), recorder.of("cholesky")
    products = {dtype for dtype, _, _ in recorder.of("product")}
    assert {dimensions for _, dimensions, _ in choleskys} <= {2}, "a batched Cholesky has aborted inside MAGMA"
    if found.algorithm == "svd":
        assert svds == [(torch.float64, G.ndim, min(G.shape[-2:]))]
        assert not eighs
        assert not choleskys
        return
    assert not svds
    if found.algorithm == "eigh":
        assert not choleskys
        assert {dtype for dtype, _, _ in eighs} == {found.dtype}
        assert {dimensions for _, dimensions, _ in eighs} == ({2} if found.one_by_one else {G.ndim})
        assert len(eighs) >= (count if found.one_by_one else 1)
        assert products == {found.dtype}
    elif found.algorithm == "polynomial":
        assert not eighs
        assert bool(choleskys) == (found.root == "cholesky")
        assert (torch.float16 in products) == (found.tier != "exact")
        assert (torch.float64 in products) == (found.tier == "exact")
    elif found.tier == "coarse":
        assert found.algorithm == "rational"
        assert choleskys == [(torch.float32, 2, found.short)] * count  # one inverse per matrix
        assert products == {torch.float32}
        assert not eighs
        assert found.fallback is None
    else:
        assert (found.algorithm, found.tier) == ("rational", "fast")
        assert len(choleskys) == 2 * count  # no random matrix is refused
        assert {dtype for dtype, _, _ in choleskys} <= {torch.float32, torch.float64}  # float64 for few rows in effect
        assert found.fallback is not None
        assert {dtype for dtype, _, _ in eighs} <= {found.fallback.dtype}


options = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["auto", "auto", "svd", "eigh", "polynomial", "rational"]),
        "precision": st.sampled_from(["exact", "fast", "coarse"]),
        "rtol": st.sampled_from([None, 0.0, 1e-9, 1e-6, 4e-4, 1e-3, 5e-3, 5e-2]),
        "floor": st.sampled_from([None, None, None, 1e-6]),
    }
)

shapes = st.tuples(
    st.sampled_from([(), (), (3,), (2, 2)]),
    st.sampled_from([1, 2, 7, 40, 63, 64, 70, 127, 128, 131]),
    st.sampled_from([1, 5, 64, 90, 128, 140]),
).map(lambda parts: (*parts[0], parts[1], parts[2]))


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    asked=options,
    decades=st.floats(0, 5),
    seed=st.integers(0, 2**20),
    narrow=st.booleans(),
    large=st.booleans(),
    auto=st.booleans(),
)
def test_polar_follows_the_route_that_explain_prints(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    asked: dict[str, Any],
    decades: float,
    seed: int,
    narrow: bool,
    large: bool,
    auto: bool,
) -> None:
    """On random shapes, dtypes, cut-offs and precisions; with narrow float32 products; with Cholesky for all sizes."""
    monkeypatch = pytest.MonkeyPatch()
    G = matrix(shape, dtype, decades, seed)
    if auto:
        asked = {**asked, "precision": "auto"}
    try:
        if large:
            monkeypatch.setattr(route, "CHOLESKY_FROM", 2)
        if narrow:
            monkeypatch.setattr(route, "float32_is_full", lambda: False)
        route._cached.cache_clear()
        try:
            found = choose(G, **asked)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                eg.polar(G, **asked)
            with pytest.raises(ValueError, match=re.escape(str(error))):
                eg.explain(G, **asked)
            return
        assert eg.explain(G, **asked) == str(found)
        assert str(found).startswith(f"{found.algorithm}: ")
        with Recorder() as recorder:
            P = eg.polar(G, **asked)
        check(found, G, recorder)
        assert P.shape == G.shape
        assert P.dtype == G.dtype
    finally:
        monkeypatch.undo()
        route._cached.cache_clear()


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    asked=options,
    device=st.sampled_from([None, torch.device("cpu"), CUDA, torch.device("meta")]),
    full_rate=st.booleans(),
)
def test_the_rule_holds_on_every_device(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    asked: dict[str, Any],
    device: torch.device | None,
    full_rate: bool,
) -> None:
    """Rules that any route must obey."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "full_rate", lambda device: full_rate)
        try:
            found = decide(shape, dtype, device, **asked, traced=True)
        except ValueError:
            return
    assert asked["method"] in ("auto", found.algorithm) or (asked["method"], found.algorithm) == ("rational", "eigh")
    assert found.tier in ("exact", asked["precision"])
    assert (found.tier == "coarse") == (asked["precision"] == "coarse")
    assert not found.blocked, "a tensor that is traced or not on a CPU cannot be read"
    assert found.root != "fused", "Triton kernels do not run while torch traces"
    if asked["floor"] is not None:
        assert (found.algorithm, found.floor) in (("svd", asked["floor"]), ("eigh", asked["floor"]))
    if asked["method"] == "auto" and asked["precision"] == "exact" and dtype == torch.float64:
        assert found.algorithm == "svd"
    if found.algorithm == "polynomial" and device is not None and device.type == "cuda":
        assert found.short % 8 == 0
    if asked["method"] == "auto" and (device is None or device.type != "cuda") and found.tier != "coarse":
        assert found.algorithm != "polynomial"


def test_a_traced_tensor_takes_a_route_that_reads_no_values() -> None:
    G = torch.randn(2, 130, 140)
    routes: list[Route] = []

    def traced(X: Tensor) -> Tensor:
        routes.append(choose(X, precision="fast"))
        return X

    vmap(traced)(G)
    assert [(found.algorithm, found.readable, found.blocked, found.dtype) for found in routes] == [
        ("eigh", False, False, torch.float64)
    ]
    readable = choose(G, precision="fast")
    assert (readable.algorithm, readable.readable, readable.one_by_one) == ("rational", True, True)


@pytest.mark.parametrize(("old", "new"), [("products", "polynomial"), ("inverses", "rational")])
def test_an_old_name_of_a_method_is_an_error_that_names_the_new_one(old: Literal["svd"], new: str) -> None:
    message = f"got '{old}'; it is now called '{new}'"
    for call in (
        lambda: eg.polar(torch.eye(3), method=old),
        lambda: eg.explain(torch.eye(3), method=old),
        lambda: Polar(method=old),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_a_route_is_decided_once_for_equal_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    route._cached.cache_clear()
    for _ in range(5):
        eg.polar(torch.randn(6, 9))
    assert (route._cached.cache_info().misses, route._cached.cache_info().hits) == (1, 4)
    with pytest.raises(TypeError, match="rtol must be"):  # True equals 1, but must not take its route from the cache
        eg.polar(torch.randn(6, 9), rtol=True)


# -- the documented rule ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)"),
        (
            {"precision": "fast"},
            "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)",
        ),
        (
            {"method": "polynomial"},
            "polynomial: Gram matrix 6 x 6 in float64, quintics, cut-off 1e-06 within a factor of three (as requested)",
        ),
        ({"rtol": 1e-9}, "svd: float64 SVD, cut-off 1e-09 (a Gram matrix does not resolve a cut-off below 5e-07)"),
        ({"floor": 1e-6}, "eigh: Gram matrix 6 x 6 in float64 and its eigenvectors, cut-off 1e-06 (a floor needs"),
    ],
)
def test_explain_names_algorithm_cut_off_and_reason(options: dict[str, object], expected: str) -> None:
    assert eg.explain(torch.zeros(6, 9), **options).startswith(expected)


@pytest.mark.parametrize(
    ("dtype", "rtol", "chosen"),
    [
        (torch.float64, 1e-12, "svd"),
        (torch.float64, 1e-3, "svd"),
        (torch.float32, 1e-6, "eigh"),
        (torch.float32, 5e-7, "eigh"),
        (torch.float32, 4e-7, "svd"),
        (torch.float16, 1e-3, "eigh"),
        (torch.bfloat16, 5e-3, "eigh"),
    ],
)
def test_auto_follows_the_documented_rule(dtype: torch.dtype, rtol: float, chosen: str) -> None:
    assert decide((20, 30), dtype, None, "auto", "exact", rtol).algorithm == chosen
    G = from_spectrum(20, 30, spread(20, 100), dtype=dtype)
    if rtol >= 5e-7 or chosen == "svd":
        assert torch.equal(eg.polar(G, rtol=rtol), eg.polar(G, rtol=rtol, method=chosen))


def test_auto_takes_the_svd_for_a_cut_off_that_a_gram_matrix_does_not_resolve() -> None:
    G = torch.diag(torch.tensor([1.0, 0.5, 1e-8]))
    P = eg.polar(G, rtol=1e-9)
    assert torch.equal(P, eg.polar(G, method="svd", rtol=1e-9))
    assert torch.equal(P, torch.eye(3))
    assert rank(eg.polar(G)) == 2


def test_fast_takes_the_rational_route_on_a_cpu_from_a_short_side_of_64() -> None:
    def algorithm(short: int, rtol: float = 1e-6) -> str:
        return decide((short, short), torch.float32, CPU, "auto", "fast", rtol, readable=True, float32=True).algorithm

    assert (algorithm(63), algorithm(64), algorithm(4000)) == ("eigh", "rational", "rational")
    assert (algorithm(100, FAST_CUT), algorithm(100, 1e-3)) == ("rational", "eigh")
    text = eg.explain(torch.zeros(70, 90), precision="fast")
    assert text.startswith("rational: Gram matrix 70 x 70 in float32, two inverses; no cut-off; eigenvectors if it refuses")


def on_cuda(dtype: torch.dtype, short: int, rtol: float | None = None, floor: float | None = None) -> str:
    return decide((short, short), dtype, CUDA, "auto", "exact", rtol, floor, traced=True).algorithm


def test_auto_takes_the_polynomial_on_a_gpu_unless_float64_is_slow_or_values_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for fast, large in ((True, "polynomial"), (False, "eigh")):
        monkeypatch.setattr("egalitarian.kernels.route.full_rate", lambda device, fast=fast: fast)
        assert {short: on_cuda(torch.float32, short) for short in (194, 4096)} == {194: "polynomial", 4096: large}
    assert on_cuda(torch.float32, 9, rtol=0.1) == "eigh"
    assert on_cuda(torch.float64, 9) == "svd"
    assert on_cuda(torch.float32, 9, floor=1e-6) == "eigh"


def test_large_matrices_take_cholesky_steps_but_never_as_a_batch() -> None:
    """A batched Cholesky has aborted inside MAGMA on torch 2.11."""
    large = decide((3, 1600, 1700), torch.float32, CUDA, "polynomial", "exact", traced=True)
    assert (large.root, large.one_by_one) == ("cholesky", True)
    assert route.root_for(1600, CUDA, None) == "cholesky"
    assert route.root_for(1600, CUDA, None, batch=True) == "quintics"
    assert route.root_for(1500, CUDA, None) == "quintics"


@pytest.fixture
def bfloat16_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(route, "_is_full_under", lambda allowed: False)
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("bfloat16_allowed")
def test_products_are_in_float64_where_torch_narrows_float32() -> None:
    """As on a CPU with AMX, which may compute them in bfloat16."""
    G = from_spectrum(130, 400, spread(130, 100))
    exact = svd_cut(G, 1e-6)
    for precision in ("exact", "fast"):
        assert distance(eg.polar(G, precision=precision), exact) < 1e-6
    assert eg.explain(G, precision="fast").startswith(
        "eigh: Gram matrix 130 x 130 in float64 and its eigenvectors, cut-off 0.0003"
    )


def test_full_float32_products_are_recognised() -> None:
    """Under `highest`, and under lower settings that the CPU does not use."""
    assert route.float32_is_full()
    assert route._is_full_under("ieee")


# -- refused options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "quick"}, "precision must be one of ('auto', 'exact', 'fast', 'coarse'), got 'quick'"),
        ({"precision": "fast", "method": "svd"}, "precision must be 'exact' for method 'svd'"),
        ({"precision": "fast", "floor": 1e-6}, "floor must be None for precision 'fast', got 1e-06; use precision='exact'"),
        ({"method": "polynomial", "floor": 1e-6}, "floor must be None for method 'polynomial', got 1e-06"),
        ({"method": "polynomial", "rtol": 1e-8}, "rtol must be >= 5e-07 for method 'polynomial'"),
        (
            {"method": "rational"},
            "precision must be 'fast' for method 'rational', got 'exact'; use method='eigh' or 'polynomial'",
        ),
        (
            {"method": "rational", "precision": "fast", "rtol": 1e-2},
            "rtol must be <= 0.0005 for method 'rational', got 0.01",
        ),
        (
            {"method": "rational", "precision": "fast", "floor": 1e-6},
            "floor must be None for precision 'fast', got 1e-06",
        ),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, object], message: str) -> None:
    for call in (lambda: eg.polar(torch.eye(60), **options), lambda: Polar(**options)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="'newton'"):
        eg.polar(torch.eye(2), method="newton")


@pytest.mark.parametrize("rtol", [0.0, 1e-8, 4.9e-7])
def test_eigh_refuses_a_cut_off_that_it_does_not_resolve(rtol: float) -> None:
    with pytest.raises(ValueError, match=f"got {rtol:g}"):
        eg.polar(torch.eye(2), method="eigh", rtol=rtol)


def test_eigh_refuses_the_default_cut_off_of_float64() -> None:
    with pytest.raises(ValueError, match="1e-12"):
        eg.polar(torch.eye(2, dtype=torch.float64), method="eigh")
