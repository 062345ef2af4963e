"""One pass over gradients: its extra memory is that of one call, however many parameters there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import egalitarian as eg
from egalitarian.apply.batch import SHARED_ELEMENTS


def peak_bytes(work: Callable[[], object]) -> int:
    """The peak of the memory that the CPU allocator handed out during `work`."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes, initial=0))


def peak_of(layers: int) -> int:
    model = nn.Sequential(*(nn.Linear(128, 64, bias=False) for _ in range(layers)))
    plan = eg.matrices(model, head=None)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return peak_bytes(lambda: eg.equalize_(plan))


def test_peak_memory_is_that_of_one_matrix_for_any_number_of_layers(record_property: Any) -> None:
    """Matrices are computed one at a time. The extra memory is a few copies of the largest one in float64."""
    one, many = peak_of(1), peak_of(12)
    float64_copy = 64 * 128 * 8
    record_property("peak_in_float64_copies", one / float64_copy)
    assert many <= 1.1 * one
    assert 2 * float64_copy < one < 12 * float64_copy


def test_peak_memory_is_that_of_one_call_where_matrices_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sharing forced on a CPU, and batches of at most three layers."""
    one = peak_of(1)
    monkeypatch.setitem(SHARED_ELEMENTS, "cpu", 3 * 64 * 128)
    three, many = peak_of(3), peak_of(12)
    assert many <= 1.1 * three
    assert 2 * one < three < 5 * one
