"""The inverse root of small Gram matrices: one Triton kernel against a launch per product (results/resident_*.md).

PYTHONPATH=src python benchmarks/resident.py
"""

from __future__ import annotations

import platform
from datetime import date

import torch
from timing import graph_ms

from egalitarian.kernels import polynomial as products

RTOL = 1e-6


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("a GPU must be there, got none: this compares what runs on one")
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    print("# Inverse roots of small Gram matrices: one kernel, or a launch per product\n")
    print(f"{torch.cuda.get_device_name()}, {versions}, {date.today()}; medians of 15 turns, inside CUDA graphs.\n")
    print("ms for `products._root` of matrices k x 200 in float64; difference: of the two, over the largest entry.\n")
    print("| matrices | k | per product | one kernel | ratio | difference |\n|---|---|---|---|---|---|")
    kernel = products.fits_a_block
    for count in (1, 8, 64):
        for k in (4, 8, 16, 30, 32, 40, 64):
            A = torch.randn(count, k, 200, dtype=torch.float64, device="cuda")
            ms, roots = {}, {}
            for way, fits in (("one", kernel), ("many", lambda *_: False)):
                products.fits_a_block = fits
                roots[way] = products._root(A, RTOL)
                ms[way] = graph_ms(lambda A=A: products._root(A, RTOL))
            difference = ((roots["one"] - roots["many"]).abs().max() / roots["many"].abs().max()).item()
            row = f"{ms['many']:.3f} | {ms['one']:.3f} | {ms['many'] / ms['one']:.1f} x | {difference:.0e}"
            print(f"| {count} | {k} | {row} |")


if __name__ == "__main__":
    main()
