"""Experiments of the paper, shrunk until they train in milliseconds, and functions to train them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor

from egalitarian.lab.config import Experiment, LowRankPolarSettings, Method, catalog
from egalitarian.lab.problems import stream
from egalitarian.lab.runs import Progress, Record, Stop, Store, sweep
from egalitarian.lab.training import Ensemble, Stepper, train

law = settings(max_examples=50, deadline=None, derandomize=True)
CPU = torch.device("cpu")
DOUBLE = "training.precision=float64"
MODULAR = ("task.modulus=7", "model.width=16", "training.batch=8")
PARITY = ("task.bits=10", "task.train_size=40", "task.test_size=30", "model.width=12", "training.batch=8")
MNIST = ("task.train_size=40", "model.widths=[12,10]", "training.batch=8", "training.passes=2")
TRANSFORMER = ("task.modulus=7", "model.width=8", "model.heads=2", "training.batch=8")
CIFAR = (
    *("task.train_size=24", "task.test_size=10", "task.epochs=20"),
    *("model.channels=[3,4,4]", "model.width=8", "training.batch=8"),
)
SMALLER = {"parity": PARITY, "mnist": MNIST, "transformer": TRANSFORMER, "cifar": CIFAR}
GROKS = ("task.bits=4", "task.train_size=32", "task.test_size=30", "model.width=16", "optim.lr=0.05")
RANK = 5
OPTIMS: dict[str, tuple[str, ...]] = {
    "sgd with momentum": ("optim.momentum=0.9", "optim.nesterov=true"),
    "adam": ("optim.optimizer=adam", "optim.lr=0.01"),
    "adamw": ("optim.optimizer=adamw", "optim.lr=0.01", "optim.weight_decay=0.5", "decay=decoupled"),
    "radam": ("optim.optimizer=radam", "optim.lr=0.01", "decay=after"),
    "rmsprop": ("optim.optimizer=rmsprop", "optim.lr=0.001", "optim.momentum=0.9", "decay=after"),
}
CHAINS = {
    "momentum then polar": 'transform=[{name="momentum",beta=0.9,nesterov=true},{name="polar"}]',
    "grokfast then rsvd": 'transform=[{name="grokfast-ema",alpha=0.9,lamb=1.0},{name="lowrank-polar",rank=5}]',
    "window then polar": 'transform=[{name="grokfast-ma",window=3,lamb=1.0},{name="polar"}]',
    "a fixed sketch": 'transform=[{name="lowrank-polar",rank=5,fixed=true}]',
}
GROUPS = ("groups.output.lr=0.05", "groups.output.weight_decay=0.2")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in catalog.load("addition-97").methods},
    **{name: ("egd", (change,)) for name, change in CHAINS.items()},
    **{name: ("sgd", changes) for name, changes in OPTIMS.items()},
    **{f"{name} with groups": (name, GROUPS) for name in ("egd-after", "adamw", "muon")},
}
"""A method of modular addition and changes to it: everything that can change weights."""
State = dict[str, Tensor]


@cache
def small(name: str = "addition-97", *changes: str, methods: tuple[str, ...] = ()) -> Experiment:
    """The experiment with less of everything. Three to ten steps per epoch; ranks that fit."""
    loaded = catalog.load(name, [*SMALLER.get(name.partition("-")[0], MODULAR), *changes], methods)
    return loaded.replace(methods={name: _lowered(method) for name, method in loaded.methods.items()})


def _lowered(method: Method) -> Method:
    links = (link.replace(rank=RANK) if isinstance(link, LowRankPolarSettings) else link for link in method.transform)
    return method.replace(transform=tuple(links))


def groks(*changes: str) -> Experiment:
    """A parity that EGD learns: seeds 6, 7, 0 and 1 pass 90 % at epochs 2, 4, 7 and 14."""
    return small("parity-2", *GROKS, "until=0.9", "measure.threshold=0.9", *changes, methods=("egd",))


def together(experiment: Experiment, method: str, seeds: Sequence[int]) -> tuple[Ensemble, Stepper]:
    ensemble = Ensemble(experiment, seeds, CPU)
    return ensemble, Stepper(experiment.method(method), ensemble.parameters)


def states(experiment: Experiment, method: str, seeds: Sequence[int], epochs: int) -> list[list[State]]:
    """By seed, its parameters after every epoch."""
    ensemble, stepper = together(experiment, method, seeds)
    kept: list[list[State]] = [[] for _ in seeds]
    for epoch in train(ensemble, stepper):
        for own, state in zip(kept, parameters(ensemble), strict=True):
            own.append(state)
        if epoch.number + 1 == epochs:
            break
    return kept


def parameters(ensemble: Ensemble) -> list[State]:
    """By seed."""
    whole = {name: tensor.detach().clone() for name, tensor in ensemble.parameters.items()}
    return [{name: tensor[index] for name, tensor in whole.items()} for index in range(len(ensemble.seeds))]


def records(experiment: Experiment, method: str, seeds: Sequence[int], epochs: int) -> list[list[Record]]:
    """By seed, its records epoch by epoch, without the snapshots."""
    kept: list[list[Record]] = [[] for _ in seeds]
    for epoch in train(*together(experiment, method, seeds)):
        for own, new in zip(kept, epoch.records, strict=True):
            own.append(new[0])
        if epoch.number + 1 == epochs:
            return kept
    raise AssertionError


def distance(one: State, other: State) -> float:
    """The largest difference of any entry, over the largest entry."""
    largest = max(float(tensor.abs().max()) for tensor in one.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / largest


def same(one: State, other: State) -> bool:
    """Bitwise."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def run(root: Path, experiment: Experiment, method: str, seeds: Sequence[int], stop: Stop, **more: Any) -> list[Progress]:
    return sweep(experiment, method, seeds, Store(root), CPU, stop=stop, **more)


def files(root: Path, leave_out: Iterable[str] = ("lock",)) -> dict[str, bytes]:
    """All files below, by path, without locks, which every process rewrites."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.name not in leave_out)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def recorded(root: Path) -> dict[str, bytes]:
    """The records of every run below."""
    return {path.parent.name: path.read_bytes() for path in sorted(root.rglob("records.jsonl"))}


def gradients(outputs: Tensor, parameters: dict[str, Tensor]) -> list[Tensor]:
    weights = torch.randn(outputs.shape, generator=stream(0, "weights"), dtype=outputs.dtype)
    return list(torch.autograd.grad((outputs * weights).sum(), list(parameters.values())))
