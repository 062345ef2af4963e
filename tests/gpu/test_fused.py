"""The Triton kernel for small matrices agrees with separate launches. Skipped without CUDA or Triton."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import egalitarian as eg
from egalitarian.kernels import fused, polynomial, route
from egalitarian.kernels.coefficients import basis_steps, root_steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
pytest.importorskip("triton")


def stack(k: int, count: int = 3) -> Tensor:
    """Matrices of full rank, of one rank less, and with five decades of row scales."""
    A = torch.randn(count, k, 50, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    A[1, -1] = A[1, 0]
    A[2] *= torch.logspace(0, -5, k, dtype=torch.float64)[:, None]
    return A.cuda()


@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 32, 40, 64])
def test_the_kernel_is_available_and_agrees_with_separate_launches(k: int) -> None:
    A = stack(k)
    for steps in (root_steps(k, 1e-6), basis_steps(k)):
        assert fused.is_available(k, A.device, steps)
    ours = [polynomial.exact_factor(A, 1e-6, "fused"), polynomial._basis(A.mT, "fused")]
    theirs = [polynomial.exact_factor(A, 1e-6, "quintics"), polynomial._basis(A.mT, "quintics")]
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-8)
    # a basis is not unique, so ranges are compared
    for one, other in zip(ours[1], theirs[1], strict=True):
        spans = [polynomial.exact_factor(basis.mT, 1e-3, "quintics") for basis in (one, other)]
        assert (spans[0] - spans[1]).abs().max() < 1e-5


def test_larger_matrices_and_cpus_do_not_use_the_kernel() -> None:
    steps = root_steps(8, 1e-6)
    assert not fused.is_available(fused.LARGEST + 1, torch.device("cuda"), steps)
    assert not fused.is_available(8, torch.device("cpu"), steps)


def test_a_nan_stays_in_its_matrix_and_zero_stays_zero() -> None:
    G = torch.randn(4, 20, 60, device="cuda")
    clean = eg.polar(G)
    G[1, 3, 5] = torch.nan
    G[2] = 0
    ours = eg.polar(G)
    assert ours[1].isnan().any()
    assert not ours[2].any()
    torch.testing.assert_close(ours[[0, 3]], clean[[0, 3]], rtol=0, atol=0)


def test_scale_does_not_matter() -> None:
    G = torch.randn(20, 60, device="cuda", dtype=torch.float32)
    for scale in (1e-30, 1e-15, 1e15, 1e30):
        torch.testing.assert_close(eg.polar(G * scale), eg.polar(G), rtol=0, atol=2e-6)


def test_vmap_takes_separate_launches() -> None:
    G = torch.randn(3, 20, 60, device="cuda")
    torch.testing.assert_close(torch.func.vmap(eg.polar)(G), eg.polar(G), rtol=0, atol=2e-6)


def test_a_first_call_during_capture_takes_separate_launches() -> None:
    G = torch.randn(2, 13, 60, device="cuda")
    eg.polar(torch.randn(40, 60, device="cuda"))  # creates handles and workspaces
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = eg.polar(G)
    graph.replay()
    torch.testing.assert_close(out, eg.polar(G), rtol=0, atol=2e-6)


def test_polar_works_where_the_kernel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    G = torch.randn(14, 60, device="cuda")
    route._cached.cache_clear()
    monkeypatch.setattr(fused, "_tables", {})
    monkeypatch.setattr(fused, "_launched", lambda *_: 1 / 0)
    without = eg.polar(G)
    monkeypatch.undo()
    route._cached.cache_clear()
    torch.testing.assert_close(without, eg.polar(G), rtol=0, atol=2e-6)
