"""The inverse root of small Gram matrices: one Triton kernel against a launch per product.

PYTHONPATH=src python benchmarks/fused.py
"""

from __future__ import annotations

import platform
from datetime import date

import torch
from timing import graph_ms

from egalitarian.kernels.coefficients import root_steps
from egalitarian.kernels.fused import is_available
from egalitarian.kernels.polynomial import _root

RTOL = 1e-6


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("a GPU must be present, got none; run this on one")
    versions = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}"
    print("# Inverse roots of small Gram matrices: one kernel, or a launch per product\n")
    print(f"{torch.cuda.get_device_name()}, {versions}, {date.today()}; medians of 15 turns, inside CUDA graphs.\n")
    print("ms for `polynomial._root` of matrices k x 200 in float64; difference: of the two, over the largest entry.\n")
    print("| matrices | k | per product | one kernel | ratio | difference |\n|---|---|---|---|---|---|")
    for count in (1, 8, 64):
        for k in (4, 8, 16, 30, 32, 40, 64):
            A = torch.randn(count, k, 200, dtype=torch.float64, device="cuda")
            assert is_available(k, A.device, root_steps(k, RTOL))
            ms, roots = {}, {}
            for name, root in (("one", "fused"), ("many", "quintics")):
                roots[name] = _root(A, RTOL, root)
                ms[name] = graph_ms(lambda A=A, root=root: _root(A, RTOL, root))
            difference = ((roots["one"] - roots["many"]).abs().max() / roots["many"].abs().max()).item()
            row = f"{ms['many']:.3f} | {ms['one']:.3f} | {ms['many'] / ms['one']:.1f} x | {difference:.0e}"
            print(f"| {count} | {k} | {row} |")


if __name__ == "__main__":
    main()
