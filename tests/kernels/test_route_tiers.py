"""Which tier `precision="auto"` means, which kernel runs a tier, and what is refused. On a fake CUDA device, too."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from spectra import from_spectrum, gaussian, singular_values
from torch.func import vmap

import egalitarian as eg
from egalitarian.kernels import Route, choose, decide, factor, route, tier_for
from egalitarian.transforms import Polar, Site

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
DOUBLE, SINGLE, HALF, BRAIN = torch.float64, torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("compute", "device", "short", "tier"),
    [
        (SINGLE, CPU, 1, "exact"),
        (SINGLE, CPU, 256, "exact"),
        (SINGLE, CPU, 257, "exact"),
        (SINGLE, CPU, 4096, "exact"),
        (DOUBLE, CPU, 4096, "exact"),
        ("tf32", CPU, 4096, "exact"),
        (HALF, CPU, 1, "coarse"),
        (BRAIN, CPU, 1, "coarse"),
        (SINGLE, CUDA, 1, "exact"),
        (SINGLE, CUDA, 256, "exact"),
        (SINGLE, CUDA, 257, "coarse"),
        (DOUBLE, CUDA, 256, "exact"),
        (DOUBLE, CUDA, 257, "exact"),
        (DOUBLE, CUDA, 4096, "exact"),
        ("tf32", CUDA, 256, "exact"),
        ("tf32", CUDA, 257, "coarse"),
        (HALF, CUDA, 1, "coarse"),
        (BRAIN, CUDA, 1, "coarse"),
    ],
    ids=str,
)
def test_what_auto_means(compute: Any, device: torch.device, short: int, tier: str) -> None:
    assert tier_for(compute, device, short) == tier


ASKED: dict[str, tuple[Polar, torch.device, int, Site, str]] = {
    "float32": (Polar(precision="auto"), CPU, 300, Site("", 0, SINGLE), "exact"),
    "float64": (Polar(precision="auto"), CPU, 300, Site("", 0, DOUBLE), "exact"),
    "a bfloat16 gradient": (Polar(precision="auto"), CPU, 3, Site("", 0, BRAIN), "coarse"),
    "a GradScaler": (Polar(precision="auto"), CPU, 3, Site("", 0, HALF), "coarse"),
    "autocast": (Polar(precision="auto"), CPU, 3, Site("", 0, SINGLE, True), "coarse"),
    "compute bfloat16": (Polar(precision="auto", compute=BRAIN), CPU, 3, Site("", 0, SINGLE), "coarse"),
    "compute float32 and autocast": (Polar(precision="auto", compute=SINGLE), CPU, 3, Site("", 0, SINGLE, True), "exact"),
    "compute tf32 on CUDA": (Polar(precision="auto", compute="tf32"), CUDA, 256, Site("", 0, SINGLE), "exact"),
    "small on CUDA": (Polar(precision="auto"), CUDA, 256, Site("", 0, SINGLE), "exact"),
    "large on CUDA": (Polar(precision="auto"), CUDA, 257, Site("", 0, SINGLE), "coarse"),
    "float64 on CUDA": (Polar(precision="auto"), CUDA, 999, Site("", 0, DOUBLE), "exact"),
    "float64 on CUDA under autocast": (Polar(precision="auto"), CUDA, 3, Site("", 0, DOUBLE, True), "coarse"),
    "large on CUDA, polynomial": (Polar(precision="auto", method="polynomial"), CUDA, 257, Site("", 0, SINGLE), "coarse"),
    "rtol": (Polar(precision="auto", rtol=1e-3), CUDA, 999, Site("", 0, BRAIN, True), "exact"),
    "floor": (Polar(precision="auto", floor=1e-6), CUDA, 999, Site("", 0, BRAIN, True), "exact"),
    "svd": (Polar(precision="auto", method="svd"), CUDA, 999, Site("", 0, BRAIN, True), "exact"),
    "eigh": (Polar(precision="auto", method="eigh"), CUDA, 999, Site("", 0, BRAIN, True), "exact"),
    "exact by name": (Polar(), CUDA, 999, Site("", 0, BRAIN, True), "exact"),
    "fast by name": (Polar(precision="fast"), CUDA, 999, Site("", 0, SINGLE, True), "fast"),
    "coarse by name": (Polar(precision="coarse"), CPU, 3, Site("", 0, DOUBLE), "coarse"),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_tier_of_a_transform(name: str) -> None:
    transform, device, short, site, tier = ASKED[name]
    assert transform.tier(short, short + 5, device, site) == tier
    assert transform.tier(short + 5, short, device, site) == tier


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE, HALF, BRAIN], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"method": "polynomial"}, {"method": "svd"}, {"method": "eigh"}, {"rtol": 1e-3}, {"floor": 1e-6}],
    ids=str,
)
def test_auto_of_a_tensor_is_the_tier_that_it_means(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Bit for bit, and in `explain`."""
    if dtype == DOUBLE and options.get("method") in ("eigh", "polynomial"):
        pytest.skip("a Gram matrix does not resolve the cut-off of float64")
    G = gaussian(12, 20, dtype=dtype)
    free = not options or options == {"method": "polynomial"}
    tier: Any = "coarse" if free and dtype in (HALF, BRAIN) else "exact"
    assert choose(G, precision="auto", **options).tier == tier
    assert torch.equal(eg.polar(G, precision="auto", **options), eg.polar(G, precision=tier, **options))
    assert eg.explain(G, precision="auto", **options) == eg.explain(G, precision=tier, **options)


def test_the_default_of_polar_is_exact() -> None:
    G = gaussian(12, 20, dtype=BRAIN)
    assert choose(G).tier == "exact"
    assert torch.equal(eg.polar(G), eg.polar(G, precision="exact"))


# -- who runs a tier ---------------------------------------------------------------------------------------------------


def on(device: torch.device, short: int, precision: Any, method: Any = "auto", **options: Any) -> Route:
    options = {"readable": device == CPU, "float32": device == CPU, **options}
    return decide((short, short + 1), SINGLE, device, method, precision, **options)


@pytest.mark.parametrize("short", [1, 63, 64, 300, 2000])
def test_coarse_is_one_inverse_on_a_cpu_and_half_precision_on_a_gpu(short: int) -> None:
    cpu, cuda = on(CPU, short, "coarse"), on(CUDA, short, "coarse")
    assert (cpu.algorithm, cpu.tier, cpu.dtype, cpu.fallback) == ("rational", "coarse", SINGLE, None)
    assert (cuda.algorithm, cuda.tier, cuda.dtype, cuda.padded) == ("polynomial", "coarse", HALF, True)
    assert str(cpu) == f"rational: Gram matrix {short} x {short} in float32, one inverse, coarse; no cut-off (on a CPU)"
    assert str(cuda) == "polynomial: quintics in float16, coarse; no cut-off (on a GPU)"


def test_coarse_is_half_precision_on_a_cpu_where_values_or_products_are_not_to_be_had() -> None:
    for options in ({"float32": False}, {"readable": False, "float32": False}):
        found = on(CPU, 70, "coarse", **options)
        assert (found.algorithm, found.padded) == ("polynomial", False)
        with pytest.raises(ValueError, match="method 'rational' must run on a CPU with full float32 products"):
            on(CPU, 70, "coarse", "rational", **options)
    with pytest.raises(ValueError, match="method 'rational' must run on a CPU"):
        on(CUDA, 70, "coarse", "rational")
    routes: list[Route] = []
    vmap(lambda G: routes.append(choose(G, precision="coarse")) or G)(gaussian(2, 70, 90))
    assert [found.algorithm for found in routes] == ["polynomial"]


def test_fast_on_a_gpu_is_half_precision_unless_a_cut_off_must_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "full_rate", lambda device: True)
    found = on(CUDA, 300, "fast", traced=True)
    assert (found.algorithm, found.tier, found.dtype) == ("polynomial", "fast", HALF)
    assert str(found).startswith("polynomial: quintics in float16, the first with two words; no cut-off")
    held = on(CUDA, 300, "fast", rtol=1e-3, traced=True)
    assert (held.algorithm, held.tier, held.dtype) == ("polynomial", "exact", DOUBLE)


@pytest.mark.parametrize("short", [1, 7, 8])
def test_fast_is_exact_where_rounding_does_not_average_out(monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    monkeypatch.setattr(route, "full_rate", lambda device: True)
    tier = "exact" if short < 8 else "fast"
    assert on(CUDA, short, "fast", traced=True).tier == tier
    assert on(CPU, short, "fast", "polynomial").tier == tier
    assert on(CUDA, short, "coarse").tier == "coarse"


def test_small_and_fast_in_float64_has_a_cut_off_that_a_gram_matrix_resolves() -> None:
    G = gaussian(5, 9, dtype=DOUBLE)
    assert choose(G, method="polynomial", precision="fast").rtol == route.GRAM_RTOL
    torch.testing.assert_close(eg.polar(G, method="polynomial", precision="fast"), eg.polar(G), rtol=0, atol=1e-6)


def test_the_texts_of_the_tiers_differ() -> None:
    G = torch.zeros(130, 150)
    for options in ({}, {"method": "polynomial"}):
        texts = [eg.explain(G, precision=tier, **options) for tier in ("exact", "fast", "coarse")]
        assert len(set(texts)) == 3
        assert [", coarse;" in text for text in texts] == [False, False, True]
        assert ["no cut-off" in text for text in texts] == [False, True, True]


def test_every_loose_tier_has_a_kernel_of_its_own() -> None:
    assert set(factor.LOOSE) == {("polynomial", "fast"), ("polynomial", "coarse"), ("rational", "coarse")}


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtol": 1e-3}, "rtol must be None for precision 'coarse', got 0.001"),
        ({"rtol": 0.0}, "rtol must be None for precision 'coarse', got 0.0"),
        ({"floor": 1e-6}, "floor must be None for precision 'coarse', got 1e-06"),
        ({"method": "svd"}, "precision must be 'exact' for method 'svd', got 'coarse'"),
        ({"method": "eigh"}, "precision must be 'exact' for method 'eigh', got 'coarse'"),
    ],
    ids=str,
)
def test_coarse_refuses_what_needs_a_cut_off(options: dict[str, Any], message: str) -> None:
    G = torch.eye(60)
    for call in (eg.polar, eg.explain):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(G, precision="coarse", **options)
    with pytest.raises(ValueError, match=re.escape(message)):
        Polar(precision="coarse", **options)


def test_an_unknown_precision_is_refused_with_the_names_of_all() -> None:
    for call in (lambda: eg.polar(torch.eye(3), precision="rough"), lambda: Polar(precision="rough")):  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=r"precision must be one of \('auto', 'exact', 'fast', 'coarse'\), got 'rough'"
        ):
            call()


def test_coarse_takes_every_dtype_whatever_its_default_cut_off() -> None:
    """That of bfloat16, 5e-3, would make `fast` exact; coarse has none."""
    for dtype in (DOUBLE, SINGLE, HALF, BRAIN):
        G = from_spectrum(10, 14, [1.0, 0.5, 0.3, 0.2, 0.1] * 2, dtype=dtype)
        for method in ("auto", "polynomial", "rational"):
            values = singular_values(eg.polar(G, method=method, precision="coarse"))  # type: ignore[arg-type]
            assert values.max() <= 1.26
            assert values.min() >= 0.64
