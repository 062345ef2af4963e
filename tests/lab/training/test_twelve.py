"""The twelve methods of the fair comparison on small models of all five families: what they do, and that they resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import DOUBLE, State, distance, parameters, same, together
from torch import Tensor
from twelve import MODELS, POINT, fair, twelve

import egalitarian as eg
from egalitarian.lab.config import Experiment
from egalitarian.lab.training import Ensemble, Stepper

METHODS = tuple(twelve([]))
LR, DECAY = POINT["lr"], POINT["weight_decay"]
STOCK: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": lambda given, **settings: torch.optim.SGD(given, momentum=0.9, **settings),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@pytest.fixture(autouse=True)
def _small_data(few_pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one kernel for products of any batch: oneDNN takes a product only if the whole batch is large enough."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


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
@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_is_the_uninterrupted_one(model: str, method: str) -> None:
    """Bit for bit, through the tensors of a file; every parameter moves, and nothing would keep a GPU from a capture."""
    experiment = fair(model)
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
@pytest.mark.parametrize("model", MODELS)
def test_a_seed_of_a_batch_takes_the_steps_that_it_takes_alone(model: str, method: str) -> None:
    """Bit for bit, along the same gradients."""
    experiment = fair(model)
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


# ---- stock optimizers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", STOCK)
@pytest.mark.parametrize("model", MODELS)
def test_a_stock_optimizer_is_torchs_on_all_parameters(model: str, method: str) -> None:
    """Bit for bit: it decays biases, norms and embeddings, too."""
    ensemble, stepper = together(fair(model), method, [0, 1])
    plain = twin(ensemble)
    optimizer = STOCK[method](list(plain.values()), lr=LR, weight_decay=DECAY)
    for step in range(4):
        gradients(ensemble, stepper, step)
        for name, parameter in plain.items():
            parameter.grad = ensemble.parameters[name].grad.clone()
        stepper.step()
        optimizer.step()
    assert all(torch.equal(ensemble.parameters[name], parameter) for name, parameter in plain.items())


@pytest.mark.parametrize("model", MODELS)
def test_lion_decays_all_parameters(model: str) -> None:
    ensemble, stepper = together(fair(model), "lion", [0, 1])
    before = twin(ensemble)
    gradients(ensemble, stepper, 0)
    stepper.step()
    for name, parameter in ensemble.parameters.items():
        expected = before[name] * (1 - LR * DECAY) - LR * parameter.grad.sign()
        assert torch.equal(parameter, expected), name


@pytest.mark.parametrize("model", MODELS)
def test_clipped_rows_are_those_of_the_targets(model: str) -> None:
    experiment = fair(model, "methods.fair-lion-clip.clip=0.3")
    ensemble, stepper = together(experiment, "lion-clip", [0, 1])
    free, unclipped = together(fair(model, "methods.fair-lion-clip.clip=1e9"), "lion-clip", [0, 1])
    norms = {}
    for step in range(2):
        gradients(ensemble, stepper, step)
        stepper.step()
        for name, stack in ensemble.parameters.items():
            norms[name] = stack.detach().flatten(2).norm(dim=-1) if stack.ndim > 2 else torch.zeros(1)
    trained(free, unclipped, range(1))
    chosen = targets(stepper)
    assert chosen
    assert all(float(norms[name].max()) <= 0.3 * (1 + 1e-6) for name in chosen)
    assert any(float(norms[name].max()) > 0.3 for name in set(norms) - chosen)
    assert any(float(free.parameters[name].detach().flatten(2).norm(dim=-1).max()) > 0.3 for name in chosen)


# ---- EGD ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_egd_a_is_the_polar_factor_of_the_momentum_and_plain_sgd_elsewhere(model: str) -> None:
    """Biases and norms bit for bit as by plain SGD without decay; matrices W - lr (U Vᵀ + decay W) of the mean."""
    ensemble, stepper = together(fair(model, DOUBLE), "egd-a", [0, 1])
    chosen = targets(stepper)
    assert chosen == {name for name, stack in ensemble.parameters.items() if stack.ndim > 2}
    plain = twin(ensemble)
    rest = [parameter for name, parameter in plain.items() if name not in chosen]
    optimizer = torch.optim.SGD(rest, lr=LR) if rest else None
    means = {name: torch.zeros_like(plain[name]) for name in chosen}
    for step in range(4):
        gradients(ensemble, stepper, step)
        with torch.no_grad():
            for name, parameter in plain.items():
                parameter.grad = ensemble.parameters[name].grad.clone()
                if name in chosen:
                    means[name] = 0.9 * means[name] + 0.1 * parameter.grad
                    factor = eg.polar(means[name].flatten(2)).reshape(parameter.shape)
                    parameter -= LR * (factor + DECAY * parameter)
        stepper.step()
        if optimizer is not None:
            optimizer.step()
    for name, parameter in plain.items():
        if name in chosen:
            torch.testing.assert_close(ensemble.parameters[name], parameter, rtol=1e-7, atol=1e-9)
        else:
            assert torch.equal(ensemble.parameters[name], parameter), name


@pytest.mark.parametrize("model", MODELS)
def test_egd_b_is_adamw_on_equalised_gradients(model: str) -> None:
    ensemble, stepper = together(fair(model, DOUBLE), "egd-b", [0, 1])
    plain = twin(ensemble)
    optimizer = torch.optim.AdamW(list(plain.values()), lr=LR, weight_decay=DECAY)
    for step in range(3):
        gradients(ensemble, stepper, step)
        for name, parameter in plain.items():
            grad = ensemble.parameters[name].grad
            parameter.grad = eg.polar(grad.flatten(2)).reshape(grad.shape) if grad.ndim > 2 else grad.clone()
        stepper.step()
        optimizer.step()
    for name, parameter in plain.items():
        if parameter.ndim == 2:
            assert torch.equal(ensemble.parameters[name], parameter), name
    both = [{name: each.detach() for name, each in found.items()} for found in (ensemble.parameters, plain)]
    assert distance(*both) < 1e-6  # AdamW divides by entries of U Vᵀ, however small


@pytest.mark.parametrize("model", MODELS)
def test_egd_c_is_sgd_on_hidden_matrices_and_adamw_elsewhere(model: str) -> None:
    ensemble, stepper = together(fair(model, DOUBLE), "egd-c", [0, 1])
    chosen = targets(stepper)
    assert chosen < {name for name, stack in ensemble.parameters.items() if stack.ndim > 2}
    plain = twin(ensemble)
    rest = [parameter for name, parameter in plain.items() if name not in chosen]
    optimizer = torch.optim.AdamW(rest, lr=LR, weight_decay=DECAY)
    means = {name: torch.zeros_like(plain[name]) for name in chosen}
    for step in range(3):
        gradients(ensemble, stepper, step)
        with torch.no_grad():
            for name, parameter in plain.items():
                parameter.grad = ensemble.parameters[name].grad.clone()
                if name in chosen:
                    means[name] = 0.9 * means[name] + 0.1 * parameter.grad
                    parameter *= 1 - LR * DECAY
                    parameter -= LR * eg.polar(means[name].flatten(2)).reshape(parameter.shape)
        stepper.step()
        optimizer.step()
    for name, parameter in plain.items():
        if name in chosen:
            torch.testing.assert_close(ensemble.parameters[name], parameter, rtol=1e-7, atol=1e-9)
        else:
            assert torch.equal(ensemble.parameters[name], parameter), name


def test_the_tables_are_twelve_methods_with_ids_of_their_own() -> None:
    experiment: Experiment = fair("mlp")
    assert len(experiment.methods) == 12
    assert len({repr(method.replace(title="")) for method in experiment.methods.values()}) == 12
