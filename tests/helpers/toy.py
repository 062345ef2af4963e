"""A small network, a loss and a training loop; a transform applied to single gradients; a module with every layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import egalitarian as eg


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two hidden layers that EGD takes by default, and a head that it leaves."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
        return nn.Sequential(*layers).to(dtype)


def batch(step: int = 0, size: int = 32, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 6, generator=generator).to(dtype)
    return x, torch.randint(3, (size,), generator=generator)


def loss_of(model: nn.Module, step: int = 0) -> Tensor:
    x, y = batch(step, dtype=next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(x), y)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    """A training loop as a user writes it."""
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def parameters(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are equal, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def singular_values(tensor: Tensor) -> Tensor:
    return torch.linalg.svdvals(tensor.detach().flatten(1).double())


def assert_equalised(updates: Iterable[Tensor], size: float = 1.0) -> None:
    """Asserts that every singular value is `size`."""
    for update in updates:
        values = singular_values(update)
        torch.testing.assert_close(values, torch.full_like(values, size), rtol=1e-4, atol=0)


def hidden_updates(model: nn.Module, before: Sequence[Tensor]) -> list[Tensor]:
    """The changes of the two hidden weight matrices of `network`."""
    now = parameters(model)
    return [before[index] - now[index] for index in (0, 2)]


def gradients(count: int) -> list[Tensor]:
    """Random gradients of a weight (3, 2)."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(3, 2, generator=generator) for _ in range(count)]


def transform_each(transform: Any, grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of one matrix after `equalize_`, step by step."""
    weight = nn.Parameter(torch.zeros_like(grads[0]))
    plan, state, out = eg.matrices({"w": weight}, include="w"), None, []
    for grad in grads:
        weight.grad = grad.clone()
        state = eg.equalize_(plan, transform, state=state)
        out.append(weight.grad.clone())
    return out


def transformed(transform: Any, grad: Tensor) -> Tensor:
    """The gradient of one matrix after its first step."""
    return transform_each(transform, [grad])[0]


class EveryLayer(nn.Module):
    """One of each kind of parameter that a selection must distinguish."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.conv = nn.Conv2d(3, 8, 3)
        self.up = nn.ConvTranspose1d(4, 10, 3)
        self.norm = nn.LayerNorm([5, 7])
        self.attention = nn.MultiheadAttention(6, 2)
        self.cross = nn.MultiheadAttention(6, 2, kdim=4, vdim=5)
        self.lstm = nn.LSTM(6, 4)
        self.free = nn.Parameter(torch.zeros(3, 3))
        self.scalar = nn.Parameter(torch.zeros(()))
        self.hidden = nn.Linear(6, 9)
        self.head = nn.Linear(9, 11)


def shapes_taken(plan: eg.Plan) -> dict[str, list[tuple[int, int]]]:
    """The shapes of the matrices, by the name of their parameter."""
    return {entry.name: [(target.rows, target.columns) for target in entry.targets] for entry in plan.taken}
