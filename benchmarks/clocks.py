"""Decoders as lists of matrices, and what the polar factors of matrices take on one H200.

Times of kernels are read from benchmarks/results, fitted, and scaled to other shapes by products that are counted.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import egalitarian as eg
from egalitarian.apply.batch import SHARED_ELEMENTS
from egalitarian.lab.bench.kernels import newton_schulz
from egalitarian.select import Entry

RESULTS = Path(__file__).parent / "results"
KERNELS = "kernels_nvidia-h200_2026-11-15"
STEP = "step_nvidia-h200_2026-11-15"
TRAIN = "train_nvidia-h200_2026-11-18"
WHOLE = "whole-step_nvidia-h200_2026-11-18"
Shape = tuple[int, int]
"""Rows and columns of a matrix."""


# -- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A decoder: as GPT-2, with fused queries, keys and values; with `grouped` as Llama 2."""

    name: str
    layers: int
    width: int
    hidden: int
    vocabulary: int = 50257
    grouped: int | None = None
    """Width of keys and values."""

    @cached_property
    def network(self) -> nn.Module:
        with torch.device("meta"):
            blocks = nn.ModuleList(self._block() for _ in range(self.layers))
            parts = {"embedding": nn.Embedding(self.vocabulary, self.width), "blocks": blocks}
            return nn.ModuleDict({**parts, "head": nn.Linear(self.width, self.vocabulary, bias=False)})

    def _block(self) -> nn.Module:
        linear = partial(nn.Linear, bias=False)
        if self.grouped is None:
            attention: dict[str, nn.Module] = {"attention": nn.MultiheadAttention(self.width, 1, bias=False)}
            sides = {"up": (self.width, self.hidden), "down": (self.hidden, self.width)}
        else:
            attention, wide, narrow = {}, (self.width, self.width), (self.width, self.grouped)
            sides = {"q": wide, "k": narrow, "v": narrow, "o": wide, "gate": (self.width, self.hidden)}
            sides |= {"up": (self.width, self.hidden), "down": (self.hidden, self.width)}
        return nn.ModuleDict(attention | {name: linear(*each) for name, each in sides.items()})

    @cached_property
    def entries(self) -> list[Entry]:
        """Parameters that EGD takes; the embedding and the head are left to the optimizer."""
        return list(eg.matrices(self.network).taken)

    @property
    def parameters(self) -> int:
        """Of all matrices and the head."""
        return sum(entry.parameter.numel() for entry in self.entries) + self.vocabulary * self.width


MODELS = (
    Model("124M", 12, 768, 3072),
    Model("350M", 24, 1024, 4096),
    Model("1.3B", 24, 2048, 8192),
    Model("7B", 32, 4096, 11008, 32000, 4096),
    Model("13B", 40, 5120, 13824, 32000, 5120),
    Model("70B", 80, 8192, 28672, 32000, 1024),
)


def matrices_of(entries: Iterable[Entry]) -> Counter[Shape]:
    shapes: Counter[Shape] = Counter()
    for entry in entries:
        for target in entry.targets:
            shapes[target.rows, target.columns] += target.stack or 1
    return shapes


# -- seconds of a kernel ----------------------------------------------------------------------------------------------


@cache
def operations(kernel: Callable[[Tensor], Tensor], rows: int, columns: int) -> float:
    """Of all products for one matrix, counted at a short side of 64 and scaled."""
    short, long = sorted((rows, columns))
    with FlopCounterMode(display=False) as counter:
        kernel(torch.randn(64, round(64 * long / short), generator=torch.Generator().manual_seed(0)))
    return float(counter.get_total_flops()) * (short / 64) ** 3


EXACT = partial(eg.polar, method="polynomial", precision="exact")
COARSE = partial(eg.polar, method="polynomial", precision="coarse")


@dataclass(frozen=True)
class Point:
    """A measured time of a batch of matrices."""

    name: str
    shape: Shape
    count: int
    seconds: float


@dataclass(frozen=True)
class Clock:
    """seconds = start + operations / rate, with rate = top (m / largest)^growth for a short side m; above, the top."""

    start: float
    top: float
    growth: float
    largest: int

    def rate(self, short: int) -> float:
        return float(self.top * min(1.0, short / self.largest) ** self.growth)

    def seconds(self, work: float, short: int, calls: int = 1) -> float:
        return calls * self.start + work / self.rate(short)


def fitted(points: Sequence[Point], kernel: Callable[[Tensor], Tensor]) -> Clock:
    """The clock with the least squares of log-ratios to these points."""
    largest = max(min(point.shape) for point in points)
    work = torch.tensor([point.count * operations(kernel, *point.shape) for point in points], dtype=torch.float64)
    ratio = torch.tensor([min(point.shape) / largest for point in points], dtype=torch.float64)
    taken = torch.tensor([point.seconds for point in points], dtype=torch.float64)
    found = torch.stack([taken.min().log(), (work / taken).max().log(), torch.tensor(0.5, dtype=torch.float64)])
    found.requires_grad_(True)
    search = torch.optim.LBFGS(
        [found], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        start, top, growth = found
        predicted = start.exp() + work * (-top - growth.square() * ratio.log()).exp()  # the rate never falls with m
        total = (predicted / taken).log().square().sum()
        total.backward()
        return torch.as_tensor(total)

    search.step(loss)  # type: ignore[no-untyped-call]
    start, top, growth = found.tolist()
    return Clock(math.exp(start), math.exp(top), growth**2, largest)


def left_out(points: Sequence[Point], kernel: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """By point: the time predicted without it, over the measured one."""
    found = {}
    for point in points:
        clock = fitted([other for other in points if other is not point], kernel)
        work = point.count * operations(kernel, *point.shape)
        found[point.name] = clock.seconds(work, min(point.shape)) / point.seconds
    return found


@cache
def rows_of(file: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["rows"])


def measured(method: str, batches: bool = True) -> list[Point]:
    """What the kernel took in a CUDA graph, by shape."""
    points = []
    for row in rows_of(KERNELS):
        count, *shape = [1, *map(int, row["group"].split(" x "))][-3:]
        if row["method"] == method and (batches or count == 1):
            points.append(Point(row["group"], (shape[0], shape[1]), count, row["graph_ms"] / 1e3))
    return points


@dataclass(frozen=True)
class Tier:
    """A precision tier: products that are counted, at the rate of a measured kernel."""

    name: str
    kernel: Callable[[Tensor], Tensor]
    method: str
    """In the file of kernels."""
    timed: Callable[[Tensor], Tensor]
    """Whose products that file has timed."""
    batches: bool = True
    """Whether that kernel takes a batch as one."""
    seen: Callable[[], float] | None = None
    """Seconds of the 72 matrices of `MODELS[0]`, where the tier was measured there alone: its times are scaled to that."""

    @cached_property
    def points(self) -> list[Point]:
        return measured(self.method, self.batches)

    @cached_property
    def clock(self) -> Clock:
        return fitted(self.points, self.timed)

    @cached_property
    def scale(self) -> float:
        return self.seen() / self.counted(matrices_of(MODELS[0].entries)) if self.seen is not None else 1.0

    def seconds(self, matrices: Counter[Shape]) -> float:
        """Of these matrices on one GPU."""
        return self.scale * self.counted(matrices)

    def counted(self, matrices: Counter[Shape]) -> float:
        """The same before scaling. Matrices of one shape share calls, as in the library."""
        total = 0.0
        for shape, count in matrices.items():
            calls = math.ceil(count / max(1, SHARED_ELEMENTS["cuda"] // math.prod(shape)))
            total += self.clock.seconds(count * operations(self.kernel, *shape), min(shape), calls)
        return total


def in_a_step() -> list[float]:
    """Seconds that coarse EGD adds to a whole step of GPT-124M, by process."""
    rows = {row["method"]: row for row in rows_of(TRAIN) if row["group"] == "gpt-4x1024"}
    ratios = rows["EGD coarse"]["all_ratios"]
    return [(ratio - 1) * ms / 1e3 for ratio, ms in zip(ratios, rows["bare"]["all_ms"], strict=True)]


def alone(method: str) -> float:
    """Seconds of the optimizer step of GPT-124M in a CUDA graph."""
    rows = (row for row in rows_of(STEP) if (row["group"], row["method"]) == ("GPT 124M", f"equalize_ alone, {method}"))
    return float(next(rows)["graph_ms"]) / 1e3


def bare(workload: str) -> float:
    """Seconds of a whole step without EGD."""
    rows = (row for row in rows_of(WHOLE) if (row["workload"], row["rival"]) == (workload, "bare"))
    return float(next(rows)["ms"]) / 1e3


TIERS = (
    Tier("coarse", COARSE, "Muon's iteration", newton_schulz, False, lambda: statistics.median(in_a_step())),
    Tier("fast, before 2026-11-18", EXACT, "polynomial, fast", EXACT),
    Tier("exact", EXACT, "polynomial, exact", EXACT),
)
