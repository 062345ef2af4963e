"""Would a Triton kernel beat the library's own products? A trial, kept for its answer (results/triton_*.md), not a part.

Two kernels: `fused`, one product a launch with the polynomial's other terms in it; `resident`, one block a matrix that runs
a whole chain of products, its matrices in fast memory, as one launch. Both against `torch.bmm`, all inside CUDA graphs.

    PYTHONPATH=src python benchmarks/triton_trial.py
"""

from __future__ import annotations

import platform
from datetime import date

import torch
import triton
import triton.language as tl
from timing import graph_ms

CHAIN = 12
"""Products in a row, as a few quintics make them."""


@triton.jit
def fused(A, B, D, C, n, alpha, beta, gamma, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """C = alpha A B + beta D + gamma 1, a tile a block."""
    row, column, start = tl.program_id(0), tl.program_id(1), tl.program_id(2) * n * n
    i, j, k = row * BLOCK + tl.arange(0, BLOCK), column * BLOCK + tl.arange(0, BLOCK), tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float64 if PRECISION == "float64" else tl.float32)
    for at in range(0, n, DEPTH):
        a = tl.load(A + start + i[:, None] * n + (at + k)[None, :], (i < n)[:, None] & (at + k < n)[None, :], 0.0)
        b = tl.load(B + start + (at + k)[:, None] * n + j[None, :], (at + k < n)[:, None] & (j < n)[None, :], 0.0)
        if PRECISION == "float64":
            total += tl.dot(a, b, out_dtype=tl.float64)
        elif PRECISION == "half":
            total = tl.dot(a, b, total)
        else:
            total = tl.dot(a, b, total, input_precision=PRECISION)
    inside = (i < n)[:, None] & (j < n)[None, :]
    place = start + i[:, None] * n + j[None, :]
    total = alpha * total + beta * tl.load(D + place, inside, 0.0) + tl.where(i[:, None] == j[None, :], gamma, 0.0)
    tl.store(C + place, total.to(C.dtype.element_ty), inside)


@triton.jit
def resident(A, B, n, steps, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """A <- 1.5 A - 0.5 A², `steps` times, B being room: one block owns one matrix, which stays in its cache."""
    start = tl.program_id(0) * n * n
    k = tl.arange(0, DEPTH)
    source, target = A, B
    for step in range(steps):
        if step % 2 == 0:
            source, target = A, B
        else:
            source, target = B, A
        for row in range(0, n, BLOCK):
            i = row + tl.arange(0, BLOCK)
            for column in range(0, n, BLOCK):
                j = column + tl.arange(0, BLOCK)
                total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
                for at in range(0, n, DEPTH):
                    a = tl.load(
                        source + start + i[:, None] * n + (at + k)[None, :], (i < n)[:, None] & (at + k < n)[None, :], 0.0
                    )
                    b = tl.load(
                        source + start + (at + k)[:, None] * n + j[None, :], (at + k < n)[:, None] & (j < n)[None, :], 0.0
                    )
                    total = tl.dot(a, b, total, input_precision=PRECISION)
                inside = (i < n)[:, None] & (j < n)[None, :]
                place = start + i[:, None] * n + j[None, :]
                tl.store(target + place, 1.5 * tl.load(source + place, inside, 0.0) - 0.5 * total, inside)
        tl.debug_barrier()


def best(kernel: str, shape: tuple[int, int], dtype: torch.dtype, precision: str) -> tuple[float, str, float]:
    """(ms of a chain, setting, error of one product) of the best tile."""
    batch, n = shape
    A = torch.randn(batch, n, n, device="cuda", dtype=torch.float64) / n**0.5
    A = ((A + A.mT) / 4).to(dtype)
    B, D = torch.zeros_like(A), torch.zeros_like(A)
    exact = A.double() @ A.double()
    found: list[tuple[float, str, float]] = []
    for block in (32, 64) if kernel == "fused" else (64, 128):
        for depth in (16, 32):
            for warps in (4,) if kernel == "fused" else (8,):
                try:
                    tiles = triton.cdiv(n, block)
                    if kernel == "fused":

                        def run(block: int = block, depth: int = depth, warps: int = warps, tiles: int = tiles) -> None:
                            for _ in range(CHAIN):
                                fused[(tiles, tiles, batch)](
                                    A, A, D, B, n, 1.0, 0.5, 0.0, block, depth, precision, num_warps=warps
                                )

                        run()
                        error = ((B.double() - exact).norm() / exact.norm()).item()
                    else:
                        work = A.clone()
                        resident[(batch,)](work, B, n, 1, block, depth, precision, num_warps=warps)
                        wanted = 1.5 * A.double() - 0.5 * exact
                        error = ((B.double() - wanted).norm() / wanted.norm()).item()

                        def run(block: int = block, depth: int = depth, warps: int = warps) -> None:
                            resident[(batch,)](A, B, n, CHAIN, block, depth, precision, num_warps=warps)

                    found.append((graph_ms(run), f"tile {block}, depth {depth}, {warps} warps", error))
                except Exception as problem:  # too large for the card's shared memory, or not supported
                    found.append((float("inf"), type(problem).__name__, float("nan")))
    return min(found)


def main() -> None:
    card, day = torch.cuda.get_device_name(), date.today().isoformat()
    versions = f"torch {torch.__version__.split('+')[0]}, triton {triton.__version__}, Python {platform.python_version()}"
    print(
        f"# A Triton kernel for the products: the trial\n\n{card}, {versions}, {day}; medians of 15 turns in CUDA graphs.\n"
    )
    print(f"ms for {CHAIN} products in a row; error: of one product. `fused` has the polynomial's other terms in it.\n")
    print("| matrices | precision | torch.bmm | fused | resident | error | best fused | best resident |")
    print("|---|---|---|---|---|---|---|---|")
    kinds = {"float64": torch.float64, "ieee": torch.float32, "tf32x3": torch.float32, "tf32": torch.float32}
    for batch, n in ((1, 200), (64, 200)):
        for precision, dtype in {**kinds, "half": torch.float16}.items():
            X = torch.randn(batch, n, n, device="cuda").to(dtype)
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

            def plain(X: torch.Tensor = X) -> None:
                for _ in range(CHAIN):
                    torch.bmm(X, X)

            one = best("fused", (batch, n), dtype, precision)
            whole = best("resident", (batch, n), dtype, precision) if dtype == torch.float32 else (float("nan"), "", 0.0)
            times = f"{graph_ms(plain):.3f} | {one[0]:.3f} | {whole[0]:.3f}".replace("nan", "-")
            print(f"| {batch} x {n} | {precision} | {times} | {one[2]:.0e} | {one[1]} | {whole[1]} |", flush=True)


if __name__ == "__main__":
    main()
