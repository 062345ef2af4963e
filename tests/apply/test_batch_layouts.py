"""Matrices in turns of rows, across columns and in stacks share calls as any others do, and come back where they were."""

from __future__ import annotations

import pytest
import torch
from architectures import Conv1D, Experts, GPTNeoXAttention
from torch import nn

import egalitarian as eg
from egalitarian.apply import batch


def model() -> nn.Module:
    square, wide = nn.ModuleList([Conv1D(6, 6), Conv1D(6, 6)]), nn.ModuleList([Conv1D(8, 6), Conv1D(6, 8)])
    recurrent = nn.ModuleList([nn.LSTM(6, 6), nn.GRU(6, 8)])
    return nn.ModuleList([square, wide, recurrent, GPTNeoXAttention(), GPTNeoXAttention(), Experts(), nn.Bilinear(2, 3, 6)])


def equalised(seed: int = 0) -> list[torch.Tensor]:
    plan = eg.matrices(model(), head=None)
    generator = torch.Generator().manual_seed(seed)
    for entry in plan:
        entry.parameter.grad = torch.randn(entry.shape, generator=generator)
    state = eg.equalize_(plan, [eg.Momentum(0.5), eg.Polar()])
    eg.equalize_(plan, [eg.Momentum(0.5), eg.Polar()], state=state)
    return [entry.parameter.grad for entry in plan if entry.parameter.grad is not None]


@pytest.mark.parametrize("entries", [40, 400, 2**24])
def test_sharing_calls_changes_no_bit(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    alone = equalised()
    monkeypatch.setitem(batch.SHARED_ELEMENTS, "cpu", entries)
    for one, other in zip(alone, equalised(), strict=True):
        assert torch.equal(one, other)
