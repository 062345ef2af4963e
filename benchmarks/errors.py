"""How far the fast polar factor of a CPU is from the float64 SVD, over random spectra.

python benchmarks/errors.py
"""

from __future__ import annotations

import math
import platform
import random
import statistics
from collections.abc import Iterator
from datetime import date

import torch
from torch import Tensor

from egalitarian.kernels.rational import rational_factor
from egalitarian.lab.runs import hardware

FAST = 4000
"""Matrices."""


def spectrum(kind: str, count: int, weakest: float, draw: random.Random) -> list[float]:
    """`count` values from 1 down to `weakest`."""
    if kind == "decades":
        return [weakest ** (place / max(count - 1, 1)) for place in range(count)]
    if kind == "two groups":
        strong = draw.randint(1, count)
        return [1.0] * strong + [weakest] * (count - strong)
    if kind == "one strong":
        return [1.0] + [weakest] * (count - 1)
    if kind == "few weak":
        weak = min(draw.choice([1, 1, 2, 4, 8]), count - 1)
        return [1.0] * (count - weak) + [weakest * (1 + 0.3 * place) for place in range(weak)]
    if kind == "three groups":
        return [draw.choice([1.0, weakest**0.5, weakest]) * (1 + 0.1 * draw.random()) for _ in range(count)]
    return [weakest ** draw.random() for _ in range(count)]


KINDS = ("decades", "two groups", "one strong", "few weak", "three groups", "anywhere")


def matrix(rows: int, columns: int, values: list[float], draw: random.Random) -> Tensor:
    generator = torch.Generator().manual_seed(draw.randint(0, 2**31))
    U, V = (
        torch.linalg.qr(torch.randn(side, len(values), generator=generator, dtype=torch.float64)).Q
        for side in (rows, columns)
    )
    return ((U * torch.tensor(values, dtype=torch.float64)) @ V.mT).float()


def for_fast(draw: random.Random) -> Iterator[Tensor]:
    """Of any shape, rank, scale and condition."""
    for _ in range(FAST):
        short = draw.choice([2, 3, 5, 10, 30, 64, 100, 194])
        long = round(short * draw.choice([1, 1, 1.3, 2, 4, 20]))
        rank = draw.choice([short, short, short, max(short // 2, 1), max(short - 1, 1), 1])
        values = spectrum(draw.choice(KINDS), rank, 10 ** -(draw.random() * draw.choice([2, 3, 3, 3.5, 6])), draw)
        G = 10 ** draw.uniform(-6, 6) * matrix(short, long, values, draw)
        yield G.mT.contiguous() if draw.random() < 0.3 else G


def fast_errors(G: Tensor, P: Tensor) -> tuple[float, float, float]:
    """Of the directions above 1e-3 of the largest, left or right: the root mean square, the largest; the largest value."""
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    strong = 1e-3 * S[0] < S
    off = U.mT @ P.double() @ Vh.mT - torch.eye(len(S), dtype=torch.float64)
    both = [torch.linalg.vector_norm(part, dim=1) for part in (off[strong], off.mT[strong])]
    mean = max(math.sqrt(float(each.square().mean())) for each in both)
    return mean, max(float(each.max()) for each in both), float(torch.linalg.matrix_norm(P.double(), 2))


def main() -> None:
    torch.set_num_threads(1)
    draw = random.Random(0)
    found = [fast_errors(G, P) for G in for_fast(draw) if (P := rational_factor(G)) is not None]
    means, singles, values = zip(*found, strict=True)
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    lines = [
        "# How far the fast polar factor of a CPU is from the float64 SVD",
        "",
        f"{hardware(torch.device('cpu'))}, {versions}, {date.today().isoformat()}; `benchmarks/errors.py`, seed 0.",
        "",
        f"Fast, {FAST} matrices of random spectra, shapes, ranks, scales, {len(found)} of them taken by inverses. Of the",
        "directions above 1e-3 of the largest:",
        "",
        "| | median | largest |",
        "|---|---|---|",
        f"| root mean square error | {statistics.median(means):.1e} | {max(means):.1e} |",
        f"| error of the worst direction | {statistics.median(singles):.1e} | {max(singles):.1e} |",
        f"| largest singular value | {statistics.median(values):.3f} | {max(values):.3f} |",
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
