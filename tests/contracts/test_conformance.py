"""The conformance table: what every transform must obey, one row per transform."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from toy import loss_of, network, transformed

import egalitarian as eg
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Site

TABLE: dict[str, Any] = {
    "Polar": eg.Polar(),
    "Polar svd": eg.Polar(method="svd"),
    "Polar floor": eg.Polar(floor=1e-6),
    "Polar spectral": eg.Polar(scale="spectral"),
    "Polar rms": eg.Polar(scale="rms"),
    "LowRankPolar": eg.LowRankPolar(2),
    "LowRankPolar share": eg.LowRankPolar(3, share=0.9),
    "RowNorm": eg.RowNorm(),
    "Natural": eg.Natural(),
    "Identity": eg.Identity(),
    "Momentum": eg.Momentum(),
    "Nesterov": eg.Momentum(nesterov=True),
    "GrokfastEMA": eg.GrokfastEMA(),
    "GrokfastMA": eg.GrokfastMA(3),
    "GrokfastMA cold": eg.GrokfastMA(3, warmup=False),
}

conforming = pytest.mark.parametrize("transform", TABLE.values(), ids=TABLE)


@conforming
def test_is_a_frozen_value_that_prints_as_it_is_written(transform: Any) -> None:
    assert eval(repr(transform), vars(eg)) == transform
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert hash(transform) == hash(dataclasses.replace(transform))
    with pytest.raises(dataclasses.FrozenInstanceError):
        transform.rtol = 0.5


@conforming
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_keeps_dtype_shape_and_input(transform: Any, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    grad = torch.randn(shape).to(dtype)
    copy = grad.clone()
    if isinstance(transform, MatrixTransform):
        out = transform(grad, Site("w", 0, dtype))
    else:
        out, memory = transform(grad, transform.start(grad, None))
        assert {key: value.shape for key, value in memory.items()} == {
            key: value.shape for key, value in transform.start(grad, None).items()
        }
    assert out.dtype == dtype
    assert out.shape == grad.shape
    assert torch.equal(grad, copy)
    assert torch.isfinite(out).all()


@conforming
def test_zero_stays_zero(transform: Any) -> None:
    assert not transformed(transform, torch.zeros(4, 3)).any()


@conforming
def test_descends(transform: Any) -> None:
    """<T(G), G> > 0: no transform reverses the step."""
    grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    assert (transformed(transform, grad) * grad).sum() > 0


@conforming
def test_a_non_finite_gradient_stays_unchanged_and_affects_no_other(transform: Any) -> None:
    model, clean = network(), network()
    for each in (model, clean):
        loss_of(each).backward()
    model[0].weight.grad[0, 0] = float("nan")
    before = model[0].weight.grad.clone()
    state = eg.equalize_(eg.matrices(model), transform)
    eg.equalize_(eg.matrices(clean), transform)
    assert torch.equal(model[0].weight.grad.nan_to_num(7.0), before.nan_to_num(7.0))
    for mine, theirs in list(zip(model.parameters(), clean.parameters(), strict=True))[1:]:
        assert torch.equal(mine.grad, theirs.grad)
    for memory in state.tensors.values():
        assert all(torch.isfinite(value).all() for value in memory.values())


@conforming
def test_leaves_the_global_generator_unchanged(transform: Any) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    transformed(transform, torch.ones(4, 3))
    assert torch.equal(before, torch.get_rng_state())


@conforming
def test_acts_on_planned_matrices_or_as_a_filter_on_every_parameter(transform: Any) -> None:
    model = network()
    loss_of(model).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    eg.equalize_(eg.matrices(model), transform)
    changed = [not torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True)]
    if isinstance(transform, eg.Identity) or transform == eg.GrokfastMA(3):
        assert not any(changed)
    elif isinstance(transform, ElementwiseTransform):
        assert all(changed)
    else:
        assert changed == [True, False, True, False, False, False]
