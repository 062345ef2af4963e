"""The Gram matrix by blocks: it equals the plain product."""

import pytest
import torch
from spectra import gaussian

from egalitarian.kernels.eigh import gram, upper_gram


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 3), (7, 7), (9, 700), (194, 512)])
def test_gram_equals_the_plain_product(shape: tuple[int, int]) -> None:
    A = gaussian(*shape)
    exact = A.double() @ A.mT.double()
    torch.testing.assert_close(gram(A).double(), exact, rtol=0, atol=2e-6 * shape[1])
    torch.testing.assert_close(upper_gram(A, torch.float64).triu(), exact.triu(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gram(A.mT.contiguous().mT), gram(A), rtol=0, atol=2e-6 * shape[1])
