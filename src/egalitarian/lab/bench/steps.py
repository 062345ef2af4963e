"""One step of training the paper's networks, of a plain torch program, and of optimizers on a GPT's matrices; the peers."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import egalitarian as eg
from egalitarian.lab.bench.theme import BenchRow, Candidate, Column, Setup, Theme, measure, text, three_digits, times
from egalitarian.lab.config import Experiment, LowRankPolarSettings, Method, PolarSettings, load
from egalitarian.lab.training import Ensemble, Stepper

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


def mlp_candidates(setup: Setup, baseline: str) -> tuple[str, list[Candidate]]:
    """(group, candidates): SGD on its own, then with transforms of the hidden matrices."""
    sizes, batch = ((20, 8, 8, 4), 6) if setup.quick else (MLP_SIZES, MLP_BATCH)
    rank = min(MLP_RANK, sizes[1] // 2)
    return f"{'-'.join(map(str, sizes))}, batch {batch}", list(_mlp_candidates(sizes, batch, rank, setup, baseline))


def _mlp_candidates(sizes: tuple[int, ...], batch: int, rank: int, setup: Setup, baseline: str) -> Iterator[Candidate]:
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(batch, sizes[0], generator=generator).to(setup.device)
    y = torch.randint(sizes[-1], (batch,), generator=generator).to(setup.device)
    transforms = {
        baseline: None,
        "EGD exact": eg.Polar(),
        "EGD fast": eg.Polar(precision="fast"),
        "EGD coarse": eg.Polar(precision="coarse"),
        f"randomized, rank {rank}": eg.LowRankPolar(rank, cap=True),
        "row norm": eg.RowNorm(),
    }
    for name, transform in transforms.items():
        model = mlp(*sizes).to(setup.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        if transform is not None:
            eg.attach(optimizer, model, transform)
        yield Candidate(name, partial(_train_step, model, optimizer, x, y), captures=not name.startswith("randomized"))


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def gpt_candidates(setup: Setup, baseline: str) -> tuple[str, list[Candidate]]:
    """(group, candidates): steps of optimizers on the same weights and gradients."""
    layers = LAYERS if setup.cuda and not setup.quick else 1
    width = 32 if setup.quick else WIDTH
    group = "GPT 124M" if layers == LAYERS else f"GPT 124M, {layers} of {LAYERS} layers"
    weights = gpt_matrices(layers, width, setup.device)
    drawn = [weight.grad.clone() for weight in weights.values() if weight.grad is not None]
    candidates = [
        Candidate(name, step, partial(_restore, list(weights.values()), drawn), captures)
        for name, step, captures in _gpt_steps(weights, baseline, min(RANK, width // 2), setup)
    ]
    return group, candidates


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
        "EGD coarse": eg.Polar(precision="coarse"),
        f"randomized, rank {rank}": eg.LowRankPolar(rank),
        "row norm": eg.RowNorm(),
    }
    plan = eg.matrices(dict(weights), include=["*"])
    for name, transform in transforms.items():
        optimizer = torch.optim.SGD(every, lr=LR)
        eg.attach(optimizer, plan, transform)
        yield name, optimizer.step, not name.startswith("randomized")
    for precision in ("exact", "fast", "coarse"):
        yield f"equalize_ alone, {precision}", partial(eg.equalize_, plan, eg.Polar(precision=precision)), True
    muon = torch.optim.Muon(every, lr=LR)
    yield "torch.optim.Muon", muon.step, True
    if setup.cuda and not setup.quick:
        yield "torch.optim.Muon, compiled", torch.compile(torch.optim.Muon(every, lr=LR).step), False
    for package in PEERS:
        if installed(package):
            yield title(package), LazyStep(partial(peer, package, every)), False


class LazyStep:
    """A step of an optimizer that is built at the first: an error in another package becomes the note of its row."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._optimizer: Any = None

    def __call__(self) -> None:
        if self._optimizer is None:
            self._optimizer = self._build()
        self._optimizer.step()


def _pytorch_optimizer(module: Any, weights: list[Tensor]) -> Optimizer:
    return cast(Optimizer, module.Muon([{"params": weights, "use_muon": True}], lr=LR))


def _heavyball(module: Any, weights: list[Tensor]) -> Optimizer:
    kind = getattr(module, "Muon", None) or module.ForeachMuon  # its name before version 3
    return cast(Optimizer, kind(weights, lr=LR))


def _muon(module: Any, weights: list[Tensor]) -> Optimizer:
    return cast(Optimizer, module.SingleDeviceMuon(weights, lr=LR))


def _gram_newton_schulz(module: Any, weights: list[Tensor]) -> Optimizer:
    """Its own Muon. It restarts where its search would; the search prints pages."""
    return cast(
        Optimizer,
        module.Muon(weights, lr=LR, ns_use_kernels=installed(GRAM_KERNELS), gram_newton_schulz_restart_iterations=[2]),
    )


def _dion(module: Any, weights: list[Tensor]) -> Optimizer:
    """On one device, with its Triton kernels where they can run."""
    return cast(Optimizer, module.Muon(weights, lr=LR, use_triton=weights[0].is_cuda and installed("triton")))


PEERS: dict[str, Callable[[Any, list[Tensor]], Optimizer]] = {
    "pytorch_optimizer": _pytorch_optimizer,
    "heavyball": _heavyball,
    "muon": _muon,
    "gram_newton_schulz": _gram_newton_schulz,
    "dion": _dion,
}
"""Muon in other packages, by the module's name, measured if installed. The package of `muon` is muon-optimizer."""
GRAM_KERNELS = "quack"
"""The module of the kernels that gram_newton_schulz may use."""


def peer(package: str, weights: Sequence[Tensor]) -> Optimizer:
    """The package's Muon on these matrices."""
    return PEERS[package](importlib.import_module(package), list(weights))


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def title(package: str) -> str:
    """The name and version of a peer, in tables."""
    without = package == "gram_newton_schulz" and not installed(GRAM_KERNELS)
    return f"{package} {version(package)}" + (", without its kernels" if without else "")


def version(package: str) -> str:
    try:
        return importlib.metadata.version({"muon": "muon-optimizer"}.get(package, package))
    except importlib.metadata.PackageNotFoundError:  # a module of that name, not installed by pip
        return "of no known version"


@torch.no_grad()
def _restore(weights: Sequence[nn.Parameter], drawn: Sequence[Tensor]) -> None:
    """The gradients as they were drawn: an equalised gradient takes less time."""
    torch._foreach_copy_([weight.grad for weight in weights if weight.grad is not None], list(drawn))


EXPERIMENTS = ("addition-97", "parity-3")
QUICK = {
    "addition-97": ("task.modulus=7", "model.width=16", "training.batch=8"),
    "parity-3": ("task.bits=10", "task.train_size=40", "task.test_size=30", "model.width=12", "training.batch=8"),
}
BASELINE = "bare SGD"
RANKS = (128, 40)
"""The largest of the paper, for each network."""


def rows(setup: Setup) -> Iterator[BenchRow]:
    for name in EXPERIMENTS:
        experiment = load(name, QUICK[name] if setup.quick else ())
        for seeds in setup.seeds or ((1, 2) if setup.quick else (1, 8, 64) if setup.cuda else (1, 8)):
            group = f"{name}, {seeds} seed{'s' if seeds > 1 else ''}"
            yield from timed([_candidate(*each, experiment, seeds, setup) for each in methods(experiment)], setup, group)
    for build in (mlp_candidates, gpt_candidates):
        group, candidates = build(setup, BASELINE)
        yield from timed(candidates, setup, group)
    for package in PEERS:
        if not installed(package):
            yield BenchRow(group, package, note="not installed")


def timed(candidates: list[Candidate], setup: Setup, group: str) -> Iterator[BenchRow]:
    for name, timing in measure(candidates, setup, group).items():
        yield BenchRow(group, name, timing.n, {"ms": timing.ms, "graph_ms": timing.graph_ms}, timing.note)


def methods(experiment: Experiment) -> list[tuple[str, Method]]:
    """By their names in the table."""
    egd, side = experiment.method("egd"), smallest_side(experiment)
    rank = next(rank for rank in (*RANKS, side // 2) if rank < side)
    return [
        (BASELINE, experiment.method("sgd")),
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        ("EGD coarse", with_polar(egd, "coarse")),
        (f"randomized, rank {rank}", _randomized(egd, rank)),
        ("row norm", experiment.method("row-norm")),
        ("Muon", experiment.method("muon")),
    ]


def with_polar(method: Method, precision: Literal["exact", "fast", "coarse"]) -> Method:
    """The method with its polar factor in this precision."""
    links = (link.replace(precision=precision) if isinstance(link, PolarSettings) else link for link in method.transform)
    return method.replace(transform=tuple(links))


def _randomized(method: Method, rank: int) -> Method:
    """The method with the leading directions instead of all."""
    links = (LowRankPolarSettings(rank=rank) if isinstance(link, PolarSettings) else link for link in method.transform)
    return method.replace(transform=tuple(links))


def smallest_side(experiment: Experiment) -> int:
    """Of the hidden matrix."""
    start = Ensemble(experiment, [0], torch.device("cpu")).parameters["hidden.weight"]
    return min(start.shape[-2:])


def _candidate(name: str, method: Method, experiment: Experiment, seeds: int, setup: Setup) -> Candidate:
    """A step on one batch, repeated. A randomized one draws its sketch on the CPU, outside any graph."""
    ensemble = Ensemble(experiment, range(seeds), setup.device)
    stepper, batch = Stepper(method, ensemble.parameters), ensemble.epoch(0)[0]

    def step() -> None:
        ensemble.backward(batch)
        stepper.add_decay()
        stepper.step()

    return Candidate(name, step, captures=not name.startswith("randomized"))


THEME = Theme(
    name="step",
    title="One training step: bare, with EGD, and with other optimizers",
    about=(
        "The paper's networks: gradient, decay, transforms, update, on one batch, all seeds together. An MLP of "
        f"MNIST's size, as a plain program. {ABOUT}\n"
        f"ratio: how many times as long as `{BASELINE}`.\n"
        "graph: inside a CUDA graph, compared with the baseline in one."
    ),
    groups="network",
    columns=(
        Column("ms", "ms", three_digits),
        Column("ratio", "ratio", times),
        Column("graph_ms", "graph ms", three_digits),
        Column("graph_ratio", "graph ratio", times),
        Column("n", "n", text),
    ),
    number="ms",
    graph_key="graph_ms",
    baseline=BASELINE,
    ratio_is_speedup=False,
    rows=rows,
)
