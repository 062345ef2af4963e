"""The twelve methods of the fair comparison on small models of all five families: what they do, and that they resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import DOUBLE, State, distance, parameters, same, together
from torch import Tensor
from twelve import FAMILIES, METHODS, PLAN, fair

import egalitarian as eg
from egalitarian.lab.training import Ensemble, Stepper
from egalitarian.lab.training.optimizers import remove_radial

STOCK: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda given, **settings: torch.optim.SGD(given, momentum=0.9, **settings),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@pytest.fixture(autouse=True)
def _small_data(few_pictures: Path) -> None:
    pass


def gradients(ensemble: Ensemble, stepper: Stepper, step: int) -> None:
    batches = ensemble.epoch(step // ensemble.batches)
    ensemble.backward(batches[step % ensemble.batches])
    stepper.add_decay()


def trained(ensemble: Ensemble, stepper: Stepper, steps: range) -> list[State]:
    for step in steps:
        gradients(ensemble, stepper, step)
        stepper.step()
    return parameters(ensemble)


def targets(stepper: Stepper) -> set[str]:
    return {entry.name for entry in stepper._plan.taken}


def twin(ensemble: Ensemble, seeds: slice = slice(None)) -> dict[str, Tensor]:
    """Copies of the parameters, in the same memory layout."""
    return {name: each.detach().clone()[seeds].requires_grad_() for name, each in ensemble.parameters.items()}


# ---- every method on every model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_is_the_uninterrupted_one(family: str, method: str) -> None:
    """Bit for bit, through the tensors of a file; every parameter moves, and nothing would keep a GPU from a capture."""
    experiment = fair(family)
    ensemble, stepper = together(experiment, method, [0, 1, 2])
    weights = trained(ensemble, stepper, range(3))
    saved = [{key: each.clone(memory_format=torch.contiguous_format) for key, each in s.items()} for s in stepper.states()]
    again, fresh = together(experiment, method, [0, 1, 2])
    with torch.no_grad():
        for name, stack in again.parameters.items():
            for own, state in zip(stack, weights, strict=True):
                own.copy_(state[name])
    fresh.load(saved)
    expected, found = trained(ensemble, stepper, range(3, 6)), trained(again, fresh, range(3, 6))
    assert all(map(same, expected, found))
    assert all(map(same, stepper.states(), fresh.states()))
    for name, start in ensemble.start.items():
        assert ensemble.parameters[name].isfinite().all(), name
        assert not torch.equal(ensemble.parameters[name].detach(), start), name
    assert stepper.synchronises == ""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_of_a_batch_takes_the_steps_that_it_takes_alone(family: str, method: str) -> None:
    """Bit for bit, along the same gradients."""
    experiment = fair(family)
    ensemble, stepper = together(experiment, method, [0, 1, 2])
    own = twin(ensemble, slice(1, 2))
    alone = Stepper(experiment.method(method), own)
    for step in range(4):
        gradients(ensemble, stepper, step)
        for name, parameter in own.items():
            parameter.grad = ensemble.parameters[name].grad[1:2].clone()
        stepper.step()
        alone.step()
    for name, parameter in own.items():
        assert torch.equal(ensemble.parameters[name].detach()[1:2], parameter.detach()), name
    assert same(stepper.states()[1], alone.states()[0])


@pytest.mark.parametrize("method", ["adamw", "egd-sgd", "egd-hidden"])
def test_orthograd_comes_before_the_transforms_and_on_every_parameter(method: str) -> None:
    """Bit for bit the method alone, along gradients without their radial part."""
    plain = fair("addition")
    ensemble, stepper = together(fair("addition", values={f"methods.{method}.orthograd": True}), method, [0, 1])
    own = twin(ensemble)
    alone = Stepper(plain.method(method), own)
    for step in range(3):
        gradients(ensemble, stepper, step)
        for name, parameter in own.items():
            parameter.grad = ensemble.parameters[name].grad.clone()
        remove_radial(own.values())
        stepper.step()
        alone.step()
    assert all(torch.equal(ensemble.parameters[name], parameter) for name, parameter in own.items())


# ---- stock optimizers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", STOCK)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_optimizer_is_torchs_on_all_parameters(family: str, method: str) -> None:
    """Bit for bit: it decays biases, norms and embeddings, too."""
    ensemble, stepper = together(fair(family), method, [0, 1])
    plain, own = twin(ensemble), stepper._method.optim
    optimizer = STOCK[method](list(plain.values()), lr=own.lr, weight_decay=own.weight_decay)
    for step in range(4):
        gradients(ensemble, stepper, step)
        for name, parameter in plain.items():
            parameter.grad = ensemble.parameters[name].grad.clone()
        stepper.step()
        optimizer.step()
    assert all(torch.equal(ensemble.parameters[name], parameter) for name, parameter in plain.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_lion_decays_all_parameters(family: str) -> None:
    ensemble, stepper = together(fair(family), "lion", [0, 1])
    before, own = twin(ensemble), stepper._method.optim
    gradients(ensemble, stepper, 0)
    stepper.step()
    for name, parameter in ensemble.parameters.items():
        expected = before[name] * (1 - own.lr * own.weight_decay) - own.lr * parameter.grad.sign()
        assert torch.equal(parameter, expected), name


@pytest.mark.parametrize("family", FAMILIES)
def test_clipped_rows_are_those_of_the_targets(family: str) -> None:
    hidden = {"methods.lion-clip.targets": list(PLAN[family].hidden)}
    largest: dict[float, dict[str, float]] = {}
    for clip in (0.3, 1e9):
        experiment = fair(family, values={**hidden, "methods.lion-clip.clip": clip})
        ensemble, stepper = together(experiment, "lion-clip", [0, 1])
        trained(ensemble, stepper, range(2))
        matrices = {name: stack.detach() for name, stack in ensemble.parameters.items() if stack.ndim > 2}
        largest[clip] = {name: float(stack.flatten(2).norm(dim=-1).max()) for name, stack in matrices.items()}
    chosen = targets(stepper)
    assert all(largest[0.3][name] <= 0.3 * (1 + 1e-6) < largest[1e9][name] for name in chosen)
    assert all(largest[0.3][name] > 0.3 for name in set(largest[0.3]) - chosen)


# ---- EGD ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "elsewhere"), [("egd-sgd", torch.optim.SGD), ("egd-hidden", torch.optim.AdamW)])
@pytest.mark.parametrize("family", FAMILIES)
def test_egd_is_the_polar_factor_of_the_momentum_and_a_plain_optimizer_elsewhere(
    family: str, method: str, elsewhere: Any
) -> None:
    """Targets: W - lr (U Vᵀ + decay W) of the mean gradient. Biases, norms and the rest bit for bit as by the optimizer
    without a momentum before it."""
    ensemble, stepper = together(fair(family, DOUBLE), method, [0, 1])
    settings, chosen = stepper._method, targets(stepper)
    matrices = {name for name, stack in ensemble.parameters.items() if stack.ndim > 2}
    assert chosen == matrices if method == "egd-sgd" else chosen < matrices
    plain, own, beta = twin(ensemble), settings.hidden or settings.optim, settings.transform[0].beta
    rest = [parameter for name, parameter in plain.items() if name not in chosen]
    optimizer = elsewhere(rest, lr=settings.optim.lr, weight_decay=settings.optim.weight_decay)
    means = {name: torch.zeros_like(plain[name]) for name in chosen}
    for step in range(4):
        gradients(ensemble, stepper, step)
        with torch.no_grad():
            for name, parameter in plain.items():
                parameter.grad = ensemble.parameters[name].grad.clone()
                if name in chosen:
                    means[name] = beta * means[name] + (1 - beta) * parameter.grad
                    factor = eg.polar(means[name].flatten(2), precision="fast").reshape(parameter.shape)
                    parameter -= own.lr * (factor + own.weight_decay * parameter)
        stepper.step()
        optimizer.step()
    for name, parameter in plain.items():
        if name in chosen:
            torch.testing.assert_close(ensemble.parameters[name], parameter, rtol=1e-7, atol=1e-9)
        else:
            assert torch.equal(ensemble.parameters[name], parameter), name


@pytest.mark.parametrize("family", FAMILIES)
def test_egd_on_all_matrices_under_adamw_is_adamw_on_equalised_gradients(family: str) -> None:
    ensemble, stepper = together(fair(family, DOUBLE), "egd-adamw", [0, 1])
    plain, own = twin(ensemble), stepper._method.optim
    optimizer = torch.optim.AdamW(list(plain.values()), lr=own.lr, weight_decay=own.weight_decay)
    for step in range(3):
        gradients(ensemble, stepper, step)
        for name, parameter in plain.items():
            grad = ensemble.parameters[name].grad
            parameter.grad = (
                eg.polar(grad.flatten(2), precision="fast").reshape(grad.shape) if grad.ndim > 2 else grad.clone()
            )
        stepper.step()
        optimizer.step()
    for name, parameter in plain.items():
        if parameter.ndim == 2:
            assert torch.equal(ensemble.parameters[name], parameter), name
    both = [{name: each.detach() for name, each in found.items()} for found in (ensemble.parameters, plain)]
    assert distance(*both) < 1e-6  # AdamW divides by entries of U Vᵀ, however small
