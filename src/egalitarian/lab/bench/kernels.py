"""Every method for the polar factor, by shape: its time, and its distance from the float64 SVD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

import egalitarian as eg
from egalitarian.lab.bench.theme import (
    BLOCK_MS,
    BenchRow,
    Candidate,
    Column,
    Setup,
    Theme,
    Timing,
    measure,
    scientific,
    text,
    three_digits,
    times,
)

SHAPES = (
    (194, 512), (158, 512), (254, 512), (100, 100), (400, 50), (784, 200), (64, 194, 512), (1024, 1024),
)  # fmt: skip
"""The paper's hidden matrices (modular arithmetic, parity, MNIST), 64 seeds of one, and a large one."""
ON_A_GPU = ((4096, 4096),)
QUICK = ((24, 64), (2, 12, 20))
CONDITIONS = (1e3, 1e4)
"""Condition numbers; times are for the first."""
POLARS: tuple[tuple[Literal["svd", "eigh", "polynomial", "rational"], Literal["exact", "fast"]], ...] = (
    ("svd", "exact"), ("eigh", "exact"), ("eigh", "fast"), ("polynomial", "exact"), ("polynomial", "fast"),
    ("rational", "fast"),
)  # fmt: skip
RANKS = (128, 64)
BASELINE = "svd, float32 (authors)"
FLOOR = 1e-6
"""The lower bound of singular values in the authors' code."""
POLYNOMIAL_ON_A_CPU = 1_000_000
"""Entries above which the polynomial is left out on a CPU, where it takes minutes."""
Kernel = Callable[[Tensor], Tensor]


def authors(G: Tensor) -> Tensor:
    """(U / s) (Uᵀ G) in float32, as in the paper's code."""
    U, S, _ = torch.linalg.svd(G, full_matrices=False)
    product: Tensor = (U / S.clamp_min(FLOOR)[..., None, :]) @ (U.mT @ G)
    return product


def newton_schulz(G: Tensor) -> Tensor:
    """Muon's iteration as `torch.optim.Muon` calls it: bfloat16, five steps, one matrix at a time."""
    from torch.optim import _muon

    iterate = partial(_muon._zeropower_via_newtonschulz, ns_coefficients=COEFFICIENTS, ns_steps=5, eps=1e-7)
    if G.ndim == 2:
        return iterate(G)
    return torch.stack([iterate(matrix) for matrix in G.flatten(0, -3)]).reshape(G.shape)


COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""The defaults of `torch.optim.Muon`."""


def kernels(shape: tuple[int, ...], cuda: bool) -> dict[str, Kernel]:
    """By name, without ranks that are not below the matrix's own, and without what takes minutes."""
    left_out = {"rational"} if cuda else {"polynomial"} if math.prod(shape) > POLYNOMIAL_ON_A_CPU else set()
    chosen = [pair for pair in POLARS if pair[0] not in left_out]
    polars = {", ".join(pair): partial(eg.polar, method=pair[0], precision=pair[1]) for pair in chosen}
    ranks = [rank for rank in RANKS if rank < min(shape[-2:])] or [min(shape[-2:]) // 2]
    lowrank = {f"randomized, rank {rank}": partial(eg.polar_lowrank, rank=rank) for rank in ranks}
    return {BASELINE: authors, **polars, **lowrank, "row norm": eg.normalize, "Muon's iteration": newton_schulz}


def coarse(G: Tensor) -> dict[str, Kernel]:
    """The coarse factor, by name, where matrices of this shape have one."""
    try:
        method = eg.explain(G, precision="coarse").partition(":")[0]
    except (ValueError, RuntimeError):
        return {}
    return {f"{method}, coarse": partial(eg.polar, precision="coarse")}


def matrix(shape: tuple[int, ...], condition: float, device: torch.device) -> Tensor:
    """float32, singular values log-spaced from 1 down to 1 / condition; drawn on the CPU, the same everywhere."""
    generator = torch.Generator("cpu").manual_seed(0)
    *batch, rows, columns = shape
    short = min(rows, columns)

    def orthonormal(side: int) -> Tensor:
        drawn = torch.randn(*batch, side, short, generator=generator, dtype=torch.float64)
        Q: Tensor = torch.linalg.qr(drawn.to(device)).Q
        return Q

    S = torch.logspace(0, -math.log10(condition), short, dtype=torch.float64, device=device)
    return ((orthonormal(rows) * S) @ orthonormal(columns).mT).float()


def reference(G: Tensor) -> Tensor:
    """U Vᵀ by the float64 SVD; of full rank."""
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    product: Tensor = U @ Vh
    return product


def distance(P: Tensor, exact: Tensor) -> float:
    """|P - U Vᵀ| / sqrt(r) in the Frobenius norm, r the short side; of a batch, the largest."""
    off = torch.linalg.matrix_norm(P.double() - exact) / math.sqrt(min(exact.shape[-2:]))
    return float(off.max())


def rows(setup: Setup) -> Iterator[BenchRow]:
    shapes = QUICK if setup.quick else (*SHAPES, *(ON_A_GPU if setup.cuda else ()))
    for shape in shapes:
        group = " x ".join(map(str, shape))
        setup.report(f"{group}: the float64 SVD")
        samples = {condition: matrix(shape, condition, setup.device) for condition in CONDITIONS}
        G = samples[CONDITIONS[0]]
        listed = kernels(shape, setup.cuda) | coarse(G)
        timings = measure([_candidate(name, kernel, G) for name, kernel in listed.items()], setup, group)
        errors: dict[str, dict[str, float | None]] = {name: {} for name in listed}
        for condition, sample in samples.items():
            exact = reference(sample)
            for name, kernel in listed.items():
                setup.report(f"{group}: {name}, error")
                errors[name][_key(condition)] = _error(kernel, sample, exact)
        default = {precision: eg.explain(G, precision=precision).partition(":")[0] for precision in ("exact", "fast")}
        defaults = {*coarse(G), *(f"{method}, {precision}" for precision, method in default.items())}
        for name in listed:
            yield _row(group, name, timings[name], errors[name], "the default" if name in defaults else "")


def _candidate(name: str, kernel: Kernel, G: Tensor) -> Candidate:
    """LAPACK's kind of routine cannot be captured: it synchronises to read an error code."""
    synchronises = name == BASELINE or name.startswith(("svd", "eigh", "randomized"))
    return Candidate(name, partial(kernel, G), captures=not synchronises)


def _row(group: str, name: str, timing: Timing, errors: dict[str, float | None], note: str) -> BenchRow:
    notes = "; ".join(each for each in (note, timing.note) if each)
    return BenchRow(group, name, timing.n, {"ms": timing.ms, "graph_ms": timing.graph_ms, **errors}, notes)


def _error(kernel: Kernel, sample: Tensor, exact: Tensor) -> float | None:
    """None if it fails: the note of its time has the reason."""
    try:
        return distance(kernel(sample), exact)
    except (RuntimeError, ImportError, AttributeError):
        return None


def _key(condition: float) -> str:
    return f"error_{condition:.0e}".replace("+0", "")


THEME = Theme(
    name="kernels",
    title="The polar factor: time and error of every method",
    about=(
        "One matrix, or a batch of them, in float32, with log-spaced singular values.\n"
        f"ratio: how many times faster than `{BASELINE}`, which is (U / s)(Uᵀ G).\n"
        "graph: inside a CUDA graph, compared with the baseline's plain time.\n"
        "error: |P - U Vᵀ| / sqrt(r) against the float64 SVD, of a batch the largest. It is given for condition "
        "numbers 1e3 and 1e4; times are for 1e3.\n"
        "`fast` promises a root mean square error of 1e-3, over directions above 1e-3 of the largest; the error here "
        "includes the weaker ones.\n"
        "The randomized methods and the row norm are not polar factors, so their error is large.\n"
        "the default: what `polar` chooses for this shape, device and precision.\n"
        f"n: repeats, of which the median is shown. On a CPU a repeat is up to {BLOCK_MS:.0f} ms of calls, and "
        "the polynomial is left out above a million entries."
    ),
    groups="shape",
    columns=(
        Column("ms", "ms", three_digits),
        Column("ratio", "ratio", times),
        Column("graph_ms", "graph ms", three_digits),
        Column("graph_ratio", "graph ratio", times),
        Column("error_1e3", "error 1e3", scientific),
        Column("error_1e4", "error 1e4", scientific),
        Column("n", "n", text),
    ),
    number="ms",
    graph_key="graph_ms",
    baseline=BASELINE,
    ratio_is_speedup=True,
    rows=rows,
)
