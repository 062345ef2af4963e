"""Eight convolutional networks trained as one: which way to run them is fastest on a GPU (results/convolutions_*.md).

PYTHONPATH=src python benchmarks/convolutions.py
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import date

import torch
from timing import graph_ms
from torch import Tensor
from torch.nn import functional as F

from egalitarian.lab.config import catalog
from egalitarian.lab.problems import Parameters, networks
from egalitarian.lab.problems.models import linear

SEEDS = 8
Forward = Callable[[Parameters, Tensor], Tensor]


def torchs(x: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(x, 2) + bias[:, None, None])


def grouped(parameters: Parameters, inputs: Tensor) -> Tensor:
    """The networks as groups of one convolution."""
    values = inputs.transpose(0, 1).flatten(1, 2)
    for layer in sorted({name.rpartition(".")[0] for name in parameters if name.startswith("conv.")}):
        weight, bias = (parameters[f"{layer}.{which}"].flatten(0, 1) for which in ("weight", "bias"))
        values = F.relu(F.max_pool2d(F.conv2d(values, weight, bias, padding=1, groups=SEEDS), 2))
    values = values.view(len(values), SEEDS, -1).transpose(0, 1)
    return linear("output", parameters, linear("hidden", parameters, values).relu())


def one_by_one(model: networks.CNN, *, last: bool, kernels: bool) -> Forward:
    """The lab's own forward pass, with one of its two choices undone."""

    def forward(parameters: Parameters, inputs: Tensor) -> Tensor:
        order, pool = networks.channels_last, networks.pooled
        networks.channels_last = order if last else lambda images: images.unbind()
        networks.pooled = pool if kernels else torchs
        try:
            return model.forward(parameters, inputs)
        finally:
            networks.channels_last, networks.pooled = order, pool

    return forward


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("a GPU must be there, got none: this compares what runs on one")
    experiment = catalog.load("cifar-shuffle-1")
    model, task, batch = experiment.model, experiment.task, experiment.training.batch
    assert isinstance(model, networks.CNN)
    assert isinstance(batch, int)
    starts = [model.start(task, seed) for seed in range(SEEDS)]
    parameters = {name: torch.stack([start[name] for start in starts]).cuda().requires_grad_() for name in starts[0]}
    inputs = torch.randn(SEEDS, batch, *task.image, device="cuda")
    ways: dict[str, Forward] = {
        "`torch.func.vmap` over the networks": torch.func.vmap(model.one),
        "one convolution in groups": grouped,
        "network by network": one_by_one(model, last=False, kernels=False),
        "channels last": one_by_one(model, last=True, kernels=False),
        "channels last, pooling kernels (the lab's)": one_by_one(model, last=True, kernels=True),
    }
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    print("# Eight convolutional networks trained as one\n")
    print(f"{torch.cuda.get_device_name()}, {versions}, {date.today()}; medians of 15 turns, inside CUDA graphs.\n")
    print(f"ms for the gradients of the CIFAR-10 network of {experiment.name}, batches of {batch}, and for a forward pass;")
    print("difference: of the gradients from the first row's, over their largest entry, the worst layer's.\n")
    print("| way | gradients | forward | difference |\n|---|---|---|---|")
    first: list[Tensor] = []
    for way, forward in ways.items():

        def gradients(forward: Forward = forward) -> tuple[Tensor, ...]:
            return torch.autograd.grad(forward(parameters, inputs).square().mean((1, 2)).sum(), list(parameters.values()))

        @torch.no_grad()
        def values(forward: Forward = forward) -> Tensor:
            return forward(parameters, inputs)

        own = list(gradients())
        first = first or own
        difference = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(own, first, strict=True))
        print(f"| {way} | {graph_ms(gradients):.2f} | {graph_ms(values):.2f} | {difference:.0e} |", flush=True)


if __name__ == "__main__":
    main()
