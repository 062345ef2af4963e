"""`explain` prints the route that `polar` follows: torch's own operations, as they are dispatched, are the witness."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import egalitarian as eg
from egalitarian.kernels import Route, choose, decide, route
from egalitarian.transforms import Polar

FACTORISATIONS = {
    "_linalg_svd": "svd",
    "_linalg_eigh": "eigh",
    "linalg_cholesky_ex": "cholesky",
}
CUDA = torch.device("cuda")


class Witness(TorchDispatchMode):
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


def check(found: Route, G: Tensor, witness: Witness) -> None:
    """That what ran is what the route says."""
    count = G.shape[:-2].numel() if G.ndim > 2 else 1
    svds, eighs, choleskys = witness.of("svd"), witness.of("eigh"), witness.of("cholesky")
    products = {dtype for dtype, _, _ in witness.of("product")}
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
        assert (torch.float16 in products) == (found.tier == "fast")
        assert torch.float64 in products
    else:
        assert found.algorithm == "rational"
        assert choleskys  # two per matrix, unless a matrix is refused
        assert {dtype for dtype, _, _ in choleskys} == {torch.float32}
        assert found.fallback is not None
        assert {dtype for dtype, _, _ in eighs} <= {found.fallback.dtype}


options = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["auto", "auto", "svd", "eigh", "polynomial", "rational"]),
        "precision": st.sampled_from(["exact", "fast"]),
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
)
def test_polar_does_what_explain_says(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    asked: dict[str, Any],
    decades: float,
    seed: int,
    narrow: bool,
    large: bool,
) -> None:
    """On random shapes, dtypes, cut-offs and precisions; with narrow float32 products; with Cholesky for all sizes."""
    monkeypatch = pytest.MonkeyPatch()
    G = matrix(shape, dtype, decades, seed)
    try:
        if large:
            monkeypatch.setattr(route, "CHOLESKY_FROM", 2)
        if narrow:
            monkeypatch.setattr(route, "float32_is_full", lambda: False)
        route._remembered.cache_clear()
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
        with Witness() as witness:
            P = eg.polar(G, **asked)
        check(found, G, witness)
        assert P.shape == G.shape
        assert P.dtype == G.dtype
    finally:
        monkeypatch.undo()
        route._remembered.cache_clear()


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
    """What must be true of any route, from its description alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route, "full_rate", lambda device: full_rate)
        try:
            found = decide(shape, dtype, device, **asked, traced=True)
        except ValueError:
            return
    assert asked["method"] in ("auto", found.algorithm) or (asked["method"], found.algorithm) == ("rational", "eigh")
    assert found.tier == "exact" or asked["precision"] == "fast"
    assert not found.blocked, "a tensor that is traced or not on a CPU cannot be read"
    assert found.root != "fused", "Triton kernels do not run while torch traces"
    if asked["floor"] is not None:
        assert (found.algorithm, found.floor) in (("svd", asked["floor"]), ("eigh", asked["floor"]))
    if asked["method"] == "auto" and asked["precision"] == "exact" and dtype == torch.float64:
        assert found.algorithm == "svd"
    if found.algorithm == "polynomial" and device is not None and device.type == "cuda":
        assert found.short % 8 == 0
    if asked["method"] == "auto" and (device is None or device.type != "cuda"):
        assert found.algorithm != "polynomial"


def test_a_tensor_that_cannot_be_read_takes_no_route_by_values() -> None:
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
    said = f"got '{old}'; it is now called '{new}'"
    for call in (
        lambda: eg.polar(torch.eye(3), method=old),
        lambda: eg.explain(torch.eye(3), method=old),
        lambda: Polar(method=old),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            call()


def test_a_route_is_decided_once_for_equal_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    route._remembered.cache_clear()
    for _ in range(5):
        eg.polar(torch.randn(6, 9))
    assert (route._remembered.cache_info().misses, route._remembered.cache_info().hits) == (1, 4)
    with pytest.raises(TypeError, match="rtol must be"):  # True equals 1, and must not be taken for it
        eg.polar(torch.randn(6, 9), rtol=True)
