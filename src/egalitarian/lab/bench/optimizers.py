"""An optimizer's step outside the lab: of an MLP as a plain torch program, and on the matrices of a 124M-parameter GPT."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.lab.bench.theme import Setup
from egalitarian.lab.bench.timing import Work

LR = 1e-3
MLP_SIZES, MLP_BATCH, MLP_RANK = (784, 200, 200, 10), 200, 64
"""MNIST's size."""
LAYERS, WIDTH, RANK = 12, 768, 128
"""Of the GPT."""
ABOUT = (
    "GPT: the matrices of GPT-2's 124M parameters (12 layers: queries, keys, values and projection 768 x 768 each, "
    "768 x 3072, 3072 x 768) with random gradients and no forward pass; on a CPU one layer of the twelve."
)
Step = Callable[[], object]


def mlp_works(setup: Setup, baseline: str) -> tuple[str, list[Work]]:
    """(group, rivals): SGD on its own, then with transforms of the hidden matrices."""
    sizes, batch = ((20, 8, 8, 4), 6) if setup.quick else (MLP_SIZES, MLP_BATCH)
    rank = min(MLP_RANK, sizes[1] // 2)
    return f"{'-'.join(map(str, sizes))}, batch {batch}", list(_mlp_works(sizes, batch, rank, setup, baseline))


def _mlp_works(sizes: tuple[int, ...], batch: int, rank: int, setup: Setup, baseline: str) -> Iterator[Work]:
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
        yield Work(name, partial(_train_step, model, optimizer, x, y), captures=not name.startswith("randomized"))


def _network(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def gpt_works(setup: Setup, baseline: str) -> tuple[str, list[Work]]:
    """(group, rivals): steps of optimizers on the same weights and gradients."""
    layers = LAYERS if setup.cuda and not setup.quick else 1
    width = 32 if setup.quick else WIDTH
    group = "GPT 124M" if layers == LAYERS else f"GPT 124M, {layers} of {LAYERS} layers"
    weights = gpt_matrices(layers, width, setup.device)
    drawn = [weight.grad.clone() for weight in weights.values() if weight.grad is not None]
    rivals = [
        Work(name, step, partial(_restore, list(weights.values()), drawn), captures)
        for name, step, captures in _gpt_steps(weights, baseline, min(RANK, width // 2), setup)
    ]
    return group, rivals


def gpt_matrices(layers: int, width: int, device: torch.device) -> dict[str, nn.Parameter]:
    """By name, with gradients. Queries, keys and values are three matrices: each is to be equalised on its own."""
    generator = torch.Generator("cpu").manual_seed(0)
    sides = {"q": (1, 1), "k": (1, 1), "v": (1, 1), "out": (1, 1), "up": (4, 1), "down": (1, 4)}
    weights: dict[str, nn.Parameter] = {}
    for layer in range(layers):
        for part, (rows, columns) in sides.items():
            shape = rows * width, columns * width
            weight = nn.Parameter((torch.randn(shape, generator=generator) / width**0.5).to(device))
            weight.grad = torch.randn(shape, generator=generator).to(device)
            weights[f"{layer}.{part}"] = weight
    return weights


def _gpt_steps(
    weights: Mapping[str, nn.Parameter], baseline: str, rank: int, setup: Setup
) -> Iterator[tuple[str, Step, bool]]:
    """(name, step, whether it may be captured). All share the weights, whose values do not change the time."""
    every = list(weights.values())
    yield baseline, torch.optim.SGD(every, lr=LR).step, True
    transforms = {
        "EGD exact": eg.Polar(),
        "EGD fast": eg.Polar(precision="fast"),
        f"randomized, rank {rank}": eg.LowRankPolar(rank),
        "row norm": eg.RowNorm(),
    }
    plan = eg.matrices(dict(weights), include=["*"])
    for name, transform in transforms.items():
        optimizer = torch.optim.SGD(every, lr=LR)
        eg.attach(optimizer, plan, transform)
        yield name, optimizer.step, not name.startswith("randomized")
    for precision in ("exact", "fast"):
        yield f"equalize_ alone, {precision}", partial(eg.equalize_, plan, eg.Polar(precision=precision)), True
    muon = torch.optim.Muon(every, lr=LR)
    yield "torch.optim.Muon", muon.step, True
    if setup.cuda and not setup.quick:
        yield "torch.optim.Muon, compiled", torch.compile(torch.optim.Muon(every, lr=LR).step), False
    for package, build in PEERS.items():
        if installed(package):
            yield f"{package} {version(package)}", LazyStep(partial(build, package, every)), False


class LazyStep:
    """A step of an optimizer that is built at the first: an error in another package becomes the note of its row."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._optimizer: Any = None

    def __call__(self) -> None:
        if self._optimizer is None:
            self._optimizer = self._build()
        self._optimizer.step()


def _pytorch_optimizer(package: str, weights: Sequence[Tensor]) -> Any:
    return importlib.import_module(package).Muon([{"params": list(weights), "use_muon": True}], lr=LR)


def _heavyball(package: str, weights: Sequence[Tensor]) -> Any:
    module = importlib.import_module(package)
    kind = getattr(module, "Muon", None) or module.ForeachMuon  # its name before version 3
    return kind(list(weights), lr=LR)


def _muon(package: str, weights: Sequence[Tensor]) -> Any:
    return importlib.import_module(package).SingleDeviceMuon(list(weights), lr=LR)


PEERS: dict[str, Callable[[str, Sequence[Tensor]], Any]] = {
    "pytorch_optimizer": _pytorch_optimizer,
    "heavyball": _heavyball,
    "muon": _muon,
}
"""Muon in other packages, by the module's name, measured if installed. The package of `muon` is muon-optimizer."""


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def version(package: str) -> str:
    try:
        return importlib.metadata.version({"muon": "muon-optimizer"}.get(package, package))
    except importlib.metadata.PackageNotFoundError:  # a module of that name, not from PyPI
        return "of no known version"


@torch.no_grad()
def _restore(weights: Sequence[nn.Parameter], drawn: Sequence[Tensor]) -> None:
    """The gradients as they were drawn: an equalised gradient takes less time."""
    torch._foreach_copy_([weight.grad for weight in weights if weight.grad is not None], list(drawn))
