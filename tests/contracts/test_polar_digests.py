"""The kernels, bit by bit: polar factor, low-rank polar factor, row norm and natural gradient of fixed matrices on a CPU.

Where the environment is the stored one, results have the sha256 in `data/polar-digests.json`. Elsewhere their projections
onto fixed probes agree within a tolerance. `python tests/contracts/test_polar_digests.py --save` writes that file anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import egalitarian as eg

GOLDEN = Path(__file__).parent / "data" / "polar-digests.json"
METHODS = {"auto": "auto", "svd": "svd", "eigh": "eigh", "products": "polynomial", "inverses": "rational"}
"""The name in the golden file, and the library's name of now."""
PRECISIONS = {"exact": "exact", "fast": "fast", "coarse": "coarse"}
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OPTIONS: dict[str, dict[str, float]] = {"default": {}, "rtol=1e-2": {"rtol": 1e-2}, "floor=1e-6": {"floor": 1e-6}}
LOWRANK: dict[str, dict[str, Any]] = {
    "rank=1": {"rank": 1},
    "rank=4": {"rank": 4, "seed": 3},
    "rank=4 iterations=1": {"rank": 4, "iterations": 1},
    "rank=4 oversample=3": {"rank": 4, "oversample": 3},
    "rank=6 share=0.5": {"rank": 6, "share": 0.5},
    "rank=6 rtol=1e-2": {"rank": 6, "rtol": 1e-2},
    "rank=8": {"rank": 8},
}
TOLERANCE = {"exact": 1e-5, "fast": 2e-2, "coarse": 2e-2}
"""On an unlike machine, of the result's norm; of a half dtype at least its eps."""
PROBES = 4


def entries(seed: int, *shape: int) -> Tensor:
    """Uniform multiples of 2**-10 in [-1, 1]: integers are drawn, so they are the same on every machine."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(-1024, 1025, shape, generator=generator).to(torch.float64) / 1024


def deficient(seed: int, rows: int, columns: int, rank: int) -> Tensor:
    """A product of two thin matrices with short binary fractions: its rank is exact."""
    left, right = (torch.round(8 * each) / 8 for each in (entries(seed, rows, rank), entries(seed + 1, rank, columns)))
    return left @ right / 64


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix; over the root of a size that is a power of four, it is orthogonal without rounding."""
    H = torch.ones(1, 1, dtype=torch.float64)
    while len(H) < size:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return H / math.sqrt(size)


def with_values(values: Tensor, columns: int) -> Tensor:
    """A matrix with these singular values, exact in float64."""
    return hadamard(len(values)) * values @ hadamard(columns)[: len(values)]


def spoilt(G: Tensor, bad: float) -> Tensor:
    """The batch with one bad entry in its second matrix."""
    G = G.clone()
    G[1, 2, 3] = bad
    return G


def clusters() -> Tensor:
    """Three groups of singular values, each within 2**-10."""
    near = 1 + torch.arange(64, dtype=torch.float64) % 4 / 1024
    return near * torch.tensor([1.0, 0.5, 0.015625], dtype=torch.float64)[torch.arange(64) % 3]


def powers(size: int, lowest: int) -> Tensor:
    """From 1 down to 2**-lowest, by powers of two."""
    return torch.exp2(-(torch.arange(size) * (lowest + 1) // size).to(torch.float64))


PLAIN: dict[str, Callable[[], Tensor]] = {
    f"{kind} {short}": lambda seed=seed, shape=shape: entries(seed, *shape)
    for seed, (kind, short, shape) in enumerate(
        (kind, short, shape)
        for short, long in ((8, 20), (64, 96), (130, 150), (194, 256))
        for kind, shape in (("wide", (short, long)), ("tall", (long, short)), ("square", (short, short)))
    )
}
MATRICES: dict[str, Callable[[], Tensor]] = PLAIN | {
    "one row": lambda: entries(20, 1, 7),
    "no rows": lambda: entries(21, 0, 5),
    "transposed view": lambda: entries(22, 150, 130).mT,
    "zero 8": lambda: torch.zeros(8, 20, dtype=torch.float64),
    "zero 130": lambda: torch.zeros(130, 150, dtype=torch.float64),
    "deficient 8": lambda: deficient(30, 8, 20, 5),
    "deficient 64": lambda: deficient(32, 64, 96, 40),
    "deficient 130": lambda: deficient(34, 150, 130, 90),
    "clustered 64": lambda: with_values(clusters(), 256),
    "graded 64": lambda: with_values(powers(64, 12), 64),
    "graded 256": lambda: with_values(powers(256, 10), 256).mT.contiguous(),
    "large 64": lambda: entries(40, 64, 96) * 2.0**12,
    "small 64": lambda: entries(41, 64, 96) * 2.0**-8,
    "batch 8": lambda: entries(50, 3, 8, 20),
    "batch 64": lambda: entries(51, 3, 96, 64),
    "batch 130": lambda: entries(52, 3, 130, 150),
    "batch 8 nan": lambda: spoilt(entries(53, 3, 8, 20), math.nan),
    "batch 64 nan": lambda: spoilt(entries(54, 3, 64, 96), math.nan),
    "batch 130 nan": lambda: spoilt(entries(55, 3, 150, 130), math.nan),
    "batch 64 inf": lambda: spoilt(entries(56, 3, 64, 96), math.inf),
}
LARGEST = ("tall 194", "square 194", "square 130", "graded 256", "batch 130")
"""Only with default options and in float32 and bfloat16, to save time."""
EXTREME = {"float64": 2.0**600, "float32": 2.0**100, "bfloat16": 2.0**100, "float16": 2.0**15}
"""Scales whose square the dtype does not hold."""


def result(G: Tensor, of: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What is pinned: sha256 of the bytes, NaNs, norm and projections, where NaN counts as zero; or a ValueError."""
    before = raw(G)
    try:
        P = of(G)
    except ValueError:
        return {"raises": "ValueError"}
    assert (P.shape, P.dtype) == (G.shape, G.dtype)
    assert raw(G) == before, "the argument stays as it is"
    X = P.to(torch.float64).nan_to_num(nan=0.0).flatten()
    sha = hashlib.sha256(raw(P)).hexdigest()
    return {"sha256": sha, "nan": int(P.isnan().sum()), "norm": rounded(float(X.norm())), "onto": projections(X)}


def raw(G: Tensor) -> bytes:
    return G.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def rounded(value: float) -> float:
    return float(f"{value:.7g}")


def projections(X: Tensor) -> list[float]:
    """Inner products with probes of norm 1, whose entries differ in sign only."""
    signs = (2 * torch.randint(0, 2, (PROBES, len(X)), generator=torch.Generator("cpu").manual_seed(99)) - 1).to(X.dtype)
    return [rounded(float(value)) for value in signs @ X / math.sqrt(max(1, len(X)))]


def cases(name: str) -> Iterator[tuple[str, Tensor, Callable[[Tensor], Tensor]]]:
    """Every case of one matrix: its golden key, the matrix, and what is done with it."""
    largest = name in LARGEST
    for dtype in ("float32", "bfloat16") if largest else DTYPES:
        G = MATRICES[name]().to(DTYPES[dtype])
        for method in METHODS:
            for precision in PRECISIONS:
                for option, more in {"default": {}}.items() if largest else OPTIONS.items():
                    yield f"polar {dtype} {method} {precision} {option}", G, polar(method, precision, more)
        if largest:
            continue
        for precision in PRECISIONS:
            yield f"polar {dtype} auto {precision} scaled", G * EXTREME[dtype], polar("auto", precision, {})
        for option, more in LOWRANK.items():
            yield f"lowrank {dtype} {option}", G, partial(lowrank, more)
        yield f"rows {dtype} default", G, eg.normalize
        yield f"rows {dtype} floor=4", G, partial(eg.normalize, floor=4.0)
        if dtype in ("float64", "float32") and G.ndim == 2 and G.numel():
            yield f"natural {dtype}", G, natural


def polar(method: str, precision: str, more: dict[str, float]) -> Callable[[Tensor], Tensor]:
    named: dict[str, Any] = {"method": METHODS[method], "precision": PRECISIONS[precision], **more}
    return partial(eg.polar, **named)


def lowrank(more: dict[str, Any], G: Tensor) -> Tensor:
    return eg.polar_lowrank(G, **more)


def natural(G: Tensor) -> Tensor:
    """Through a gradient, as users do."""
    hidden = torch.nn.Linear(G.shape[1], G.shape[0], bias=False, dtype=G.dtype)
    head = torch.nn.Linear(G.shape[0], 1, bias=False, dtype=G.dtype)
    hidden.weight.grad = G.clone()
    eg.equalize_(eg.matrices(torch.nn.Sequential(hidden, head)), eg.Natural())
    return hidden.weight.grad


def results(name: str) -> dict[str, dict[str, Any]]:
    """Of every case of one matrix."""
    found = {}
    for key, G, of in cases(name):
        assert key not in found
        found[key] = result(G, of)
    return found


def tolerance(key: str) -> float:
    """How far a projection may be from the stored one, over the result's norm."""
    dtype = DTYPES[key.split()[1]]
    own = torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 0.0
    precision = next((each for each in ("fast", "coarse") if f" {each} " in key), "exact")
    return max(TOLERANCE[precision], own)


def unlike(key: str, found: dict[str, Any], expected: dict[str, Any], alike: bool) -> bool:
    """Whether a result is not the stored one: bit by bit in an environment that is alike, else by projections."""
    if "raises" in expected or "raises" in found:
        return found != expected
    if alike:
        return bool(found["sha256"] != expected["sha256"])
    bound = tolerance(key) * expected["norm"]
    near = all(abs(ours - theirs) <= bound for ours, theirs in zip(found["onto"], expected["onto"], strict=True))
    return found["nan"] != expected["nan"] or not near


def environment() -> dict[str, str]:
    """What the last bit of a result depends on besides the library."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
        "threads": "1",
        "mkl": " ".join(sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("MKL_"))),
    }


def processor() -> str:
    """Its name, and numbers that tell generations apart: a virtual machine may say no more than 'AMD EPYC'."""
    with contextlib.suppress(OSError):
        told = dict[str, str]()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            told.setdefault(key.strip(), value.strip())
        return ", ".join(f"{key} {told.get(key, '')}" for key in ("model name", "cpu family", "model", "stepping"))
    return platform.processor()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(GOLDEN.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", MATRICES)
def test_every_result_is_the_one_it_was(name: str, golden: dict[str, Any]) -> None:
    expected, alike = golden["matrices"][name], environment() == golden["environment"]
    with one_thread():
        found = results(name)
    assert list(found) == list(expected)
    assert [key for key in found if unlike(key, found[key], expected[key], alike)] == []


def test_every_matrix_is_pinned(golden: dict[str, Any]) -> None:
    assert list(golden["matrices"]) == list(MATRICES)


def save() -> None:
    with one_thread():
        matrices = {name: results(name) for name in MATRICES}
    blocks = []
    for name, found in matrices.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in found.items())
        blocks.append(f"{json.dumps(name)}: {{\n{lines}\n }}")
    text = '{\n"environment": ' + json.dumps(environment()) + ',\n"matrices": {\n ' + ",\n ".join(blocks) + "\n}\n}\n"
    assert json.loads(text)["matrices"] == matrices
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--save"]:
        raise SystemExit(f"usage: python {sys.argv[0]} --save")
    save()
