"""An attached step of two versions of the library, interleaved: what a change costs or saves.

    python benchmarks/attached_step.py --before PATH/src [--after src] [--device cuda]

Each version runs in a process of its own. The processes take turns, block by block: a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

BLOCKS = 40
SECONDS = 0.15
"""Of one block."""


def networks(device: str) -> dict[str, list[int]]:
    """Widths of multilayer perceptrons: a tiny one, where Python is all; the paper's; one with many layers."""
    return {"6-5-3": [6, 5, 3], "194-512-97": [194, 512, 97], "12 x 256": [256] * 13}


def worker(device: str) -> None:
    """Answers each line on stdin, the name of a network, with the milliseconds of one optimizer step."""
    import torch

    import egalitarian as eg

    torch.set_num_threads(1)
    optimizers = {}
    for name, widths in networks(device).items():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        model = torch.nn.Sequential(*layers).to(device)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        eg.attach(optimizer, model)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        optimizers[name] = (optimizer, list(model.parameters()), gradients)
    for line in sys.stdin:
        optimizer, parameters, gradients = optimizers[line.strip()]
        steps, spent = 0, 0.0
        while spent < SECONDS or steps < 3:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad.copy_(gradient)
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()
            spent += time.perf_counter() - begin
            steps += 1
        print(json.dumps(1e3 * spent / steps), flush=True)


def start(source: Path, device: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", __file__, "--worker", "--device", device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(source.resolve()), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )


def ask(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        worker(options.device)
        return
    import torch

    from egalitarian.lab.runs import hardware

    machine = hardware(torch.device(options.device))
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    print(f"# A step of SGD with EGD attached, before and after\n\n{machine}, {versions}, {date.today()}; one thread.\n")
    print(f"ms of `optimizer.step()`: medians of {BLOCKS} blocks, the versions in turn; ratio (quartiles).")
    print("fastest tenth: the ratio of the lower deciles, which other work on the machine disturbs least.\n")
    print("| network | before | after | ratio | fastest tenth |\n|---|---|---|---|---|")
    before, after = start(options.before, options.device), start(options.after, options.device)
    for name in networks(options.device):
        for process in (before, after):
            ask(process, name)  # warm up
        pairs = [(ask(before, name), ask(after, name)) for _ in range(BLOCKS)]
        old, new = (statistics.median(each) for each in zip(*pairs, strict=True))
        quartiles = statistics.quantiles([later / earlier for earlier, later in pairs], n=4)
        fastest = [statistics.quantiles(each, n=10)[0] for each in zip(*pairs, strict=True)]
        spread = f"{new / old:.2f} ({quartiles[0]:.2f}–{quartiles[2]:.2f})"
        print(f"| {name} | {old:.3f} | {new:.3f} | {spread} | {fastest[1] / fastest[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
