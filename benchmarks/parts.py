"""What a CPU could gain: the parts of which a polar factor is made, timed one by one beside the authors' formula.

python benchmarks/parts.py
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch
from torch import Tensor

from egalitarian import polar
from egalitarian.kernels.eigh import upper_gram
from egalitarian.lab.runs import hardware

ROWS, COLUMNS, TURNS = 194, 512, 60
AUTHORS, FAST, EXACT = "the authors' formula, by SVD", "`polar`, fast, as a whole", "`polar`, exact, as a whole"


def milliseconds(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians; the works take turns, so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(TURNS + 3):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def parts(A: Tensor) -> dict[str, Callable[[], object]]:
    K = A @ A.mT
    shifted = K + torch.eye(len(K), dtype=A.dtype)
    factor = torch.linalg.cholesky(shifted)
    return {
        "Gram matrix": lambda: A @ A.mT,
        "its upper half, by thirds": lambda: upper_gram(A, A.dtype),
        "eigh": lambda: torch.linalg.eigh(K),
        "square times square": lambda: K @ K,
        "square times matrix": lambda: K @ A,
        "Cholesky factor": lambda: torch.linalg.cholesky(shifted),
        "its inverse": lambda: torch.cholesky_inverse(factor.mT, upper=True),
    }


def authors(G: Tensor) -> Tensor:
    U, S, _ = torch.linalg.svd(G, full_matrices=False)
    return (U / S) @ (U.mT @ G)


def main() -> None:
    torch.set_num_threads(1)
    U, _, Vh = torch.linalg.svd(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)), full_matrices=False)
    G = (U * torch.logspace(0, -3, ROWS)) @ Vh
    both = {dtype: parts(G.to(dtype)) for dtype in (torch.float32, torch.float64)}
    works = {f"{name}, {str(dtype)[6:]}": work for dtype, each in both.items() for name, work in each.items()}
    whole = {AUTHORS: lambda: authors(G), FAST: lambda: polar(G, precision="fast"), EXACT: lambda: polar(G)}
    found = milliseconds({**whole, **works})
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    lines = [f"# The parts of a polar factor, {ROWS} x {COLUMNS}, condition 1e3", ""]
    lines += [
        f"{hardware(torch.device('cpu'))}, 1 thread, {versions}, {date.today().isoformat()}; ms, medians of {TURNS} turns.",
        "",
    ]
    lines += ["| part | float32 | float64 |", "|---|---|---|"]
    lines += [
        f"| {name} | {found[f'{name}, float32']:.2f} | {found[f'{name}, float64']:.2f} |" for name in both[torch.float32]
    ]
    lines += [f"| {name} | {found[name]:.2f} | |" for name in whole]
    print("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
