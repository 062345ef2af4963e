"""Which of the ways to the polar factor is taken: by device, dtype, size, cut-off and precision."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import torch

Way = Literal["svd", "eigh", "products", "inverses"]
Method = Literal["auto", "svd", "eigh", "products", "inverses"]
Mode = Literal["exact", "fast"]

GRAM_RTOL = 5e-7
"""A float64 Gram matrix resolves singular values down to about 1e-7 of the largest."""

FAST_RTOL = 3e-4
"""Where float32 arithmetic loses a direction."""

FAST_CUT = 5e-4
"""The largest cut-off that fast products and inverses may leave out: what is below it they make weak by themselves."""

ALONE = 128
"""From this short side on a CPU takes matrices one by one: what it works on stays near."""

INVERSES_FROM = 64
"""The short side from which inverses are clearly faster on a CPU than eigenvectors, in a batch, too."""

COARSE = 1e-2
"""A cut-off above this is no noise but a choice of directions, which must be exact: not by products."""

FULL_RATE = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities of the cards that are as fast in float64 as in float32."""
SLOW_CARD_PRODUCTS = 512
"""On other cards the largest short side for which float64 products are chosen (not measured: we have no such card)."""


def choose_method(
    method: Method,
    dtype: torch.dtype,
    rtol: float,
    precision: Mode = "exact",
    *,
    floor: float | None = None,
    device: torch.device | None = None,
    short: int = 1,
) -> Way:
    """The documented rule behind `method="auto"`; a method asked for by name is taken (by inverses: what they are for)."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}; 'auto' chooses for you")
    if precision not in get_args(Mode):
        raise ValueError(f"precision must be 'exact' or 'fast', got {precision!r}; 'exact' is the default")
    if method in ("eigh", "products") and precision == "exact" and rtol < GRAM_RTOL:
        raise ValueError(f"rtol must be >= {GRAM_RTOL:g} for method {method!r}, got {rtol:g}; raise it or use method='svd'")
    if floor is not None and (method == "products" or precision == "fast"):
        raise ValueError(
            f"floor must be None for method 'products' or precision 'fast', got {floor:g}; use 'exact' with 'eigh' or 'svd'"
        )
    if method == "svd" and precision == "fast":
        raise ValueError("precision must be 'exact' for method 'svd', got 'fast'; use method='auto' for a fast one")
    if method == "inverses" and precision == "exact":
        raise ValueError("precision must be 'fast' for method 'inverses', got 'exact'; use method='eigh' or 'products'")
    if method == "inverses" and rtol > FAST_CUT:
        raise ValueError(f"rtol must be <= {FAST_CUT:g} for method 'inverses', got {rtol:g}; use method='auto' or 'eigh'")
    if method != "auto":
        return method
    if precision == "exact" and (dtype == torch.float64 or rtol < GRAM_RTOL):
        return "svd"
    on_cuda = device is not None and device.type == "cuda"
    on_cpu = device is not None and device.type == "cpu"
    if on_cpu and precision == "fast" and rtol <= FAST_CUT and short >= INVERSES_FROM:
        return "inverses"
    if device is None or not on_cuda or floor is not None or rtol > COARSE:
        return "eigh"
    return "products" if short <= SLOW_CARD_PRODUCTS or full_rate(device) else "eigh"


def mode_of(method: Way, precision: Mode, rtol: float, short: int) -> Mode:
    """The precision that is worked in: fast products have no cut-off, so where one matters they are exact; and so are
    eigenvectors of small matrices, where nothing is faster."""
    exact = rtol > FAST_CUT if method == "products" else method == "eigh" and short < ALONE and rtol >= GRAM_RTOL
    return "exact" if exact else precision


def traced(G: torch.Tensor) -> bool:
    """Whether torch only follows what would be done with G, under vmap, compiling, tracing: no value of it can be read."""
    return (
        torch._C._functorch.is_batchedtensor(G)
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
    )


@lru_cache
def full_rate(device: torch.device) -> bool:
    """Whether the card is as fast in float64 as in float32."""
    return torch.cuda.get_device_capability(device) in FULL_RATE
