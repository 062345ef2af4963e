"""`equalize_`, `attach` and `EGD` make the same steps, bit for bit; `Identity` makes those of the bare optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from toy import loss_of, network, same, train

import egalitarian as eg

CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "spectral": eg.Polar(scale="spectral"),
    "lowrank": eg.LowRankPolar(3),
    "fixed sketch": eg.LowRankPolar(3, fixed=True),
    "row norm": eg.RowNorm(),
    "natural": eg.Natural(),
    "momentum then polar": [eg.Momentum(0.9, nesterov=True), eg.Polar()],
    "grokfast ema": eg.GrokfastEMA(0.9, 2.0),
    "polar then grokfast": [eg.Polar(), eg.GrokfastEMA()],
    "grokfast ma": [eg.GrokfastMA(3, 1.0), eg.LowRankPolar(2)],
    "identity": eg.Identity(),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_three_doors_agree_bitwise(chain: Any, momentum: float) -> None:
    options: dict[str, Any] = {"momentum": momentum, "weight_decay": 0.03}
    by_function, by_hook, by_class = network(), network(), network()
    plan, state = eg.matrices(by_function), None
    bare = torch.optim.SGD(by_function.parameters(), lr=0.01, **options)
    hooked = torch.optim.SGD(by_hook.parameters(), lr=0.01, **options)
    eg.attach(hooked, by_hook, chain)
    egd = eg.EGD(eg.matrices(by_class), lr=0.01, transform=chain, **options)
    for step in range(6):
        bare.zero_grad()
        loss_of(by_function, step).backward()
        state = eg.equalize_(plan, chain, state=state)
        bare.step()
        assert state.step == step + 1
    train(by_hook, hooked, 6)
    train(by_class, egd, 6)
    assert same(by_function, by_hook)
    assert same(by_function, by_class)


def test_doors_agree_with_decay_before() -> None:
    one, other, inside = network(), network(), network()
    hooked = torch.optim.SGD(one.parameters(), lr=0.1)
    eg.attach(hooked, one, decay_before=0.01)
    train(one, hooked, 4)
    train(other, eg.EGD(eg.matrices(other), lr=0.1, decay_before=0.01), 4)
    assert same(one, other)
    # both equal a decay term in the loss, on the equalised layers
    bare = torch.optim.SGD(inside.parameters(), lr=0.1)
    plan = eg.matrices(inside)
    for step in range(4):
        bare.zero_grad()
        penalty = sum(entry.parameter.square().sum() for entry in plan.taken)
        (loss_of(inside, step) + 0.005 * penalty).backward()
        eg.equalize_(plan)
        bare.step()
    for a, b in zip(one.parameters(), inside.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_maximizing_with_decay_before_equals_minimizing() -> None:
    """Maximising -L with decay equals minimising L with decay."""
    down, up = network(), network()
    every = [[{"params": model.parameters(), "equalize": True}] for model in (down, up)]
    train(down, eg.EGD(every[0], lr=0.1, decay_before=0.5), 3)
    maximizer = eg.EGD(every[1], lr=0.1, decay_before=0.5, maximize=True)
    hooked_model = network()
    hooked = torch.optim.SGD(hooked_model.parameters(), lr=0.1, maximize=True)
    eg.attach(hooked, eg.matrices(hooked_model, include="*"), decay_before=0.5)
    for model, optimizer in ((up, maximizer), (hooked_model, hooked)):
        for step in range(3):
            optimizer.zero_grad()
            (-loss_of(model, step)).backward()
            optimizer.step()
    for a, b, c in zip(down.parameters(), up.parameters(), hooked_model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(b, c, rtol=0, atol=0)


def _dense_optimizers() -> list[type[torch.optim.Optimizer]]:
    return [
        kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
    ]


@pytest.mark.parametrize("kind", _dense_optimizers(), ids=lambda kind: kind.__name__)
def test_identity_is_the_bare_optimizer_bitwise(kind: Callable[..., torch.optim.Optimizer]) -> None:
    def weights(model: torch.nn.Module) -> Sequence[torch.Tensor]:
        return [p for p in model.parameters() if p.ndim == 2 or kind.__name__ != "Muon"]

    bare_model, model = network(), network()
    bare, optimizer = kind(weights(bare_model), lr=0.01), kind(weights(model), lr=0.01)
    eg.attach(optimizer, model, eg.Identity())
    for step in range(4):
        for each, who in ((bare_model, bare), (model, optimizer)):

            def closure(each: torch.nn.Module = each, who: torch.optim.Optimizer = who, step: int = step) -> torch.Tensor:
                who.zero_grad()
                loss = loss_of(each, step)
                loss.backward()
                return loss

            who.step(closure)
    assert same(bare_model, model)


@pytest.mark.parametrize("kind", _dense_optimizers(), ids=lambda kind: kind.__name__)
def test_every_dense_optimizer_sees_equalised_gradients(kind: Callable[..., torch.optim.Optimizer]) -> None:
    model = network()
    weights = [p for p in model.parameters() if p.ndim == 2 or kind.__name__ != "Muon"]
    optimizer = kind(weights, lr=1e-3)
    eg.attach(optimizer, model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    for layer in (model[0], model[2]):
        values = torch.linalg.svdvals(layer.weight.grad)
        torch.testing.assert_close(values, torch.ones_like(values))


def test_sparse_adam_is_refused() -> None:
    model = network()
    with pytest.raises(TypeError, match="SparseAdam"):
        eg.attach(torch.optim.SparseAdam(model.parameters()), model)
