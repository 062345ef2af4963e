"""The pooling kernels do what torch does. Skipped without CUDA."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.problems import CIFAR10, CNN
from egalitarian.lab.problems.networks import has_kernels, pooled

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


def test_what_is_not_finite_is_torchs() -> None:
    inf, nan = torch.inf, torch.nan
    windows = [[inf, -inf, 0, 0], [3e38, 3e38, -inf, 0], [1, nan, 2, 0], [nan, 1, nan, 2], [-inf, -inf, -inf, -inf]]
    x = torch.tensor(windows, device="cuda").view(1, len(windows), 2, 2).contiguous(memory_format=torch.channels_last)
    bias = torch.ones(len(windows), device="cuda")
    both = []
    for pool in (torchs, pooled):
        values, shift = x.clone().requires_grad_(), bias.clone().requires_grad_()
        y = pool(values, shift)
        both.append((y.detach(), *torch.autograd.grad(y.sum(), (values, shift))))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_the_kernels_are_found_by_who_asks_without_gradients() -> None:
    has_kernels.cache_clear()
    with torch.inference_mode():
        assert has_kernels(torch.device("cuda", 0))


def test_a_stack_of_networks_is_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the lab's own order: measured without gradients first, then trained.

    Without TF32, whose rounding moves the maximum of a window to another entry now and then.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    draw = torch.Generator().manual_seed(0)
    model, task = CNN(channels=(4, 6), width=8), CIFAR10(train_size=10)
    stack = [model.start(task, seed) for seed in range(3)]
    parameters = {name: torch.stack([start[name] for start in stack]).cuda().requires_grad_() for name in stack[0]}
    x = torch.randn(3, 5, 3, 32, 32, generator=draw).cuda()
    has_kernels.cache_clear()
    with torch.no_grad():
        measured = model.forward(parameters, x)
    ours, theirs = model.forward(parameters, x), torch.func.vmap(model.one)(parameters, x)
    torch.testing.assert_close(measured, ours, rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    both = [torch.autograd.grad(y.square().sum(), list(parameters.values())) for y in (ours, theirs)]
    for one, other in zip(*both, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def test_other_layouts_take_torchs_way() -> None:
    x = torch.randn(2, 3, 4, 4, device="cuda")
    bias = torch.randn(3, device="cuda")
    assert torch.equal(pooled(x, bias), torchs(x, bias))
