"""The host optimizer: the caller of its step is recognised, copies warn, and wrappers are opened."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from toy import assert_equalised, hidden_updates, loss_of, network, parameters, train

import egalitarian as eg
from egalitarian.optimizers.host import Caller, caller_of_step


class Derived(torch.optim.SGD):
    """Its step calls the step of its base class, which torch has wrapped in hooks as well."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


PLAIN = Caller(nested=False, name=None)


def recorded(optimizer: torch.optim.Optimizer) -> list[Caller]:
    """The callers of its steps, as a step pre-hook sees them."""
    callers: list[Caller] = []
    optimizer.register_step_pre_hook(lambda *_: callers.append(caller_of_step(optimizer)))
    return callers


def host(kind: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # torch wraps the step of a class with its first instance
    model = network()
    loss_of(model).backward()
    return model, kind(model.parameters(), lr=0.1, **options)


def test_plain_code_is_no_special_caller() -> None:
    _, optimizer = host()
    callers = recorded(optimizer)
    optimizer.step()
    optimizer.step(lambda: 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it wraps the step once more
    optimizer.step()
    scheduler.step()
    assert callers == [PLAIN] * 3
    assert caller_of_step(optimizer) == PLAIN, "outside of any step"


def test_the_depth_of_the_calling_code_does_not_matter() -> None:
    _, optimizer = host()
    callers = recorded(optimizer)

    def deep(frames: int) -> None:
        deep(frames - 1) if frames else optimizer.step()

    deep(200)
    assert callers == [PLAIN]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_an_enabled_scaler_is_recognised_unless_the_optimizer_is_fused(options: dict[str, Any]) -> None:
    for enabled, unscale in ((True, False), (True, True), (False, False)):
        model, optimizer = host(**options)
        callers = recorded(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=enabled)
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        direct = enabled and options.get("fused")  # it divides by the scale itself, so the scaler calls its step directly
        assert callers == [Caller(False, "scaler" if enabled and not direct else None)]


def test_torchs_checkpoint_helper_is_recognised() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model, optimizer = host(momentum=0.9)
    optimizer.zero_grad()
    callers = recorded(optimizer)
    get_optimizer_state_dict(model, optimizer)
    assert callers == [Caller(False, "checkpoint")]


def test_the_step_of_a_base_class_is_nested_in_that_of_a_subclass() -> None:
    _, optimizer = host(Derived)
    callers = recorded(optimizer)
    optimizer.step()
    assert callers == [PLAIN, Caller(nested=True, name=None)]


def test_a_scaler_is_recognised_from_a_nested_step() -> None:
    model, optimizer = host(Derived)
    callers = recorded(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    assert callers == [Caller(False, "scaler"), Caller(True, "scaler")]


def test_the_step_of_another_optimizer_does_not_nest() -> None:
    """As with wrappers such as SAM or Lookahead, which are optimizers and call another one."""
    model, inner = host()

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return inner.step(closure)

    callers = recorded(inner)
    eg.attach(inner, model)
    Outer(model.parameters(), lr=0.1).step()
    assert callers == [PLAIN]
    assert_equalised([model[0].weight.grad, model[2].weight.grad])


# -- copies and wrappers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copying_the_optimizer_warns_that_the_copy_lacks_egd(copied: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model)
    with pytest.warns(UserWarning, match=r"call egalitarian\.attach on the copy") as caught:
        bare = copied(optimizer)
    assert caught[0].filename == __file__, "not in Python's own copy.py"
    assert not hasattr(bare, "_egalitarian")
    egd.remove()
    copied(optimizer)  # no warning: those are errors here


def test_a_wrapped_optimizer_is_unwrapped() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As in Accelerate: an Optimizer by type that is not initialised as one."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert eg.attach(Wrapper(optimizer), model).optimizer is optimizer
    before = parameters(model)
    train(model, optimizer, 1)
    assert_equalised(hidden_updates(model, before))


class SAM(torch.optim.Optimizer):
    """As in pytorch_optimizer and in the implementation that most copy: two steps around a second gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["old"] = parameter.clone()
            parameter.add_(parameter.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter].pop("old"))
        self.base_optimizer.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


@pytest.mark.parametrize("by_closure", [True, False])
def test_sam_is_equalised_however_it_is_stepped(by_closure: bool) -> None:
    """Its base optimizer makes the update, at the gradient of the perturbed weights."""
    model = network()
    optimizer = SAM(model.parameters(), lr=1.0)
    egd = eg.attach(optimizer, model)
    for step in range(3):
        before = parameters(model)

        def closure(step: int = step) -> None:
            optimizer.zero_grad()
            loss_of(model, step).backward()

        closure()
        if by_closure:
            optimizer.step(closure)
        else:
            optimizer.first_step()
            closure()
            optimizer.second_step()
        assert_equalised(hidden_updates(model, before))
    assert egd.state_dict()["step"] == 3
    assert optimizer.state_dict()["egalitarian"]["step"] == 3
    for second in (optimizer, optimizer.base_optimizer):
        with pytest.raises(ValueError, match="at most one attachment"):
            eg.attach(second, model)
    egd.remove()
    assert not optimizer.base_optimizer._optimizer_step_pre_hooks


def test_an_optimizer_that_updates_during_backward_is_refused() -> None:
    class Lomo(torch.optim.SGD):
        def fused_backward(self, loss: torch.Tensor, lr: float) -> None: ...

    model = network()
    with pytest.raises(
        TypeError, match=r"must update in step\(\), got Lomo, which updates during backward; use SGD or AdamW"
    ):
        eg.attach(Lomo(model.parameters(), lr=0.1), model)


def test_the_doubts_of_a_plan_are_said_once() -> None:
    model = network()
    plan = dataclasses.replace(eg.matrices(model), doubts=("'4.weight' may be the head; pass head=...", "a second"))
    with pytest.warns(UserWarning, match=r"'4\.weight' may be the head; pass head=\.\.\.; a second") as caught:
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), plan)
    assert caught[0].filename == __file__
    eg.attach(torch.optim.AdamW(model.parameters()), plan)
    eg.EGD(plan, lr=0.1)
    other = dataclasses.replace(plan)
    with pytest.warns(UserWarning, match="may be the head") as caught:
        eg.EGD(other.groups(), lr=0.1)
    assert caught[0].filename == __file__
    eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), dataclasses.replace(plan), eg.Momentum())  # takes all alike


def test_matrices_that_the_model_has_replaced_warn_at_the_first_step() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    for index in (0, 2):
        model[index].weight = nn.Parameter(model[index].weight.detach().clone())
    loss_of(model).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
        optimizer.step()
    messages = [str(each.message) for each in caught if "no longer has" in str(each.message)]
    assert len(messages) == 1
    assert messages[0].startswith("the model no longer has '0.weight', '2.weight' that the optimizer holds: the model was")


def test_a_step_inside_a_step_of_the_same_class_is_a_step_of_its_own() -> None:
    """Only the step of a base class is nested: torch has run the hooks for it already."""
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    steps: list[int] = []

    class Twice(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            steps.append(len(steps))
            if len(steps) == 1:
                weight.grad = torch.full((3, 2), 2.0)
                self.step()

    optimizer = Twice([weight], {})
    eg.attach(optimizer, eg.matrices({"w": weight}, include="w"))
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    assert steps == [0, 1]
    assert torch.linalg.matrix_norm(weight.grad, 2).item() == pytest.approx(1)


def test_the_error_for_a_nonfinite_gradient_names_the_argument_that_keeps_it() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    eg.attach(optimizer, layer, on_nonfinite="raise")
    layer.weight.grad = torch.full((2, 2), torch.nan)
    with pytest.raises(FloatingPointError, match="pass on_nonfinite='keep' to leave such gradients unchanged"):
        optimizer.step()


@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors_are_refused_with_the_way_out(inside: bool) -> None:
    """The model is made under the mode; EGD is added under it or after it."""
    mode = FakeTensorMode()
    with mode:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mode if inside else contextlib.nullcontext():
        for add in (lambda: eg.attach(optimizer, model), lambda: eg.EGD(eg.matrices(model), lr=0.1)):
            with pytest.raises(TypeError, match=r"values, got fake ones of a FakeTensorMode; .* on the meta device"):
                add()
    assert not optimizer._optimizer_step_pre_hooks
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_real_model_is_refused_under_the_mode() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with FakeTensorMode(), pytest.raises(TypeError, match="leave the mode"):
        eg.attach(optimizer, model)
    eg.attach(optimizer, model)


def test_egd_makes_steps_on_the_meta_device() -> None:
    model = network().to("meta")
    optimizer = eg.EGD(eg.matrices(model), lr=0.1)
    model(torch.zeros(4, 6, device="meta")).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["egd_steps"] == 1
