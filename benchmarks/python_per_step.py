"""What an attached step costs the host in Python: `optimizer.step()` without waiting for the device, over that of bare SGD.

    PYTHONPATH=src python benchmarks/python_per_step.py [--out FILE]     # a minute on an H200; also runs on a CPU

One batch of matrices and twenty, with `Identity` (no arithmetic), exact and coarse. The rivals take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import egalitarian as eg
from egalitarian.lab.runs import hardware

TURNS = {"cuda": 320, "cpu": 40}
WARM_UP = 20
RIVALS: dict[str, Any] = {
    "bare SGD": None,
    "Identity": eg.Identity(),
    "exact": eg.Polar(),
    "coarse": eg.Polar(precision="coarse"),
}


def built(batches: int, transform: Any, device: torch.device) -> torch.optim.Optimizer:
    """SGD on so many matrices of different shapes, each a batch of its own."""
    shapes = [(64 + 8 * index, 300) for index in range(batches)]
    weights = {f"w{index}": torch.nn.Parameter(torch.randn(shape, device=device)) for index, shape in enumerate(shapes)}
    for weight in weights.values():
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.SGD(list(weights.values()), lr=1e-6)
    if transform is not None:
        eg.attach(optimizer, eg.matrices(weights, include="*"), transform)
    return optimizer


def host_ms(rivals: dict[str, torch.optim.Optimizer], turns: int, wait: Callable[[], object]) -> dict[str, float]:
    """Median milliseconds until `step()` returns. The device is idle when it begins."""
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(turns):
        for name, optimizer in rivals.items():
            wait()
            begun = time.perf_counter()
            optimizer.step()
            found[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(times[WARM_UP:]) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    out: Path | None = parser.parse_args().out
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    turns = TURNS[device.type]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    lines = [
        "# Python of an attached step\n",
        f"{hardware(device)}, torch {torch.__version__}, egalitarian {eg.__version__}, {date.today()}.",
        f"Milliseconds until `step()` returns, medians of {turns - WARM_UP} turns.\n",
        "| batches | step | host, ms | over bare SGD, ms |",
        "|---|---|---|---|",
    ]
    for batches in (1, 20):
        found = host_ms({name: built(batches, each, device) for name, each in RIVALS.items()}, turns, wait)
        lines += [f"| {batches} | {name} | {ms:.3f} | {ms - found['bare SGD']:.3f} |" for name, ms in found.items()]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
