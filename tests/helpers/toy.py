"""A small network, a loss and a bare step, the same for every test."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
    """A loop as a user writes it."""
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def parameters(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: nn.Module, other: nn.Module) -> bool:
    """Bitwise."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def singular_values(tensor: Tensor) -> Tensor:
    return torch.linalg.svdvals(tensor.detach().flatten(1).double())
