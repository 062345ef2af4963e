"""What does exact EGD cost? `polar` against the SVD and the authors' formula, and an attached step against the bare one.

Side by side in one process, the methods taking turns; medians. Error: |P - U Vᵀ| / |U Vᵀ| in the Frobenius norm, against
the float64 SVD of the same float32 matrix.

    python benchmarks/speed.py [--device cuda] [--threads 1] [--repeats 15] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import egalitarian as eg

SHAPES = [
    (194, 512), (158, 512), (254, 512), (400, 50), (100, 100), (784, 200), (200, 200), (200, 10), (512, 128), (64, 288),
    (1024, 1024),
]  # fmt: skip
BATCHES = [(16, 194, 512), (64, 100, 100)]
CONDITION = 1e3


def svd_bare(G: Tensor) -> Tensor:
    """U @ Vh: right for full rank only."""
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    product: Tensor = U @ Vh
    return product


def authors(G: Tensor) -> Tensor:
    """(U / s) (Uᵀ G) with s clamped from below at 1e-6, as in the paper's code."""
    U, S, _ = torch.linalg.svd(G, full_matrices=False)
    product: Tensor = (U / S.clamp_min(1e-6)[..., None, :]) @ (U.mT @ G)
    return product


METHODS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "torch.linalg.svd": svd_bare,
    "authors": authors,
    "polar": eg.polar,
    "polar svd": lambda G: eg.polar(G, method="svd"),
}


def matrix(shape: tuple[int, ...], device: str) -> Tensor:
    """float32, singular values log-spaced over the condition number."""
    generator = torch.Generator().manual_seed(0)
    short = min(shape[-2:])
    U, _, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    S = torch.logspace(0, -torch.tensor(CONDITION).log10().item(), short, dtype=torch.float64)
    return ((U * S) @ Vh).float().to(device)


def medians(works: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Milliseconds of each, taking turns so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 2):
        for name, work in works.items():
            _wait(device)
            start = time.perf_counter()
            work()
            _wait(device)
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def kernels(repeats: int, device: str) -> list[str]:
    rows = [
        "| shape | svd ms | authors ms | polar ms | polar svd ms | **polar over authors** | error svd | authors | polar |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for shape in [*SHAPES, *BATCHES]:
        G = matrix(shape, device)
        reference = eg.polar(G.double())
        error = {name: ((method(G) - reference).norm() / reference.norm()).item() for name, method in METHODS.items()}
        turns = max(3, repeats // 4) if G.numel() > 500_000 else repeats
        took = medians({name: partial(method, G) for name, method in METHODS.items()}, turns, device)
        label = " x ".join(map(str, shape))
        ratio = took["authors"] / took["polar"]
        rows.append(
            f"| {label} | {took['torch.linalg.svd']:.2f} | {took['authors']:.2f} | {took['polar']:.2f} | "
            f"{took['polar svd']:.2f} | {ratio:.2f} x | {error['torch.linalg.svd']:.0e} | {error['authors']:.0e} | "
            f"{error['polar']:.0e} |"
        )
        print(rows[-1], flush=True)
    return rows


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def steps(repeats: int, device: str) -> list[str]:
    """A whole training step of the paper's mod-97 network and of an MNIST-sized one: forward, backward, update."""
    rows = ["| network, batch | optimizer | bare ms | attached ms | ratio | added ms |", "|---|---|---|---|---|---|"]
    for label, sizes, batch in (("194-512-97", (194, 512, 97), 512), ("784-200-200-10", (784, 200, 200, 10), 200)):
        x = torch.randn(batch, sizes[0], device=device)
        y = torch.randint(sizes[-1], (batch,), device=device)
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            works = {}
            for name in ("bare", "attached"):
                torch.manual_seed(0)
                layers: list[nn.Module] = []
                for fan_in, fan_out in pairwise(sizes):
                    layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
                model = nn.Sequential(*layers[:-1]).to(device)
                optimizer = kind(model.parameters(), lr=1e-3)
                if name == "attached":
                    eg.attach(optimizer, model)
                works[name] = partial(one_step, model, optimizer, x, y)
            took = medians(works, 3 * repeats, device)
            rows.append(
                f"| {label}, {batch} | {kind.__name__} | {took['bare']:.2f} | {took['attached']:.2f} | "
                f"{took['attached'] / took['bare']:.2f} x | {took['attached'] - took['bare']:.2f} |"
            )
            print(rows[-1], flush=True)
    return rows


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15, help="timed turns per method, of which the median is shown")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/speed_<hardware>_<date>.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chip, today = hardware(options.device), datetime.date.today().isoformat()
    where = f"{chip}, {options.threads} thread(s), torch {torch.__version__}, Python {platform.python_version()}, {today}"
    print(f"# Exact EGD: speed and error\n\n{where}\n\nOne matrix or batch, float32, condition {CONDITION:g}\n")
    tables = [kernels(options.repeats, options.device)]
    print("\nOne training step\n")
    tables.append(steps(options.repeats, options.device))
    if options.save:
        slug = "-".join("".join(c if c.isalnum() else " " for c in chip).lower().split())
        path = Path(__file__).parent / "results" / f"speed_{slug}_{today}.md"
        path.parent.mkdir(exist_ok=True)
        lines = [f"# Exact EGD: speed and error\n\n{where}; medians of {options.repeats} turns, methods taking turns."]
        lines += [f"\nOne matrix or batch, float32, condition {CONDITION:g}:\n", *tables[0]]
        lines += ["\nOne training step (forward, backward, update), EGD on the hidden matrices:\n", *tables[1], ""]
        path.write_text("\n".join(lines))
        print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
