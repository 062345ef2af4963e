"""How strong is rounding noise in a gradient, by the precision it was computed in?

With a batch smaller than the layer, a weight's gradient has at most `batch` directions, and that of a softmax head one
less than its classes; every further singular value is rounding noise. This prints the strongest such noise, relative to
the largest singular value, for each precision that this machine can compute in. `egalitarian.kernels.RTOL` must lie
above it.

    python benchmarks/noise.py [--device cuda]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from egalitarian.kernels import RTOL, Precision

CLASSES = 10


def gradients(
    precision: Precision, width: int, depth: int, batch: int, seed: int, device: str
) -> Iterator[tuple[Tensor, int]]:
    """The weight gradients of an MLP classifier after a few plain SGD steps, each with its true rank."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(2 * width, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, CLASSES)).to(device)
    half = precision in (torch.float16, torch.bfloat16)
    autocast = torch.autocast(device, dtype=precision) if half else nullcontext()  # type: ignore[arg-type]
    if precision == torch.float64:
        model.double()
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    scale = 2.0**16 if precision == torch.float16 else 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(batch, 2 * width, device=device, dtype=next(model.parameters()).dtype)
        y = torch.randint(CLASSES, (batch,), device=device)
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(model(x), y)
        (loss * scale).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= scale
        optimizer.step()
    for layer in model:
        if isinstance(layer, nn.Linear):
            assert layer.weight.grad is not None
            yield layer.weight.grad, min(batch, CLASSES - 1) if layer is model[-1] else batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}\n")
    print(f"{'computed in':<16}{'median noise':>14}{'worst noise':>14}{'cut-off':>10}{'matrices':>10}")
    for precision, rtol in RTOL.items():
        if precision == "tf32" and device == "cpu":
            continue
        noise = []
        for width, depth, batch, seed in itertools.product((64, 256, 1024), (1, 3), (8, 48), range(3)):
            for grad, rank in gradients(precision, width, depth, batch, seed, device):
                values = torch.linalg.svdvals(grad.double())
                noise.append((values[rank] / values[0]).item())
        label = str(precision).removeprefix("torch.")
        middle = sorted(noise)[len(noise) // 2]
        print(f"{label:<16}{middle:>14.1e}{max(noise):>14.1e}{rtol:>10.0e}{len(noise):>10}")


if __name__ == "__main__":
    main()
