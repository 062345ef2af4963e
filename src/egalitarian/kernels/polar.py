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
from egalitarian.kernels.eigh import WAYS, above_cut, may_be_float32, may_look, recombine
from egalitarian.kernels.polynomial import LARGE, lowrank_by_products
from egalitarian.kernels.rational import polar_by_inverses
from egalitarian.kernels.route import (
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
from egalitarian.transforms.sketches import gaussian

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
    """The polar factor U Vᵀ of G = U S Vᵀ: the same singular directions, every singular value 1.

    Directions with a singular value of at most `rtol` times the largest become zero. So the result has the rank of G,
    and a zero matrix stays zero. The result carries no gradient.

    Args:
        G: one matrix or a batch `(..., m, n)`, of dtype float64, float32, float16 or bfloat16.
        method: the algorithm. `"auto"` chooses one of the others; `explain` says which.
            - `"products"`: matrix products on the Gram matrix of the short side. It never synchronises, so a CUDA graph
              can capture it. Its cut-off is accurate to a factor of three.
            - `"eigh"`: the eigenvectors of that Gram matrix.
            - `"inverses"`: two inverses and a few products in float32; fast only, on a CPU.
            - `"svd"`: an SVD in float64, the reference.
        precision: `"exact"` is at least as accurate as a float32 SVD. `"fast"` has a root mean square error of at most
            1e-2 over the directions above 1e-3 of the largest. Weaker directions may come out weaker than 1. In some cases
            fast runs an exact algorithm: see `docs/method.md#exact-and-fast`.
        rtol: the relative cut-off, in [0, 1). None takes it from G's dtype (`egalitarian.kernels.polar.RTOL`). Under autocast
            that dtype is not the precision of the gradient: see `Polar(compute=...)`.
        floor: an *absolute* lower bound on the singular values, for reproduction only; the authors use 1e-6. Directions
            with s < `floor` come out as s / floor instead of 1, so the result depends on the scale of G.

    Returns:
        A new tensor with the shape and dtype of G. A matrix with a NaN or an Inf comes back as NaN; others in the batch
        are not affected.

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
    """Says which algorithm `polar` uses for this tensor, and why. The arguments are those of `polar`.

    >>> explain(torch.zeros(194, 512))
    'eigh: Gram matrix 194 x 194 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)'
    """
    check_matrix(G)
    rtol = _cut(G, rtol)
    if floor is not None:
        check_number("floor", floor, "leave it out for the scale-free polar factor")
    short = min(G.shape[-2:])
    chosen = choose_method(method, G.dtype, rtol, precision, floor=floor, device=G.device, short=short)
    if method != "auto":
        why = "as requested"
    elif chosen == "svd":
        why = f"a Gram matrix does not resolve a cut-off below {GRAM_RTOL:g}"
    elif floor is not None or rtol > COARSE:
        why = "a floor needs the singular values" if floor is not None else f"a cut-off above {COARSE:g} must be sharp"
    elif G.device.type != "cuda":
        why = "on a CPU" if G.device.type == "cpu" else f"on device {G.device.type}"
    elif full_rate(G.device):
        why = "on a GPU with fast float64"
    else:
        why = (
            f"on a GPU with slow float64, short side {'at most' if chosen == 'products' else 'above'} {SLOW_CARD_PRODUCTS}"
        )
    if chosen == "inverses" and not may_be_float32(G):
        chosen, why = "eigh", f"{why}; inverses need true float32 products and values that can be read"
    precision = mode_of(chosen, precision, rtol, short)
    gram = f"Gram matrix {short} x {short}"
    steps = "Cholesky steps" if short >= LARGE else "quintics"
    alone = may_be_float32(G) and short >= ALONE
    rough = "in float32 and its eigenvectors, weak ones separately" if alone else "in float64 and its eigenvectors"
    inverses = "in float32, two inverses; no cut-off; eigenvectors if there are many weak directions"
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
    """U S⁻¹ Uᵀ G, with the `rank` leading U and S from a randomized SVD (the paper's Algorithms 2 and 3).

    The `rank` strongest directions are equalised, the others become zero. U and S are estimates, so singular values are 1
    only up to the error of the sketch. At full rank the result equals that of `polar`.

    The sketch is a random matrix that depends on `seed` alone. torch's global generator is neither read nor changed.
    Every matrix of a batch gets the same sketch.

    On CUDA it uses matrix products and does not synchronise, under the same conditions as `polar`. With `oversample` or
    `share` it uses torch's QR and SVD, which synchronise. A CUDA graph can capture it only with a `sketch`, which you
    refill before every replay: a sketch from `seed` is drawn on the CPU.

    Args:
        G: one matrix or a batch `(..., m, n)`.
        rank: number of directions to keep, from 1 to min(m, n).
        iterations: rounds of power iteration, at least 1; the paper uses 2.
        oversample: extra columns of the sketch, dropped after the SVD; the paper uses 0. The sketch never has more than
            min(m, n) columns.
        seed: seed of the Gaussian sketch.
        rtol: as for `polar`.
        share: adaptive rank, in (0, 1]. Each matrix keeps the smallest r <= `rank` with s_1² + ... + s_r² >= share |G|².
            This saves no time, since all `rank` directions are computed. None keeps `rank` directions.
        sketch: a tensor of shape (n, rank + oversample) to use instead of one from `seed`.

    Returns:
        A new tensor with the shape and dtype of G.

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: an option is out of range, or `sketch` has the wrong shape.
        RuntimeError: called without `sketch` while a CUDA graph is captured.

    >>> polar_lowrank(torch.diag(torch.tensor([3.0, 0.5, 0.01])), rank=3).diagonal().round(decimals=4)
    tensor([1., 1., 1.])
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
            "polar_lowrank must run outside a CUDA graph or be given a sketch, got a stream that is capturing; a graph "
            "would replay one sketch for ever: use Sketches, polar() or no graph"
        )


@torch.no_grad()
def normalize(G: Tensor, *, floor: float = 0.01) -> Tensor:
    """Row norm: divides every row g of G by max(|g|, floor).

    Args:
        G: one matrix or a batch `(..., m, n)`. Rows are output units, as torch stores weights.
        floor: rows with a smaller norm are divided by `floor` itself, so they stay shorter than 1. The paper uses 0.01.

    Returns:
        A new tensor with the shape and dtype of G. A row with a NaN or an Inf comes back as NaN; others are not affected.

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: G has fewer than two dimensions, or `floor` is not positive.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.005]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
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
        raise TypeError(f"G must be a tensor, got {type(G).__name__}; convert it with torch.as_tensor")
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
