"""One training step of the paper's networks, and one optimizer step on the matrices of a GPT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from egalitarian.lab.bench import optimizers
from egalitarian.lab.bench.theme import BenchRow, Column, Setup, Theme, figures, text, times
from egalitarian.lab.bench.timing import Work, measure
from egalitarian.lab.config import Experiment, LowRankPolarSettings, Method, PolarSettings, load
from egalitarian.lab.training import Ensemble, Stepper

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
            yield from timed([_work(*each, experiment, seeds, setup) for each in methods(experiment)], setup, group)
    for works in (optimizers.mlp_works, optimizers.gpt_works):
        group, rivals = works(setup, BASELINE)
        yield from timed(rivals, setup, group)
    for package in optimizers.PEERS:
        if not optimizers.installed(package):
            yield BenchRow(group, package, note="not installed")


def timed(works: list[Work], setup: Setup, group: str) -> Iterator[BenchRow]:
    for name, took in measure(works, setup, group).items():
        yield BenchRow(group, name, took.n, {"ms": took.ms, "graph_ms": took.graph_ms}, took.note)


def methods(experiment: Experiment) -> list[tuple[str, Method]]:
    """By their names in the table."""
    egd, side = experiment.method("egd"), smallest_side(experiment)
    rank = next(rank for rank in (*RANKS, side // 2) if rank < side)
    return [
        (BASELINE, experiment.method("sgd")),
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        (f"randomized, rank {rank}", _randomized(egd, rank)),
        ("row norm", experiment.method("row-norm")),
        ("torch.optim.Muon", experiment.method("muon")),
    ]


def with_polar(method: Method, precision: Literal["exact", "fast"]) -> Method:
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


def _work(name: str, method: Method, experiment: Experiment, seeds: int, setup: Setup) -> Work:
    """A step on one batch, repeated. A randomized one draws its sketch on the CPU, outside any graph."""
    ensemble = Ensemble(experiment, range(seeds), setup.device)
    stepper, batch = Stepper(method, ensemble.parameters), ensemble.epoch(0)[0]

    def step() -> None:
        ensemble.backward(batch)
        stepper.add_decay()
        stepper.step()

    return Work(name, step, captures=not name.startswith("randomized"))


THEME = Theme(
    name="step",
    title="One training step: bare, with EGD, and with other optimizers",
    about=(
        "The paper's networks: gradient, decay, transforms, update, on one batch, all seeds together. An MLP of "
        f"MNIST's size, as a plain program. {optimizers.ABOUT}\n"
        f"ratio: how many times as long as `{BASELINE}`.\n"
        "graph: inside a CUDA graph, compared with the baseline in one."
    ),
    groups="network",
    columns=(
        Column("ms", "ms", figures),
        Column("ratio", "ratio", times),
        Column("graph_ms", "graph ms", figures),
        Column("graph_ratio", "graph ratio", times),
        Column("n", "n", text),
    ),
    number="ms",
    graph="graph_ms",
    baseline=BASELINE,
    faster=False,
    rows=rows,
)
