"""The reference: the polar factor and the natural gradient by an SVD in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import CLEAR, conditioned, decades, from_spectrum, gaussian, law, svd_cut
from torch import Tensor

from egalitarian import polar
from egalitarian.kernels import natural


@pytest.mark.parametrize("name", CLEAR)
def test_svd_method_is_the_float64_svd_rounded_once(name: str) -> None:
    exact = svd_cut(CLEAR[name], 1e-6)
    P = polar(CLEAR[name], method="svd")
    torch.testing.assert_close(P.double(), exact, rtol=torch.finfo(torch.float32).eps, atol=1e-10)


def test_float64_is_the_float64_svd() -> None:
    G = from_spectrum(12, 9, decades(9, 1e8), dtype=torch.float64)
    torch.testing.assert_close(polar(G), svd_cut(G, 1e-12), rtol=0, atol=1e-7)
    assert torch.equal(polar(G), polar(G, method="svd"))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 1), (3, 4, 4)])
def test_natural_gradient_keeps_shape_and_zero(shape: tuple[int, ...]) -> None:
    zero = torch.zeros(shape)
    assert torch.equal(natural(zero), zero)
    assert natural(gaussian(*shape)).shape == shape


def test_natural_gradients_of_a_batch_equal_a_loop() -> None:
    G = gaussian(3, 5, 7) * torch.tensor([1.0, 1e10, 1e-10])[:, None, None]
    torch.testing.assert_close(natural(G), torch.stack([natural(matrix) for matrix in G]), rtol=1e-5, atol=0)


@law
@given(case=conditioned(most=1e3, dtype=torch.float64))
def test_polar_is_the_root_of_the_fisher_matrix_times_the_natural_gradient(case: tuple[Tensor, float]) -> None:
    G, _ = case
    values, Q = torch.linalg.eigh(G @ G.mT)
    root = (Q * values.clamp_min(0).sqrt()) @ Q.mT
    torch.testing.assert_close(root @ natural(G), polar(G), rtol=0, atol=1e-8)


@law
@given(case=conditioned(most=1e3) | conditioned(most=1e3, dtype=torch.float64), power=st.floats(-20, 20))
def test_natural_gradient_is_the_transposed_pseudo_inverse(case: tuple[Tensor, float], power: float) -> None:
    G = case[0] * 10**power
    expected = torch.linalg.pinv(G.double()).mT
    torch.testing.assert_close(natural(G).double() * 10**power, expected * 10**power, rtol=1e-6, atol=1e-6)
