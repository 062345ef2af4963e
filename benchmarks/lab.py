"""What an epoch of the lab costs: against the straightforward program, and eight seeds as one against one after another.

The straightforward program is the paper's Algorithms 1 and 2 as its authors wrote them, in torch: dense one-hots,
`torch.linalg.svd`, (U / s) (Uᵀ G), one seed. Both train the same network on the same batches; an epoch is nine steps,
evaluation not counted. They take turns in one process; medians.

    python benchmarks/lab.py [--threads 1] [--epochs 12] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.problems import stream
from egalitarian.lab.runs import hardware
from egalitarian.lab.training import Ensemble, Stepper

EXPERIMENT = "addition-97"
Epoch = Callable[[int], None]
"""Trains one epoch, by its number."""


def straightforward(experiment: Experiment, seed: int, equalise: bool) -> tuple[dict[str, Tensor], Epoch]:
    """The paper's training as one would write it first, with its weights as they change."""
    settings, dtype = experiment.methods["sgd"].optim, getattr(torch, experiment.training.precision)
    start = experiment.model.start(experiment.task, seed)
    weights = {name: value.contiguous().to(dtype).requires_grad_() for name, value in start.items()}
    W1, b1, W2 = weights["hidden.weight"], weights["hidden.bias"], weights["output.weight"]
    data = experiment.task.build(seed).train
    x = F.one_hot(data.inputs, experiment.task.features).sum(1).to(dtype)
    optimizer = torch.optim.SGD([W1, b1, W2], lr=settings.lr)
    batch = experiment.training.batch

    def epoch(number: int) -> None:
        order = torch.randperm(len(x), generator=stream(seed, "batches", number))
        for chosen in order.split(batch)[: len(x) // batch]:
            outputs = F.relu(x[chosen] @ W1.mT + b1) @ W2.mT
            decay = settings.weight_decay / 2 * (W1.square().sum() + W2.square().sum())
            (F.cross_entropy(outputs, data.labels[chosen]) + decay).backward()
            if equalise:
                U, S, _ = torch.linalg.svd(W1.grad, full_matrices=False)
                W1.grad = (U / S.clamp_min(1e-6)) @ (U.mT @ W1.grad)
            optimizer.step()
            optimizer.zero_grad()

    return weights, epoch


def lab(experiment: Experiment, seeds: list[int], method: str) -> Epoch:
    """The lab's loop without its measures."""
    ensemble = Ensemble(experiment, seeds, torch.device("cpu"))
    stepper = Stepper(experiment.methods[method], ensemble.parameters)

    def epoch(number: int) -> None:
        for batch in ensemble.epoch(number):
            ensemble.backward(batch)
            stepper.add_decay()
            stepper.step()

    return epoch


def in_turn(rivals: dict[str, Epoch], epochs: int) -> dict[str, float]:
    """Median milliseconds of an epoch of each; the first two are warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(epochs + 2):
        for name, epoch in rivals.items():
            start = time.perf_counter()
            epoch(number)
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(times[2:]) for name, times in seconds.items()}


def report(epochs: int) -> str:
    experiment = catalog.load(EXPERIMENT)
    head = f"{hardware(torch.device('cpu'))}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, "
    lines = [
        f"# The lab's epoch: {experiment.title}",
        "",
        head + f"{datetime.date.today()}; medians of {epochs} epochs.",
        "",
    ]
    lines += ["| one seed | straightforward ms | lab ms | ratio |", "|---|---|---|---|"]
    for method, equalise in (("egd", True), ("sgd", False)):
        times = in_turn({"plain": straightforward(experiment, 0, equalise)[1], "lab": lab(experiment, [0], method)}, epochs)
        lines.append(f"| {method} | {times['plain']:.1f} | {times['lab']:.1f} | **{times['lab'] / times['plain']:.2f}** |")
    lines += ["", "| eight seeds | one after another ms | as one ms | ratio |", "|---|---|---|---|"]
    for method in ("egd", "sgd"):
        alone = [lab(experiment, [seed], method) for seed in range(8)]

        def one_by_one(number: int, alone: list[Epoch] = alone) -> None:
            for epoch in alone:
                epoch(number)

        times = in_turn({"alone": one_by_one, "together": lab(experiment, list(range(8)), method)}, max(3, epochs // 3))
        ratio = times["together"] / times["alone"]
        lines.append(f"| {method} | {times['alone']:.1f} | {times['together']:.1f} | **{ratio:.2f}** |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = report(options.epochs)
    print(text)
    if options.save:
        name = "-".join(hardware(torch.device("cpu")).lower().split()[:2])
        path = Path(__file__).parent / "results" / f"lab_{name}_{datetime.date.today()}.md"
        path.write_text(text)
        print(f"written to {path.relative_to(Path(__file__).parent.parent)}")


if __name__ == "__main__":
    main()
