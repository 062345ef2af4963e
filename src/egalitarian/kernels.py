"""The maths, on matrices `(..., m, n)`: polar factor, randomized polar factor, row norm.

A kernel sees a tensor and returns a new one. It knows no parameter, no optimizer, no global random state.
All of them are scale-aware, zero-safe and contain non-finite input: a matrix with a NaN or an Inf comes back
as NaN, its neighbours in the batch are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from egalitarian.checks import check_integer, check_number, check_share
from egalitarian.choice import (
    ALONE,
    COARSE,
    FAST_RTOL,
    GRAM_RTOL,
    SLOW_CARD_PRODUCTS,
    Method,
    Mode,
    choose_method,
    full_rate,
    mode_of,
)
from egalitarian.inverses import polar_by_inverses
from egalitarian.products import LARGE, lowrank_by_products
from egalitarian.sketches import gaussian
from egalitarian.ways import WAYS, above_cut, may_be_float32, may_look, recombine

Precision = torch.dtype | Literal["tf32"]

RTOL: dict[Precision, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    "tf32": 1e-3,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}
"""Where directions end and rounding noise begins, relative to the largest singular value, by the precision a
gradient was *computed* in. `benchmarks/noise.py` measures the noise; each value lies above what it found."""


@torch.no_grad()
def polar(
    G: Tensor,
    *,
    method: Method = "auto",
    precision: Mode = "exact",
    rtol: float | None = None,
    floor: float | None = None,
) -> Tensor:
    """U Vᵀ of G = U S Vᵀ: the same singular directions, every singular value 1.

    Directions whose singular value is not above `rtol` times the largest one stay zero, so the polar factor of a
    rank-deficient matrix has the rank of that matrix, and that of zero is zero. The result carries no gradient.

    Args:
        G: one matrix or a batch `(..., m, n)`, of dtype float64, float32, float16 or bfloat16.
        method: `"products"` (a fixed number of matrix products on the Gram matrix of the short side: no branch, no
            synchronisation, so it goes into a CUDA graph; the cut-off is right to a factor of three), `"eigh"` (the Gram
            matrix's eigenvectors), `"inverses"` (fast, on a CPU: two inverses and a few products, in float32), `"svd"` (the
            reference: a float64 SVD), or `"auto"`, which `explain` tells.
        precision: `"exact"` (no worse than a float32 SVD: typically rounding of float32), or `"fast"`: to 1e-2, root
            mean square over the directions above 1e-3 of the largest; weaker ones may come out weaker. Where the cut-off is
            among those (bfloat16, float16, TF32), products are exact, since the fast ones have none. Exact also on a
            CPU for a short side below 64, where nothing is faster, and there under `vmap`, compiling and tracing.
        rtol: the relative cut-off; by default what G's dtype leaves as rounding noise (`egalitarian.kernels.RTOL`).
            Under autocast that is not G's dtype: see `Polar(compute=...)`.
        floor: an *absolute* bound from below on the singular values, as the authors have it: directions weaker than
            `floor` come out as s / floor instead of 1. Ends scale-freedom; meant for reproduction (1e-6).

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: G has fewer than two dimensions, or an option is out of range.

    >>> polar(torch.tensor([[3.0, 0.0], [0.0, 0.01]]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_matrix(G)
    rtol = _cut(G, rtol)
    if floor is not None:
        check_number("floor", floor, "leave it out for the scale-free polar factor")
    chosen = choose_method(method, G.dtype, rtol, precision, floor=floor, device=G.device, short=min(G.shape[-2:]))
    if chosen == "inverses" and not (G.numel() and may_be_float32(G)):
        chosen = "eigh"
    precision = mode_of(chosen, precision, rtol, min(G.shape[-2:]))
    with torch.autocast(G.device.type, enabled=False):  # it would narrow what is narrow enough already
        if chosen == "inverses":
            return _by_inverses(G, rtol)
        kernel = WAYS[chosen, precision]
        if chosen == "products" and G.dtype != torch.float64 and G.numel():
            return kernel(G, rtol, None).to(G.dtype)  # one number that is not finite makes all of its matrix NaN

        def factor(X: Tensor, scale: Tensor) -> Tensor:
            return kernel(X, rtol, None if floor is None else floor / scale)

        return _contained(G, factor, torch.float32 if (chosen, precision) == ("eigh", "fast") else torch.float64)


def _by_inverses(G: Tensor, rtol: float) -> Tensor:
    """Matrix by matrix; those that inverses refuse, among them what is not finite, by eigenvectors."""
    X = G if G.dtype == torch.float32 else _scaled(G, largest_entry(G).to(torch.float64), torch.float32)[0].float()
    matrices = X.reshape(-1, *X.shape[-2:])
    found = [polar_by_inverses(matrix) for matrix in matrices]
    refused = [place for place, P in enumerate(found) if P is None]
    if refused:
        rest = matrices if len(refused) == len(found) else matrices[refused]
        mode = mode_of("eigh", "fast", rtol, min(G.shape[-2:]))
        rest = _contained(rest, lambda X, scale: WAYS["eigh", mode](X, rtol, None), torch.float32)
        for place, P in zip(refused, rest, strict=True):
            found[place] = P
    done = [P for P in found if P is not None]
    return (done[0] if G.ndim == 2 else torch.stack(done).reshape(G.shape)).to(G.dtype)


def explain(
    G: Tensor,
    *,
    method: Method = "auto",
    precision: Mode = "exact",
    rtol: float | None = None,
    floor: float | None = None,
) -> str:
    """Which way `polar` takes for this tensor, and why.

    >>> explain(torch.zeros(194, 512))
    'eigh: Gram matrix 194 x 194 in float64 and its eigenvectors, cut-off 1e-06 (a CPU)'
    """
    check_matrix(G)
    rtol = _cut(G, rtol)
    if floor is not None:
        check_number("floor", floor, "leave it out for the scale-free polar factor")
    short = min(G.shape[-2:])
    chosen = choose_method(method, G.dtype, rtol, precision, floor=floor, device=G.device, short=short)
    if method != "auto":
        why = "asked for"
    elif chosen == "svd":
        why = f"a cut-off below {GRAM_RTOL:g} is beyond a Gram matrix"
    elif floor is not None or rtol > COARSE:
        why = "a floor needs the singular values" if floor is not None else "so coarse a cut-off must be exact"
    elif G.device.type != "cuda":
        why = "a CPU" if G.device.type == "cpu" else f"device {G.device.type}"
    elif full_rate(G.device):
        why = "a GPU with fast float64"
    else:
        why = f"a GPU with slow float64, short side {'at most' if chosen == 'products' else 'above'} {SLOW_CARD_PRODUCTS}"
    if chosen == "inverses" and not may_be_float32(G):
        chosen, why = "eigh", f"{why}; inverses need float32 and its values"
    precision = mode_of(chosen, precision, rtol, short)
    gram = f"Gram matrix {short} x {short}"
    steps = "Cholesky steps" if short >= LARGE else "quintics"
    alone = may_be_float32(G) and short >= ALONE
    rough = "in float32 and its eigenvectors, weak ones apart" if alone else "in float64 and its eigenvectors"
    inverses = "in float32, two inverses; no cut-off; eigenvectors where weak directions are many"
    ways = {
        ("svd", "exact"): f"float64 SVD, cut-off {rtol:g}",
        ("eigh", "exact"): f"{gram} in float64 and its eigenvectors, cut-off {rtol:g}",
        ("eigh", "fast"): f"{gram} {rough}; cut-off {max(rtol, FAST_RTOL):g}",
        ("products", "exact"): f"{gram} in float64, {steps}, sharp cut-off {rtol:g}",
        ("products", "fast"): f"{gram} in float64, {steps}, then half precision; no cut-off",
        ("inverses", "fast"): f"{gram} {inverses}",
    }
    return f"{chosen}: {ways[chosen, precision]} ({why})"


@torch.no_grad()
def polar_lowrank(
    G: Tensor,
    rank: int,
    *,
    iterations: int = 2,
    oversample: int = 0,
    seed: int = 0,
    rtol: float | None = None,
    share: float | None = None,
    sketch: Tensor | None = None,
) -> Tensor:
    """U S⁻¹ Uᵀ G with the `rank` leading U, S of a randomized SVD (the paper's Algorithms 2 and 3).

    The strongest directions, equalised; the others zero. U and S are estimates, so the singular values of the result
    are 1 only up to the sketch's error; at full rank it equals `polar`. The sketch is a function of `seed` alone: the
    global generator is neither read nor moved, and every matrix of a batch sees the same sketch, whatever its company.

    On CUDA by matrix products alone and without synchronising, by the rule of `polar`; with `oversample` or `share` by
    torch's QR and SVD, which synchronise. In a CUDA graph only with a `sketch`, to be filled anew before every replay: one
    that `seed` gives comes from the CPU.

    Args:
        G: one matrix or a batch `(..., m, n)`.
        rank: how many directions to keep, 1 to min(m, n).
        iterations: rounds of power iteration, at least 1 (the paper: 2).
        oversample: extra columns of the sketch, dropped after the SVD (the paper: 0). Never more than min(m, n) in all.
        seed: of the Gaussian sketch.
        rtol: as for `polar`.
        share: an adaptive rank, for each matrix: the smallest r <= `rank` with s_1² + ... + s_r² >= share |G|², so that a
            gradient of few directions moves in few. Chooses directions, saves no time: all `rank` are computed.
        sketch: (n, rank + oversample), used instead of the one that `seed` gives.
    """
    check_matrix(G)
    rows, columns = G.shape[-2:]
    check_integer("rank", rank, "use polar() for every direction")
    check_integer("iterations", iterations, "the paper uses 2", least=1)
    check_integer("oversample", oversample, "the paper uses 0", least=0)
    check_integer("seed", seed, "it seeds the sketch")
    if share is not None:
        check_share(share)
    if not 1 <= rank <= max(1, min(rows, columns)):
        raise ValueError(
            f"rank must be in [1, {min(rows, columns)}] for a matrix of shape {(rows, columns)}, got {rank}; "
            f"lower it or use polar()"
        )
    rtol = _cut(G, rtol)
    width = min(rank + oversample, rows, columns)
    cuts = width > rank or (share is not None and share < 1)  # which takes the singular values one by one
    products = not cuts and choose_method("auto", G.dtype, rtol, device=G.device, short=width) == "products"
    if sketch is not None and not isinstance(sketch, Tensor):
        raise TypeError(f"sketch must be a tensor, got {type(sketch).__name__}; or leave it out")
    if sketch is None:
        _refuse_capture(G.device)
        sketch = gaussian(columns, width, seed, G.device)
    elif sketch.shape != (columns, width):
        raise ValueError(f"sketch must be of shape {(columns, width)}, got {tuple(sketch.shape)}; or leave it out")
    basis = sketch.to(G.device, torch.float64)

    def factor(X: Tensor, scale: Tensor) -> Tensor:
        if products:
            return lowrank_by_products(X.to(torch.float64), basis, iterations, rtol)
        X, Q = X.to(torch.float64), basis
        for _ in range(iterations):
            Q = torch.linalg.qr(X @ Q).Q
            Q = torch.linalg.qr(X.mT @ Q).Q
        U, S, _ = torch.linalg.svd(X @ Q, full_matrices=False)
        U, S = U[..., :rank], S[..., :rank]
        kept = above_cut(S, rtol)
        if share is not None and share < 1:
            kept = kept & _leading(S, share, X)
        return recombine(U, torch.where(kept, 1 / S, 0), U.mT @ X)

    return _contained(G, factor)


def _refuse_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "polar_lowrank must be outside a CUDA graph or be given its sketch, got a stream that is capturing; a graph "
            "would repeat one sketch: use polar(), no graph, or Sketches"
        )


@torch.no_grad()
def normalize(G: Tensor, *, floor: float = 0.01) -> Tensor:
    """g / max(|g|, floor) for every row g of G: one scale per output unit (the paper's column norm).

    The paper holds weights as (in, out) and so speaks of columns; torch holds them as (out, in). Not scale-free: rows
    shorter than the absolute `floor` are divided by it. A non-finite row comes back as NaN and does not touch the others.
    """
    check_matrix(G)
    check_number("floor", floor, "the paper uses 0.01", above=0.0)
    X = G.to(torch.float64)
    largest = X.abs().amax(-1, keepdim=True) if X.shape[-1] else X.new_ones((*X.shape[:-1], 1))
    unit = torch.where(largest > 0, largest, 1)  # so that no square overflows
    norm = torch.linalg.vector_norm(X / unit, dim=-1, keepdim=True) * unit
    return torch.where(torch.isfinite(largest), X / norm.clamp_min(floor), math.nan).to(G.dtype)


@torch.no_grad()
def natural(G: Tensor, *, rtol: float | None = None) -> Tensor:
    """F⁻¹ G with F = G Gᵀ: U S⁻¹ Vᵀ, the pseudo-inverse taken above the cut-off. EGD is F^(1/2) times this."""
    check_matrix(G)
    rtol = _cut(G, rtol)

    def factor(X: Tensor, scale: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(X.to(torch.float64), full_matrices=False)
        gain = torch.where(above_cut(S, rtol), 1 / (S * scale), 0)
        return recombine(U, gain, Vh)

    return _contained(G, factor)


def _leading(S: Tensor, share: float, X: Tensor) -> Tensor:
    """The fewest leading directions that hold `share` of |X|²: those before which there is not enough yet."""
    before = S.square() @ torch.ones(S.shape[-1], S.shape[-1], dtype=S.dtype, device=S.device).triu(1)
    enough: Tensor = share * torch.linalg.matrix_norm(X).square()[..., None]
    return before < enough


def _contained(G: Tensor, factor: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float64) -> Tensor:
    """factor(X, scale) for X = G / scale, which can be squared in `dtype`; scale (..., 1), of each matrix, a power of two.

    A power of two, so that scaling G by one changes no bit of the result.
    """
    if G.numel() == 0:
        return G.clone()
    fits = torch.finfo(G.dtype).max < torch.finfo(dtype).max ** 0.5
    if fits and G.ndim == 2 and may_look(G) and math.isfinite(float(G.sum())):  # then every number is finite
        return factor(G, G.new_ones(1)).to(G.dtype)
    largest = largest_entry(G).to(torch.float64)
    finite = torch.isfinite(largest)
    if may_look(G) and bool(finite.all()):  # two passes less
        X, scale = _scaled(G, largest, dtype)
        return factor(X, scale).to(G.dtype)
    X, scale = _scaled(torch.where(finite, G, 0), torch.where(finite, largest, 0), dtype)
    return torch.where(finite, factor(X, scale).to(G.dtype), math.nan)


def largest_entry(G: Tensor) -> Tensor:
    """max |G_ij| of each matrix, (..., 1, 1); NaN or Inf where any entry is, so one pass tells size and finiteness."""
    return G.abs().amax((-2, -1), keepdim=True)


def _scaled(G: Tensor, largest: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(X, scale) with G = scale X. What is narrower than `dtype` can be squared there as it is: G itself, scale 1."""
    one = torch.ones_like(largest)
    if torch.finfo(G.dtype).max < torch.finfo(dtype).max ** 0.5:
        return G, one[..., 0]
    exponent = torch.frexp(largest).exponent
    half = torch.div(exponent, 2, rounding_mode="floor")  # 2**-exponent alone may overflow
    wide = torch.promote_types(G.dtype, dtype)  # what is large in it may be nothing in `dtype`
    X = G.to(wide) * torch.ldexp(one, -half).to(wide) * torch.ldexp(one, half - exponent).to(wide)
    return X.to(dtype), torch.ldexp(one, exponent)[..., 0]


def check_matrix(G: Tensor) -> None:
    if not isinstance(G, Tensor):
        raise TypeError(f"G must be a tensor, got {type(G).__name__}; wrap it with torch.as_tensor")
    if G.layout != torch.strided:
        raise TypeError(f"G must be dense, got layout {G.layout}; call .to_dense()")
    if G.dtype not in RTOL:
        raise TypeError(f"G must be float64, float32, float16 or bfloat16, got {G.dtype}; convert it first")
    if G.ndim < 2:
        raise ValueError(f"G must have at least two dimensions (m, n), got shape {tuple(G.shape)}; reshape it")
    if G.device.type == "mps":
        raise NotImplementedError("G must be on a device with float64, got 'mps'; move it to the CPU")


def _cut(G: Tensor, rtol: float | None) -> float:
    if rtol is None:
        return RTOL[G.dtype]
    check_number("rtol", rtol, "the default follows the dtype", below=1.0)
    return rtol
