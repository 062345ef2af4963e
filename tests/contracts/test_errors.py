"""Errors name the rule, the value and the way out. EGD warns where it has no effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from toy import loss_of, network, parameters, train

import egalitarian as eg


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transform": eg.Polar}, TypeError, r"call it: Polar\(...\)"),
        ({"transform": "polar"}, TypeError, "got 'polar'"),
        ({"transform": "coarse"}, TypeError, r"got 'coarse'; use Polar\(precision='coarse'\)"),
        ({"transform": []}, ValueError, "empty sequence"),
        (
            {"transform": eg.LowRankPolar(7)},
            ValueError,
            r"in \[1, 6\] for '0.weight' of shape \(8, 6\), got 7",
        ),
        ({"decay_before": -0.1}, ValueError, "decay_before must be a number >= 0, got -0.1"),
        ({"until": 0.95}, TypeError, r"until must be an Until, got 0.95; for example Until\(0.95\)"),
        ({"on_nonfinite": "skip"}, ValueError, "on_nonfinite must be 'keep' or 'raise', got 'skip'"),
        ({"spectrum_every": -1}, ValueError, "spectrum_every must be an integer >= 0, got -1"),
    ],
)
def test_options_of_attach_out_of_range_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    model = network()
    with pytest.raises(error, match=message):
        eg.attach(sgd(model), model, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eg.Polar("coarse"), r"Polar must have .* before 'coarse', .*; for example Polar\(precision='coarse'\)"),
        (lambda: eg.Polar(torch.bfloat16), r"for example Polar\(compute=torch.bfloat16\)"),
        (lambda: eg.LowRankPolar(5, True, 3), r"before 3, .*; for example LowRankPolar\(5, cap=True, iterations=3\)"),
        (lambda: eg.Polar("rough"), "name it: compute, rtol, floor, method, precision, scale"),
        (lambda: eg.RowNorm(0.01, 3), "before 3, got it without; leave it out"),
        (lambda: eg.Identity(3), "Identity must have a keyword before 3, got it without; name it: plan"),
    ],
)
def test_a_setting_without_its_keyword_is_refused_with_the_keyword(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_a_misspelt_setting_of_a_group_warns_in_attach_and_in_egd() -> None:
    """torch keeps any key of a group, so without this nothing would ever say that there is no decay."""
    plan = eg.matrices(network())
    groups = plan.groups(taken={"weight_decy": 0.1})
    with pytest.warns(UserWarning, match="'weight_decy', which SGD does not read; did you mean 'weight_decay'"):
        eg.attach(torch.optim.SGD(groups, lr=0.1), plan)
    with pytest.warns(UserWarning, match="'decay_befor', which EGD does not read; did you mean 'decay_before'"):
        eg.EGD(plan.groups(taken={"decay_befor": 0.1}), lr=0.1)


def test_a_misspelt_setting_of_a_group_that_is_added_later_warns() -> None:
    model, more = network(), nn.Linear(2, 2)
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    optimizer.add_param_group({"params": more.bias, "momentun": 0.9})
    loss_of(model).backward()
    with pytest.warns(UserWarning, match="did you mean 'momentum'"):
        optimizer.step()


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
        lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.1),
    ],
)
def test_settings_of_schedulers_and_of_users_do_not_warn(schedule: Callable[[torch.optim.Optimizer], object]) -> None:
    plan = eg.matrices(network())
    own = {"name": "body", "lr_scale": 0.5, "use_muon": True, "wd_mult": 1.0, "min_lr": 0.0}
    for optimizer in (
        torch.optim.SGD(plan.groups(taken=own), lr=0.1, momentum=0.9),
        torch.optim.AdamW(plan.groups(taken=own)),
        eg.EGD(plan.groups(taken=own), lr=0.1, momentum=0.9),
    ):
        schedule(optimizer)
        if not isinstance(optimizer, eg.EGD):
            eg.attach(optimizer, plan)


def test_optimizers_and_models_that_do_not_fit_are_refused() -> None:
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    with pytest.raises(ValueError, match="one attachment, got a second"):
        eg.attach(optimizer, model)
    with pytest.raises(ValueError, match=r"got one without '0\.weight'"):
        eg.attach(sgd(network(1)), model)
    with pytest.raises(ValueError, match=r"got one without '0\.weight'"):
        eg.attach(torch.optim.SGD(model[2].parameters(), lr=0.1), eg.matrices(model))
    with pytest.raises(ValueError, match="differentiable=True"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True), model)
    with pytest.raises(ValueError, match="got EGD"):
        eg.attach(eg.EGD(eg.matrices(model), lr=0.1), model)
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, got Sequential"):
        eg.attach(model, model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model_or_plan must be a Module or a Plan, got list"):
        eg.attach(sgd(model), list(model.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="make one with matrices"):
        eg.equalize_(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a number >= 0, got -1.0"),
        ({"lr": float("nan")}, "lr must be a number >= 0, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be a number >= 0, got -1.0; 0 is none"),
        ({"decay_before": -1.0}, "decay_before must be a number >= 0, got -1.0"),
        ({"momentum": -1.0}, "momentum must be a number >= 0, got -1.0"),
        ({"nesterov": True}, "momentum must be > 0 with nesterov=True"),
        ({"transform": eg.LowRankPolar(99)}, "got 99"),
    ],
)
def test_options_of_egd_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eg.EGD(network().parameters(), **{"lr": 0.1, **options})


def test_groups_of_egd_out_of_range_are_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="equalize must be True or False, got 3"):
        eg.EGD([{"params": model.parameters(), "equalize": 3}], lr=0.1)
    with pytest.raises(ValueError, match="decay_before must be a number >= 0, got -2"):
        eg.EGD([{"params": model.parameters(), "decay_before": -2}], lr=0.1)
    with pytest.raises(TypeError, match="complex64"):
        eg.EGD([nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))], lr=0.1)


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 2))
    model(torch.tensor([1, 2])).sum().backward()
    state = eg.equalize_(eg.matrices(model))  # the plan does not take the embedding
    assert state.step == 1
    with pytest.raises(TypeError, match=r"gradient of '0.weight' must be dense, got layout torch.sparse_coo"):
        eg.equalize_(eg.matrices(model), eg.GrokfastEMA())


def test_an_error_comes_before_any_gradient_is_changed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    for layer in (model[0], model[2]):
        layer.weight.grad = torch.randn_like(layer.weight)
    model[1].weight.grad = torch.zeros(5, 4).to_sparse()
    before = model[0].weight.grad.clone()
    with pytest.raises(TypeError, match="must be dense"):
        eg.equalize_(eg.matrices(model), [eg.Polar(), eg.GrokfastEMA()])
    assert torch.equal(before, model[0].weight.grad)


# -- NaN and Inf ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_gradient_stays_unchanged(value: float) -> None:
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    before = parameters(model)
    loss_of(model).backward()
    model[0].weight.grad[2, 3] = value
    kept = model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight.grad.nan_to_num(9.0), kept.nan_to_num(9.0))
    values = torch.linalg.svdvals(model[2].weight.grad)
    torch.testing.assert_close(values, torch.ones_like(values))
    assert torch.isfinite(model[2].weight).all()
    assert not torch.equal(before[2], model[2].weight)


def test_on_nonfinite_raise_names_the_parameter_and_changes_nothing() -> None:
    model = network()
    optimizer = sgd(model)
    egd = eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()], on_nonfinite="raise")
    loss_of(model).backward()
    model[2].weight.grad[0, 0] = float("inf")
    before, gradients = parameters(model), [p.grad.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match=r"gradient of '2\.weight' must be finite, got 1 non-finite of 40"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert egd.state_dict()["step"] == 0


def test_huge_and_tiny_gradients_are_equalised() -> None:
    for factor in (1e-30, 1e30):
        weight = nn.Parameter(torch.zeros(4, 3))
        optimizer = eg.EGD([weight], lr=1.0)
        weight.grad = torch.randn(4, 3) * factor
        optimizer.step()
        torch.testing.assert_close(torch.linalg.svdvals(weight.detach()), torch.ones(3))


# -- EGD without effect ----------------------------------------------------------------------------------------------


def test_a_first_step_without_gradients_of_matrices_warns_once() -> None:
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    model[4].bias.grad = torch.ones(3)
    with pytest.warns(UserWarning, match="none of the plan's matrices has a gradient"):
        optimizer.step()
    optimizer.step()  # the warning comes once


def test_a_matrix_without_a_gradient_in_ten_steps_warns_once() -> None:
    model = nn.ModuleList([network(), nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer = sgd(model)
    eg.attach(optimizer, model)

    def steps(count: int) -> None:
        for step in range(count):
            optimizer.zero_grad()
            loss_of(model[0], step).backward()
            optimizer.step()

    steps(9)
    with pytest.warns(UserWarning, match=r"no gradient in 10 steps for '1.weight'"):
        steps(1)
    steps(15)


def test_frozen_matrices_do_not_warn() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    train(model, optimizer, 12)


def test_a_single_step_without_any_gradient_does_not_warn() -> None:
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    optimizer.step()
    train(model, optimizer, 1)


def test_flat_shards_instead_of_parameters_are_refused() -> None:
    """As in DeepSpeed's ZeRO: groups hold flat partitions once the optimizer is wrapped."""
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in model.parameters()]))
    optimizer.param_groups[0]["params"] = [flat]
    flat.grad = torch.ones_like(flat)
    with pytest.raises(RuntimeError, match="flat shards"):
        optimizer.step()


def test_parameters_that_became_flat_are_refused() -> None:
    """As in FSDP1 with use_orig_params: the same parameters, flat."""
    model = network()
    optimizer = sgd(model)
    eg.attach(optimizer, model)
    weight = model[0].weight
    weight.data = weight.data.flatten()[:20]
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match=r"'0.weight' must have shape \(8, 6\), got \(20,\); flat shards"):
        optimizer.step()
