"""One conformance table for all transforms, and what each of them is."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import loss_of, network

import egalitarian as eg
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Site
from egalitarian.transforms.sketches import sketch_seed

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


def once(transform: Any, grad: Tensor) -> Tensor:
    """One step on a single matrix."""
    weight = nn.Parameter(torch.zeros_like(grad))
    weight.grad = grad.clone()
    eg.equalize_(eg.matrices({"w": weight}, include="w"), transform)
    return weight.grad


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
    kept = grad.clone()
    if isinstance(transform, MatrixTransform):
        out = transform(grad, Site("w", 0, dtype))
    else:
        out, memory = transform(grad, transform.start(grad, None))
        assert {key: value.shape for key, value in memory.items()} == {
            key: value.shape for key, value in transform.start(grad, None).items()
        }
    assert out.dtype == dtype
    assert out.shape == grad.shape
    assert torch.equal(grad, kept)
    assert torch.isfinite(out).all()


@conforming
def test_zero_stays_zero(transform: Any) -> None:
    assert not once(transform, torch.zeros(4, 3)).any()


@conforming
def test_descends(transform: Any) -> None:
    """<T(G), G> > 0: no transform turns the step round."""
    grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    assert (once(transform, grad) * grad).sum() > 0


@conforming
def test_a_non_finite_gradient_stays_and_touches_nothing_else(transform: Any) -> None:
    model, clean = network(), network()
    for each in (model, clean):
        loss_of(each).backward()
    model[0].weight.grad[0, 0] = float("nan")
    poisoned = model[0].weight.grad.clone()
    state = eg.equalize_(eg.matrices(model), transform)
    eg.equalize_(eg.matrices(clean), transform)
    assert torch.equal(model[0].weight.grad.nan_to_num(7.0), poisoned.nan_to_num(7.0))
    for mine, theirs in list(zip(model.parameters(), clean.parameters(), strict=True))[1:]:
        assert torch.equal(mine.grad, theirs.grad)
    for memory in state.tensors.values():
        assert all(torch.isfinite(value).all() for value in memory.values())


@conforming
def test_leaves_the_global_generator_alone(transform: Any) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    once(transform, torch.ones(4, 3))
    assert torch.equal(before, torch.get_rng_state())


@conforming
def test_matrices_or_every_parameter(transform: Any) -> None:
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


def test_an_elementwise_transform_with_a_plan_acts_on_what_it_takes() -> None:
    model = network()
    plan = eg.matrices(model)
    loss_of(model).backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    state = eg.equalize_(plan, eg.Momentum(plan=eg.matrices(model, include="4")))
    changed = [not torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True)]
    assert changed == [False, False, False, False, True, False]
    assert set(state.tensors) == {"4.weight"}


# -- what each of them is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 2), (2, 8), (4, 4)])
def test_scales_are_those_of_torchs_muon(shape: tuple[int, int]) -> None:
    """Read off torch.optim.Muon itself: one step on an orthogonal gradient, whose direction its iteration keeps."""
    grad = eg.polar(torch.randn(shape))
    for ours, theirs in (("spectral", "original"), ("rms", "match_rms_adamw")):
        steps = []
        for adjust in (theirs, None):
            weight = nn.Parameter(torch.zeros(shape))
            weight.grad = grad.clone()
            options = {} if adjust is None else {"adjust_lr_fn": adjust}
            torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, **options).step()
            steps.append(weight.detach().norm())
        base = max(1.0, shape[0] / shape[1]) ** 0.5  # torch's default is "original"
        ratio = once(eg.Polar(scale=ours), grad).norm() / grad.norm()  # type: ignore[arg-type]
        torch.testing.assert_close(ratio, steps[0] / steps[1] * base, rtol=1e-3, atol=0)


def grads(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 2, generator=generator) for _ in range(count)]


def run(transform: Any, gradients: list[Tensor]) -> list[Tensor]:
    weight = nn.Parameter(torch.zeros(3, 2))
    plan, state, out = eg.matrices({"w": weight}, include="w"), None, []
    for grad in gradients:
        weight.grad = grad.clone()
        state = eg.equalize_(plan, transform, state=state)
        out.append(weight.grad.clone())
    return out


def test_grokfast_ema_is_the_published_filter() -> None:
    mean, expected = None, []
    for grad in (gradients := grads(6)):
        mean = grad if mean is None else 0.9 * mean + 0.1 * grad
        expected.append(grad + 2.0 * mean)
    torch.testing.assert_close(run(eg.GrokfastEMA(0.9, 2.0), gradients), expected)


@pytest.mark.parametrize("warmup", [True, False])
def test_grokfast_ma_is_the_published_filter(warmup: bool) -> None:
    expected = []
    for step, grad in enumerate(gradients := grads(7)):
        window = gradients[max(0, step - 2) : step + 1]
        full = len(window) == 3 or not warmup
        expected.append(grad + 5.0 * torch.stack(window).mean(0) if full else grad)
    torch.testing.assert_close(run(eg.GrokfastMA(3, 5.0, warmup), gradients), expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_muons(nesterov: bool) -> None:
    mean, expected = torch.zeros(3, 2), []
    for grad in (gradients := grads(5)):
        mean = 0.95 * mean + 0.05 * grad
        expected.append(0.05 * grad + 0.95 * mean if nesterov else mean)
    torch.testing.assert_close(run(eg.Momentum(0.95, nesterov), gradients), expected)


def test_an_adaptive_rank_is_shown_and_kept() -> None:
    torch.manual_seed(0)
    grad = torch.linalg.qr(torch.randn(6, 4)).Q @ torch.diag(torch.tensor([10.0, 5.0, 0.1, 0.1]))
    assert int((torch.linalg.svdvals(once(eg.LowRankPolar(3), grad)) > 0.5).sum()) == 3
    assert int((torch.linalg.svdvals(once(eg.LowRankPolar(3, share=0.99), grad)) > 0.5).sum()) == 2
    assert eg.LowRankPolar(3, share=0.99).note(6, 4) == "rank 3, or fewer that hold 0.99 of the spectrum"


def test_the_order_of_a_sequence_matters() -> None:
    before, after = run([eg.Momentum(), eg.Polar()], grads(3)), run([eg.Polar(), eg.Momentum()], grads(3))
    torch.testing.assert_close(torch.linalg.svdvals(before[-1]), torch.ones(2))
    assert torch.linalg.svdvals(after[-1]).max() < 0.5


def test_two_of_a_kind_keep_apart() -> None:
    doubled = run([eg.GrokfastEMA(0.9), eg.GrokfastEMA(0.5)], grads(4))
    torch.testing.assert_close(doubled, run(eg.GrokfastEMA(0.5), run(eg.GrokfastEMA(0.9), grads(4))))


def test_sketches_depend_on_seed_name_and_step_and_nothing_else() -> None:
    assert len({sketch_seed(seed, name, step) for seed in (0, 1) for name in "ab" for step in (None, 0, 1)}) == 12
    same = [torch.diag(torch.linspace(1, 0.9, 6)) + 0.01 * torch.randn(6, 6)] * 3

    def seen(transform: eg.LowRankPolar, name: str = "w") -> list[Tensor]:
        return [transform(grad, Site(name, step, torch.float32)) for step, grad in enumerate(same)]

    fresh, fixed = seen(eg.LowRankPolar(2)), seen(eg.LowRankPolar(2, fixed=True))
    assert not torch.equal(fresh[0], fresh[1])
    assert torch.equal(fixed[0], fixed[1])
    assert not torch.equal(fresh[0], seen(eg.LowRankPolar(2), "v")[0])
    assert not torch.equal(fresh[0], seen(eg.LowRankPolar(2, seed=1))[0])
    torch.manual_seed(99)
    assert torch.equal(fresh[2], seen(eg.LowRankPolar(2))[2])


def test_lowrank_caps_where_it_may() -> None:
    grad = torch.randn(4, 3)
    torch.testing.assert_close(once(eg.LowRankPolar(9, cap=True), grad), eg.polar(grad))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: eg.Polar(compute=torch.int8), ValueError, "compute must be one of .*got torch.int8"),
        (lambda: eg.Polar(compute="fp8"), ValueError, "got 'fp8'"),
        (lambda: eg.Polar(rtol=-1.0), ValueError, r"rtol must be in \[0, 1\), got -1.0"),
        (lambda: eg.Polar(floor=-1.0), ValueError, "floor must be a number >= 0, got -1.0"),
        (lambda: eg.Polar(method="qr"), ValueError, "method must be one of .*got 'qr'"),
        (lambda: eg.Polar(method="eigh", rtol=1e-9), ValueError, "rtol must be >= 5e-07 for method 'eigh'"),
        (lambda: eg.Polar(scale="muon"), ValueError, "scale must be None, 'spectral' or 'rms', got 'muon'"),
        (lambda: eg.LowRankPolar(0), ValueError, "rank must be an integer >= 1, got 0"),
        (lambda: eg.LowRankPolar(2.5), ValueError, "got 2.5"),
        (lambda: eg.LowRankPolar(2, share=1.5), ValueError, r"share must be in \(0, 1\], got 1.5"),
        (lambda: eg.LowRankPolar(2, share="x"), TypeError, "share must be in"),
        (lambda: eg.LowRankPolar(2, iterations=0), ValueError, "iterations must be an integer >= 1, got 0"),
        (lambda: eg.LowRankPolar(2, oversample=-1), ValueError, "oversample must be an integer >= 0, got -1"),
        (lambda: eg.RowNorm(0.0), ValueError, "floor must be a number > 0, got 0.0"),
        (lambda: eg.GrokfastEMA(alpha=1.0), ValueError, r"alpha must be in \[0, 1\), got 1.0"),
        (lambda: eg.GrokfastEMA(lamb=-1.0), ValueError, "lamb must be a number >= 0, got -1.0"),
        (lambda: eg.GrokfastMA(0), ValueError, "window must be an integer >= 1, got 0"),
        (lambda: eg.Momentum(1.0), ValueError, r"beta must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_settings_are_refused_at_construction(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
