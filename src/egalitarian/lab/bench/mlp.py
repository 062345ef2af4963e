"""A training step of a plain torch program: an MLP of MNIST's size, with `attach` and nothing of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.lab.bench.theme import Setup
from egalitarian.lab.bench.timing import Work

SIZES, BATCH = (784, 200, 200, 10), 200
LR = 1e-3
RANK = 64


def works(setup: Setup, baseline: str) -> tuple[str, list[Work]]:
    """(group, rivals): SGD on its own, then with transforms of the hidden matrices."""
    sizes, batch = ((20, 8, 8, 4), 6) if setup.quick else (SIZES, BATCH)
    rank = min(RANK, sizes[1] // 2)
    return f"{'-'.join(map(str, sizes))}, batch {batch}", list(_works(sizes, batch, rank, setup, baseline))


def _works(sizes: tuple[int, ...], batch: int, rank: int, setup: Setup, baseline: str) -> Iterator[Work]:
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(batch, sizes[0], generator=generator).to(setup.device)
    y = torch.randint(sizes[-1], (batch,), generator=generator).to(setup.device)
    transforms = {
        baseline: None,
        "EGD exact": eg.Polar(),
        "EGD fast": eg.Polar(precision="fast"),
        f"randomized, rank {rank}": eg.LowRankPolar(rank, cap=True),
        "row norm": eg.RowNorm(),
    }
    for name, transform in transforms.items():
        model = _network(sizes).to(setup.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        if transform is not None:
            eg.attach(optimizer, model, transform)
        yield Work(name, partial(_step, model, optimizer, x, y), captures=not name.startswith("randomized"))


def _network(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
