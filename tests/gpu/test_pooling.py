"""The pooling kernels do what torch does. Skipped without CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.models.pooling import has_kernels, pooled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def torchs(x: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(x, 2) + bias[:, None, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(6, 8), (32, 32), (5, 8), (6, 7)])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_it_is_torchs_ties_included(levels: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    assert has_kernels(torch.device("cuda", 0))
    draw = torch.Generator().manual_seed(0)
    x = (torch.randint(-levels, levels, (3, 5, *size), generator=draw) / levels).to("cuda", dtype)
    bias = (torch.randint(-2, 3, (5,), generator=draw) / 4).to("cuda", dtype)
    both = []
    for pool in (torchs, pooled):
        values = x.clone(memory_format=torch.channels_last).requires_grad_()
        shift = bias.clone().requires_grad_()
        largest = pool(values, shift)
        weight = torch.arange(largest.numel(), dtype=dtype, device="cuda").reshape(largest.shape)
        both.append((largest.detach(), *torch.autograd.grad((largest * weight).sum(), (values, shift))))
    assert torch.equal(both[0][0], both[1][0])
    if levels > 3:  # where rounding makes no ties of its own
        assert torch.equal(both[0][1], both[1][1])
    torch.testing.assert_close(both[0][2], both[1][2], rtol=1e-5, atol=0)


def test_a_nan_is_passed_on() -> None:
    x = torch.zeros(1, 1, 4, 4, device="cuda")
    x[0, 0, 1, 1] = torch.nan
    y = pooled(x, torch.ones(1, device="cuda"))
    assert y.isnan().sum() == 1
    assert y[0, 0, 0, 0].isnan()


def test_other_layouts_take_torchs_way() -> None:
    x = torch.randn(2, 3, 4, 4, device="cuda")
    bias = torch.randn(3, device="cuda")
    assert torch.equal(pooled(x, bias), torchs(x, bias))
