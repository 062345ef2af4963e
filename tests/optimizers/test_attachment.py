"""`attach`: each update of the hidden matrices has singular values of 1, whatever closures, scalers, schedulers and other
hooks do before it."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import assert_equalised, batch, hidden_updates, loss_of, network, parameters, same, singular_values, train

import egalitarian as eg


def test_one_sgd_step_is_w_minus_lr_u_vt() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    eg.attach(optimizer, model)
    before = parameters(model)
    loss_of(model).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.step()
    for index, (old, new, grad) in enumerate(zip(before, model.parameters(), gradients, strict=True)):
        if index in (0, 2):  # the hidden weight matrices
            u, _, vh = torch.linalg.svd(grad.double(), full_matrices=False)
            grad = u @ vh
        torch.testing.assert_close(new.detach().double(), old.double() - 0.3 * grad.double())


# -- closures ----------------------------------------------------------------------------------------------------------


def test_a_step_pre_hook_runs_before_the_closure_with_grad_mode_on() -> None:
    """A fact of torch, for which `attach` wraps the closure."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[tuple[bool, Tensor | None]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append((torch.is_grad_enabled(), model[0].weight.grad)))
    gradients = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        gradients.append(model[0].weight.grad)
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert [enabled for enabled, _ in seen] == [True, True]
    assert seen[0][1] is None
    assert seen[1][1] is gradients[0], "the gradient of the last step"


def test_a_transformed_gradient_carries_no_graph() -> None:
    """Although hooks run with grad mode on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()], decay_before=0.1)
    train(model, optimizer, 2)
    assert not any(parameter.grad.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_closure_computes_the_gradients_before_they_are_equalised(by_keyword: bool) -> None:
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


# -- mixed precision ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("fused", [False, True])
def test_hooks_see_scaled_gradients_only_if_the_optimizer_is_fused(fused: bool) -> None:
    """A fact of torch: a fused optimizer divides by the scale in its own step, others get gradients divided before."""
    model, plain = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    seen: list[Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].weight.grad.clone()))
    scaled_step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale=False)
    loss_of(plain).backward()
    torch.testing.assert_close(seen[0], plain[0].weight.grad * (1024 if fused else 1))


@pytest.mark.parametrize(("kind", "options"), SCALED)
@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaled_step_has_singular_values_of_lr(kind: Any, options: dict[str, Any], unscale: bool) -> None:
    model = network()
    optimizer = kind(model.parameters(), lr=1.0, **options)
    egd = eg.attach(optimizer, model, eg.Polar())
    before = parameters(model)
    scaled_step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale)
    assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["compute"] == "torch.float16"


@pytest.mark.parametrize(("kind", "options"), SCALED)
@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaled_step_of_the_default_is_coarse(kind: Any, options: dict[str, Any], unscale: bool) -> None:
    """The gradients are those of a float16 pass. The scale does not matter: the steps are those without a scaler."""
    model, plain = network(), network()
    optimizer = kind(model.parameters(), lr=1.0, **options)
    other = torch.optim.SGD(plain.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    eg.attach(other, plain, eg.Polar(precision="coarse"))
    before = parameters(model)
    scaled_step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), unscale)
    loss_of(plain).backward()
    other.step()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    values = torch.cat([singular_values(update) for update in hidden_updates(model, before)])
    assert values.max() <= 1.25
    assert (values - 1).abs().max() > 1e-2


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
def test_an_overflow_changes_neither_gradients_nor_state(kind: Any, options: dict[str, Any]) -> None:
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


# -- schedulers, clipping, accumulation, other hooks -------------------------------------------------------------------


def test_an_accumulated_gradient_is_equalised_once() -> None:
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


def test_a_pre_hook_that_is_registered_after_attach_clips_what_was_equalised() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    eg.attach(optimizer, model)
    optimizer.register_step_pre_hook(lambda *_: [each.grad.mul_(0.1) for each in model.parameters()] and None)
    before = parameters(model)
    loss_of(model).backward()
    optimizer.step()
    assert_equalised(hidden_updates(model, before), size=0.1)


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


# -- matrices inside parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_equalised_in_any_memory_format(memory_format: torch.memory_format) -> None:
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


# -- switching, removing, measuring ------------------------------------------------------------------------------------


def test_decay_before_stays_on_after_a_switch_off() -> None:
    model, bare_model = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, decay_before=0.3)
    egd.off()
    taken = [entry.parameter for entry in eg.matrices(bare_model).taken]
    rest = [p for p in bare_model.parameters() if all(p is not each for each in taken)]
    bare = torch.optim.SGD([{"params": taken, "weight_decay": 0.3}, {"params": rest}], lr=0.1)
    train(model, optimizer, 3)
    train(bare_model, bare, 3)
    assert same(model, bare_model)


def test_a_removed_attachment_leaves_the_bare_optimizer() -> None:
    model, bare_model = network(), network()
    optimizer, bare = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(bare_model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    egd.off()
    assert egd.active is False
    egd.on()
    assert egd.active is True
    egd.remove()
    egd.remove()
    train(model, optimizer, 2)
    train(bare_model, bare, 2)
    assert same(model, bare_model)
    eg.attach(optimizer, model)


def test_the_repr_says_whether_egd_is_on_its_steps_and_its_share() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    train(model, optimizer, 2)
    share = 100 * (48 + 40) / sum(parameter.numel() for parameter in model.parameters())
    tail = f"step=2, {share:.1f} % of the entries taken)"
    assert repr(egd) == f"Attachment(Polar(precision='auto') on SGD, active=True, {tail}"
    egd.off()
    assert repr(egd) == f"Attachment(Polar(precision='auto') on SGD, active=False, {tail}"
    egd.remove()
    assert repr(egd) == f"Attachment(Polar(precision='auto') removed from SGD, was active=False, {tail}"


def test_the_repr_of_a_stack_counts_the_elements_that_are_on() -> None:
    weights = {"w": nn.Parameter(torch.zeros(5, 3, 2))}
    egd = eg.attach(torch.optim.SGD(weights.values(), lr=0.1), eg.matrices(weights, include="w", stack=True))
    egd.off([True, False, True, False, False])
    assert "active=3 of 5, step=0, 100.0 % of the entries taken" in repr(egd)


def test_a_with_block_removes_the_attachment_even_after_an_error() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError), eg.attach(optimizer, model):
        raise KeyError
    eg.attach(optimizer, model)


def test_an_attachment_cannot_be_copied() -> None:
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(egd)


def test_spectra_are_those_of_the_plain_gradients_and_not_saved() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, spectrum_every=3)
    gradients = {}
    for step in range(7):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        gradients[step] = model[0].weight.grad.clone()
        optimizer.step()
    kept = egd.spectrum()
    assert set(kept) == {"0.weight", "2.weight"}
    assert list(kept["0.weight"]) == [0, 3, 6]
    for step, spectrum in kept["0.weight"].items():
        torch.testing.assert_close(spectrum.values, torch.linalg.svdvals(gradients[step].double()))
    assert "spectrum" not in "".join(egd.state_dict())


def live_tensors() -> list[Tensor]:
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]


def test_exact_egd_keeps_no_tensor_between_steps() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, decay_before=0.01)
    train(model, optimizer, 2)
    old = live_tensors()  # keeps them alive, so that no new tensor gets an old id
    train(model, optimizer, 3, start=2)
    expected = {id(each) for each in old} | {id(parameter.grad) for parameter in model.parameters()}
    assert [tuple(each.shape) for each in live_tensors() if id(each) not in expected] == []
    assert egd.state_dict()["tensors"] == {}
