"""Optimizers on stacks: Lion is its paper's, Muon is torch's for every seed, clipped rows are short enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from egalitarian.lab.training import optimizers
from egalitarian.lab.training.optimizers import OPTIMIZERS, Lion, Muon, clip_rows, remove_radial

SEEDS = 3
SHAPES: dict[str, tuple[int, ...]] = {
    "tall": (16, 14),
    "its transpose": (14, 16),
    "another tall one": (16, 14),
    "square": (12, 12),
    "wide": (5, 40),
    "convolution": (4, 3, 3, 3),
    "a convolution with more rows": (12, 1, 3, 3),
}
MUON = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
LION = {"lr": 0.02, "weight_decay": 0.3, "betas": (0.9, 0.99)}
ROUNDINGS = 5 * 3 * 2**-9
"""Muon's five steps round three products each to the eight bits of bfloat16."""


def drawn(number: int, dtype: torch.dtype = torch.float32, seeds: int = SEEDS) -> dict[str, Tensor]:
    """A stack of each shape; the first with the memory layout of an MLP's hidden matrix."""
    draw = torch.Generator().manual_seed(number)
    stacks = {name: torch.randn(seeds, *shape, generator=draw).to(dtype) for name, shape in SHAPES.items()}
    return {**stacks, "tall": stacks["tall"].mT.contiguous().mT}


def stepped(optimizer: Any, start: dict[str, Tensor], steps: int, index: int | None = None) -> dict[str, Tensor]:
    """The stacks after some steps along drawn gradients, or the matrices of one seed by themselves."""

    def own(stack: Tensor) -> Tensor:
        return stack.clone() if index is None else stack[index].clone().flatten(1)

    parameters = {name: own(stack).requires_grad_() for name, stack in start.items()}
    made = optimizer(list(parameters.values()))
    for step in range(steps):
        for name, grad in drawn(step + 1, start["tall"].dtype).items():
            parameters[name].grad = own(grad)
        made.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


# ---- Lion -----------------------------------------------------------------------------------------------------------


def test_lion_is_the_loop_of_its_paper() -> None:
    """Chen et al. 2023, Algorithm 2: c = b1 m + (1 - b1) g, w - lr (sign(c) + decay w), m = b2 m + (1 - b2) g."""
    start, (lr, decay), (b1, b2) = drawn(0, torch.float64), (0.02, 0.3), (0.9, 0.99)
    expected = {}
    for name, w in start.items():
        m = torch.zeros_like(w)
        for step in range(12):
            g = drawn(step + 1, torch.float64)[name]
            w = w - lr * (torch.sign(b1 * m + (1 - b1) * g) + decay * w)
            m = b2 * m + (1 - b2) * g
        expected[name] = w
    found = stepped(lambda parameters: Lion(parameters, **LION), start, 12)
    for name, w in expected.items():
        torch.testing.assert_close(found[name], w, rtol=1e-13, atol=1e-13)


def test_a_step_of_lion_has_the_length_lr_in_every_entry() -> None:
    start = drawn(0, torch.float64)
    found = stepped(lambda parameters: Lion(parameters, **{**LION, "weight_decay": 0.0}), start, 1)
    for name, stack in start.items():
        torch.testing.assert_close((found[name] - stack).abs(), torch.full_like(stack, LION["lr"]), rtol=1e-12, atol=0)


# ---- Muon -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_muon_is_bitwise_torchs_for_every_seed(dtype: torch.dtype, nesterov: bool) -> None:
    start = drawn(0, dtype)
    found = stepped(lambda parameters: Muon(parameters, **MUON, nesterov=nesterov), start, 4)
    for index in range(SEEDS):
        alone = stepped(lambda parameters: torch.optim.Muon(parameters, **MUON, nesterov=nesterov), start, 4, index)
        for name, expected in alone.items():
            assert torch.equal(found[name][index].flatten(1), expected), name


def test_muon_of_a_batch_is_torchs_to_the_roundings_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: torch may take other kernels for a batch, and a step differs by a few roundings at most."""
    monkeypatch.setattr(optimizers, "AT_ONCE", {})
    start = drawn(0)
    found = stepped(lambda parameters: Muon(parameters, **MUON, nesterov=True), start, 1)
    for index in range(SEEDS):
        alone = stepped(lambda parameters: torch.optim.Muon(parameters, **MUON, nesterov=True), start, 1, index)
        for name, expected in alone.items():
            step = expected - (1 - MUON["lr"] * MUON["weight_decay"]) * start[name][index].flatten(1)
            assert (found[name][index].flatten(1) - expected).norm() < ROUNDINGS * step.norm(), name


def test_groups_of_muon_have_their_own_settings() -> None:
    """Matrices of one shape in several groups, which share the iteration."""
    start, settings = drawn(0), (MUON, {"lr": 0.5, "weight_decay": 0.0, "momentum": 0.5})

    def grouped(kind: Any) -> Any:
        return lambda parameters: kind(
            [{"params": [each], "nesterov": True, **settings[index % 2]} for index, each in enumerate(parameters)]
        )

    found, alone = stepped(grouped(Muon), start, 3), stepped(grouped(torch.optim.Muon), start, 3, 1)
    assert all(torch.equal(found[name][1].flatten(1), alone[name]) for name in SHAPES)


# ---- every optimizer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_seed_of_a_stack_is_the_seed_alone_bit_for_bit(kind: str) -> None:
    options = {"muon": {**MUON, "nesterov": True}, "lion": LION}.get(kind, {"lr": 0.02})
    start = drawn(0)
    whole = {name: stack.clone().requires_grad_() for name, stack in start.items()}
    alone = {name: stack[1:2].clone().requires_grad_() for name, stack in start.items()}
    made = [OPTIMIZERS[kind](list(each.values()), **options) for each in (whole, alone)]
    for step in range(4):
        for name, grad in drawn(step + 1).items():
            whole[name].grad, alone[name].grad = grad.clone(), grad[1:2].clone()
        for optimizer in made:
            optimizer.step()
    assert all(torch.equal(whole[name][1:2], alone[name]) for name in SHAPES)


# ---- clipped rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_scaled_down_to_the_norm_and_never_up(dtype: torch.dtype) -> None:
    for stack in drawn(0, dtype).values():
        stack[0, 0] = 0.0
        before, most = stack.clone(), 1.01 * float(stack.flatten(2).norm(dim=-1).median())
        clip_rows([stack], most)
        rows, old = stack.flatten(2), before.flatten(2)
        norms = old.norm(dim=-1, keepdim=True)
        long = norms > most
        assert 0 < int(long.sum()) < long.numel()
        torch.testing.assert_close(rows, torch.where(long, old * most / norms, old))
        assert float(rows.norm(dim=-1).max()) <= most * (1 + 4 * torch.finfo(dtype).eps)
        assert torch.equal(rows[~long.squeeze(-1)], old[~long.squeeze(-1)])


def test_a_row_of_a_stack_is_clipped_as_alone() -> None:
    for stack in drawn(0).values():
        alone = stack[1:2].clone()
        clip_rows([stack, alone], 2.0)
        assert torch.equal(stack[1:2], alone)


# ---- OrthoGrad ------------------------------------------------------------------------------------------------------


def test_a_gradient_without_its_radial_part_is_across_the_weights_and_as_long() -> None:
    weights, gradients = drawn(0, torch.float64), drawn(1, torch.float64)
    for name, stack in weights.items():
        stack.grad = gradients[name].clone()
    remove_radial(weights.values())
    for name, stack in weights.items():
        for seed, weight in enumerate(stack):
            grad, before = stack.grad[seed].flatten(), gradients[name][seed].flatten()
            across = before - (before @ weight.flatten()) / (weight.flatten() @ weight.flatten()) * weight.flatten()
            assert abs(grad @ weight.flatten()) < 1e-12 * grad.norm() * weight.norm()
            torch.testing.assert_close(grad, across * before.norm() / across.norm())


def test_orthograd_makes_no_noise_from_nothing() -> None:
    """A gradient along the weights, one of zero, one beside weights of zero, and one of a single number."""
    weights = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    weights.grad = torch.stack([0.1 * weights[0], torch.zeros(3), torch.tensor([1.0, -2.0, 1e-9])])
    single = torch.full((2, 1), 0.3)
    single.grad = torch.tensor([[0.7], [-1e-12]])
    unused = torch.ones(2, 1)
    remove_radial([weights, single, unused])
    assert torch.equal(weights.grad, torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, -2.0, 1e-9]]))
    assert torch.equal(single.grad, torch.zeros(2, 1))


def test_a_seed_of_a_stack_loses_its_radial_part_as_alone() -> None:
    weights, gradients = drawn(0), drawn(1)
    alone = {name: stack[1:2].clone() for name, stack in weights.items()}
    for name, stack in weights.items():
        stack.grad, alone[name].grad = gradients[name].clone(), gradients[name][1:2].clone()
    remove_radial([*weights.values(), *alone.values()])
    assert all(torch.equal(weights[name].grad[1:2], alone[name].grad) for name in SHAPES)
