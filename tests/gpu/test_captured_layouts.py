"""Matrices in turns of rows, across columns and in stacks: a captured step equals an eager one bit for bit."""

from __future__ import annotations

import pytest
import torch
from architectures import Conv1D, Experts, GPTNeoXAttention
from torch import Tensor, nn

import egalitarian as eg

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trained(capture: bool) -> list[Tensor]:
    model = nn.ModuleList(
        [Conv1D(32, 32), Conv1D(40, 32), GPTNeoXAttention(32, 4), GPTNeoXAttention(32, 4), nn.LSTM(32, 32), Experts()]
    )
    model.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with eg.attach(optimizer, eg.matrices(model, head=None), [eg.Momentum(0.5), eg.Polar()], capture=capture):
        for _ in range(7):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, device="cuda", generator=generator)
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_a_captured_step_equals_an_eager_one() -> None:
    for one, other in zip(trained(capture=False), trained(capture=True), strict=True):
        assert torch.equal(one, other)
