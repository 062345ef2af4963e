"""What optimizers, scalers, schedulers and compilers do to a hook, one test per fact. The singular values of the update
must be 1 at the moment of the update."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import batch, loss_of, network, parameters, same, singular_values, train

import egalitarian as eg


def assert_equalised(updates: list[Tensor], size: float = 1.0) -> None:
    for update in updates:
        values = singular_values(update)
        torch.testing.assert_close(values, torch.full_like(values, size), rtol=1e-4, atol=0)


def hidden_updates(model: nn.Sequential, before: list[Tensor]) -> list[Tensor]:
    """How far the two hidden weight matrices have moved."""
    now = parameters(model)
    return [before[index] - now[index] for index in (0, 2)]


# -- closures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_closure_makes_the_gradients_first(by_keyword: bool) -> None:
    with_closure, without = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in (with_closure, without)]
    for model, optimizer in zip((with_closure, without), optimizers, strict=True):
        eg.attach(optimizer, model)
    before = parameters(with_closure)
    losses = []

    def closure() -> Tensor:
        optimizers[0].zero_grad()
        loss = loss_of(with_closure)
        loss.backward()
        losses.append(loss)
        return loss

    returned = optimizers[0].step(closure=closure) if by_keyword else optimizers[0].step(closure)
    assert returned is losses[0]
    assert len(losses) == 1
    assert_equalised(hidden_updates(with_closure, before))
    train(without, optimizers[1], 1)
    assert same(with_closure, without)


def test_a_closure_works_under_no_grad() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    before = parameters(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with torch.no_grad():
        optimizer.step(closure)
    assert_equalised(hidden_updates(model, before))


def test_lbfgs_sees_equalised_gradients_at_every_evaluation() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=5)
    egd = eg.attach(optimizer, model)
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert evaluations > 1
    assert egd.state_dict()["step"] == evaluations
    assert_equalised([model[0].weight.grad, model[2].weight.grad])


# -- mixed precision --------------------------------------------------------------------------------------------------

SCALED = [
    pytest.param(torch.optim.SGD, {}, id="sgd"),
    pytest.param(torch.optim.SGD, {"foreach": True}, id="sgd foreach"),
    pytest.param(torch.optim.SGD, {"fused": True}, id="sgd fused"),
]


def scaled_step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, unscale: bool) -> None:
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(("kind", "options"), SCALED)
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_leaves_the_step_at_full_size(kind: Any, options: dict[str, Any], unscale: bool) -> None:
    model = network()
    optimizer = kind(model.parameters(), lr=1.0, **options)
    egd = eg.attach(optimizer, model)
    before = parameters(model)
    scaled_step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale)
    assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["compute"] == "torch.float16"


@pytest.mark.parametrize("fused", [False, True])
def test_a_transform_that_is_not_scale_free_sees_unscaled_gradients(fused: bool) -> None:
    scaled, plain = network(), network()
    one = torch.optim.SGD(scaled.parameters(), lr=0.1, fused=fused)
    other = torch.optim.SGD(plain.parameters(), lr=0.1, fused=fused)
    for model, optimizer in ((scaled, one), (plain, other)):
        eg.attach(optimizer, model, [eg.RowNorm(0.5), eg.GrokfastEMA()], decay_before=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        scaled_step(scaled, one, scaler, unscale=False)
        other.zero_grad()
        loss_of(plain).backward()
        other.step()
    for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("kind", "options"), [*SCALED, pytest.param(torch.optim.AdamW, {"fused": True}, id="adamw fused")])
def test_an_overflow_touches_neither_gradients_nor_state(kind: Any, options: dict[str, Any]) -> None:
    model = network()
    optimizer = kind(model.parameters(), lr=0.1, **options)
    egd = eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_step(model, optimizer, scaler, unscale=False)
    before, saved = parameters(model), copy.deepcopy(egd.state_dict())
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    model[0].weight.grad[1, 1] = float("inf")
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    scaler.step(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(model), strict=True))
    if options.get("fused"):
        assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    now = egd.state_dict()
    assert now["step"] == saved["step"]
    for name, memory in saved["tensors"].items():
        assert all(torch.equal(value, now["tensors"][name][key]) for key, value in memory.items())


def test_float16_gradients_under_a_fused_scaler_are_refused() -> None:
    weight = nn.Parameter(torch.randn(4, 3, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    eg.attach(optimizer, eg.matrices({"w": weight}, include="w"))
    weight.grad = torch.randn(4, 3).half()
    optimizer.grad_scale = torch.tensor(65536.0)
    with pytest.raises(TypeError, match="wider than float16"):
        optimizer.step()


def test_a_disabled_scaler_changes_nothing() -> None:
    model, plain = network(), network()
    optimizer, bare = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(plain.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    eg.attach(bare, plain)
    scaled_step(model, optimizer, torch.amp.GradScaler("cpu", enabled=False), unscale=False)
    train(plain, bare, 1)
    assert same(model, plain)
    assert egd.state_dict()["compute"] is None


def test_egd_knows_a_grad_scaler_too() -> None:
    """Under a scaler the cut-off is float16's: a direction at 3e-4 of the largest is noise there."""
    updates = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=2.0), torch.amp.GradScaler("cpu", enabled=False)):
        weight = nn.Parameter(torch.zeros(2, 2))
        optimizer = eg.EGD([weight], lr=1.0)
        scaler.scale((weight * torch.tensor([[1.0, 0.0], [0.0, 3e-4]])).sum()).backward()
        scaler.step(optimizer)
        updates.append(-weight.detach())
    torch.testing.assert_close(updates[0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(updates[1], torch.eye(2))


# -- the order of things ----------------------------------------------------------------------------------------------


def test_accumulation_is_equalised_once_on_the_whole_gradient() -> None:
    accumulated, whole = network(), network()
    one = torch.optim.SGD(accumulated.parameters(), lr=1.0)
    other = torch.optim.SGD(whole.parameters(), lr=1.0)
    eg.attach(one, accumulated)
    eg.attach(other, whole)
    x, y = batch()
    for part in (slice(0, 16), slice(16, 32)):
        (nn.functional.cross_entropy(accumulated(x[part]), y[part]) / 2).backward()
    one.step()
    nn.functional.cross_entropy(whole(x), y).backward()
    other.step()
    for a, b in zip(accumulated.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_clipping_before_the_step_does_not_shrink_it() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    before = parameters(model)
    loss_of(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    optimizer.step()
    assert_equalised(hidden_updates(model, before))


def test_a_scheduler_sets_the_size_of_the_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        before = parameters(model)
        train(model, optimizer, 1, start=step)
        scheduler.step()
        assert_equalised(hidden_updates(model, before), 0.5**step)


def test_other_hooks_still_run_once_each() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    eg.attach(optimizer, model)
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    train(model, optimizer, 2)
    assert calls == ["pre", "post"] * 2


# -- groups, freezing, ties -------------------------------------------------------------------------------------------


def test_a_group_added_later_is_equalised() -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    assert "(not in the optimizer)" in str(egd.plan)
    assert str(egd.plan).endswith("; 1 of them not in the optimizer")
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 2.0})
    assert "(not in the optimizer)" not in str(egd.plan)
    before = parameters(model)
    train(model, optimizer, 1)
    first, second = hidden_updates(model, before)
    assert_equalised([first], 1.0)
    assert_equalised([second], 2.0)


def test_a_parameter_that_no_plan_knows_takes_its_plain_step() -> None:
    model = network()
    stranger = nn.Parameter(torch.ones(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    optimizer.add_param_group({"params": [stranger]})
    loss_of(model).backward()
    stranger.grad = torch.full((3, 3), 0.25)
    with pytest.warns(UserWarning, match=r"'param_groups\[1\].params\[0\]' joined the optimizer but not the plan"):
        optimizer.step()
    assert torch.equal(stranger.detach(), torch.full((3, 3), 0.75))


def test_freezing_and_unfreezing() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    model[0].requires_grad_(False)
    before = parameters(model)
    train(model, optimizer, 1)
    assert torch.equal(before[0], model[0].weight)
    model[0].requires_grad_(True)
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))


def test_a_missing_gradient_is_left_missing() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()])
    loss_of(model).backward()
    model[0].weight.grad = None
    before = parameters(model)
    optimizer.step()
    assert model[0].weight.grad is None
    assert torch.equal(before[0], model[0].weight)
    assert_equalised([model[2].weight.grad - 0])


def test_a_tied_weight_is_equalised_once() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    assert [entry.name for entry in egd.plan.taken] == ["0.weight"]
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised([before[0] - parameters(model)[0]])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_in_any_memory_format(memory_format: torch.memory_format) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    model(torch.randn(1, 3, 6, 6))
    model = model.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    before = parameters(model)
    model(torch.randn(4, 3, 6, 6).to(memory_format=memory_format)).square().sum().backward()
    strides = model[0].weight.grad.stride()
    optimizer.step()
    assert model[0].weight.grad.stride() == strides
    now = parameters(model)
    assert_equalised([before[0] - now[0], (before[2] - now[2]).transpose(0, 1)])


def test_fused_attention_weights_are_three_matrices() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    before = model.self_attn.in_proj_weight.detach().clone()
    model(torch.randn(4, 5, 8)).square().sum().backward()
    optimizer.step()
    assert_equalised(list((before - model.self_attn.in_proj_weight.detach()).chunk(3)))


# -- compilation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["attached", "EGD"])
def test_compiled_model_and_compiled_step(backend: str, kind: str) -> None:
    torch._dynamo.reset()
    eager, model = network(), network()
    compiled = torch.compile(model, backend=backend)
    optimizers: list[torch.optim.Optimizer] = []
    for each in (eager, compiled):
        if kind == "EGD":
            optimizers.append(eg.EGD(eg.matrices(each), lr=0.1))
        else:
            optimizers.append(torch.optim.SGD(each.parameters(), lr=0.1))
            eg.attach(optimizers[-1], each)
    step = torch.compile(optimizers[1].step, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo's own
        for number in range(3):
            optimizers[1].zero_grad()
            loss_of(compiled, number).backward()
            step()
    train(eager, optimizers[0], 3)
    for a, b in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_wrapping_the_model_changes_no_name() -> None:
    model = network()
    plain = [entry.name for entry in eg.matrices(model)]
    assert [entry.name for entry in eg.matrices(torch.compile(model, backend="eager"))] == plain
    assert [entry.name for entry in eg.matrices(nn.DataParallel(model))] == plain


# -- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_the_optimizer_says_that_it_lost_egd(copied: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    with pytest.warns(UserWarning, match=r"call egalitarian\.attach on the copy"):
        bare = copied(optimizer)
    assert not hasattr(bare, "_egalitarian")
    egd.remove()
    copied(optimizer)  # silent again: warnings are errors here


def test_an_attachment_itself_cannot_be_copied() -> None:
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(egd)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_of_egd_goes_on_as_the_original(copied: Any) -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.1, transform=[eg.GrokfastEMA(), eg.LowRankPolar(2)])
    train(model, optimizer, 3)
    twin, twins_optimizer = copied((model, optimizer))
    train(model, optimizer, 3, start=3)
    train(twin, twins_optimizer, 3, start=3)
    assert same(model, twin)


# -- frameworks' wrappers ---------------------------------------------------------------------------------------------


def test_a_wrapped_optimizer_is_unwrapped() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As Accelerate's: an Optimizer by type, without having been initialised as one."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert eg.attach(Wrapper(optimizer), model).optimizer is optimizer
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))
