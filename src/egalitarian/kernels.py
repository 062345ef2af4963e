"""The maths, on matrices `(..., m, n)`: polar factor, randomized polar factor, row normalisation.

A kernel sees a tensor and returns a new one. It knows no parameter, no optimizer, no global random state.
All of them are scale-aware, zero-safe and contain non-finite input: a matrix with a NaN or an Inf comes back
as NaN, its neighbours in the batch are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from egalitarian.checks import check_integer, check_number

Precision = torch.dtype | Literal["tf32"]
Method = Literal["auto", "svd", "eigh"]

RTOL: dict[Precision, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    "tf32": 1e-3,
    torch.float16: 1e-3,
    torch.bfloat16: 5e-3,
}
"""Where directions end and rounding noise begins, relative to the largest singular value, by the precision a
gradient was *computed* in. `benchmarks/noise.py` measures the noise; each value lies above what it found."""

EIGH_RTOL = 5e-7
"""The eigenvalues of a float64 Gram matrix resolve singular values down to about 1e-7 of the largest."""

REFINE_BELOW = 1e-4
"""Directions weaker than this come out of `eigh` with a relative error above 1e-7: one Newton-Schulz step."""


@torch.no_grad()
def polar(
    G: Tensor,
    *,
    method: Method = "auto",
    rtol: float | None = None,
    floor: float | None = None,
) -> Tensor:
    """U Vᵀ of G = U S Vᵀ: the same singular directions, every singular value 1.

    Directions whose singular value is not above `rtol` times the largest one stay zero, so the polar factor of a
    rank-deficient matrix has the rank of that matrix, and that of zero is zero. The result carries no gradient.

    Args:
        G: one matrix or a batch `(..., m, n)`, of dtype float64, float32, float16 or bfloat16.
        method: `"eigh"` (Gram matrix of the short side in float64, then its eigenvectors), `"svd"` (the reference:
            a float64 SVD), or `"auto"`: `"svd"` for float64 input or an `rtol` below 5e-7, `"eigh"` otherwise.
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
    kernel = _POLAR[choose_method(method, G.dtype, rtol)]

    def factor(X: Tensor, scale: Tensor) -> Tensor:
        return kernel(X, rtol, None if floor is None else floor / scale)

    return _contained(G, factor)


@torch.no_grad()
def polar_lowrank(
    G: Tensor,
    rank: int,
    *,
    iterations: int = 2,
    oversample: int = 0,
    seed: int = 0,
    rtol: float | None = None,
) -> Tensor:
    """U S⁻¹ Uᵀ G with the `rank` leading U, S of a randomized SVD (the paper's Algorithms 2 and 3).

    The strongest directions, equalised; the others zero. U and S are estimates, so the singular values of the result
    are 1 only up to the sketch's error; at full rank it equals `polar`. The sketch is a function of `seed` alone: the
    global generator is neither read nor moved, and every matrix of a batch sees the same sketch, whatever its company.

    Args:
        G: one matrix or a batch `(..., m, n)`.
        rank: how many directions to keep, 1 to min(m, n).
        iterations: rounds of power iteration, at least 1 (the paper: 2).
        oversample: extra columns of the sketch, dropped after the SVD (the paper: 0). Never more than min(m, n) in all.
        seed: of the Gaussian sketch.
        rtol: as for `polar`.
    """
    check_matrix(G)
    rows, columns = G.shape[-2:]
    check_integer("rank", rank, "use polar() for every direction")
    check_integer("iterations", iterations, "the paper uses 2", least=1)
    check_integer("oversample", oversample, "the paper uses 0", least=0)
    check_integer("seed", seed, "it seeds the sketch")
    if not 1 <= rank <= max(1, min(rows, columns)):
        raise ValueError(
            f"rank must be in [1, {min(rows, columns)}] for a matrix of shape {(rows, columns)}, got {rank}; "
            f"lower it or use polar()"
        )
    rtol = _cut(G, rtol)
    width = min(rank + oversample, rows, columns)
    generator = torch.Generator("cpu").manual_seed(seed)
    sketch = torch.randn(columns, width, generator=generator, dtype=torch.float64, device="cpu").to(G.device)

    def factor(X: Tensor, scale: Tensor) -> Tensor:
        Q = sketch
        for _ in range(iterations):
            Q = torch.linalg.qr(X @ Q).Q
            Q = torch.linalg.qr(X.mT @ Q).Q
        U, S, _ = torch.linalg.svd(X @ Q, full_matrices=False)
        U, S = U[..., :rank], S[..., :rank]
        gain = torch.where(_above_cut(S, rtol), 1 / S, 0)
        return _recombine(U, gain, U.mT @ X)

    return _contained(G, factor)


@torch.no_grad()
def normalize(G: Tensor, *, floor: float = 0.01) -> Tensor:
    """g / max(|g|, floor) for every row g of G: one scale per output unit (the paper's column normalisation).

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
        U, S, Vh = torch.linalg.svd(X, full_matrices=False)
        gain = torch.where(_above_cut(S, rtol), 1 / (S * scale), 0)
        return _recombine(U, gain, Vh)

    return _contained(G, factor)


def choose_method(method: Method, dtype: torch.dtype, rtol: float) -> Method:
    """The documented rule behind `method="auto"`; a method asked for by name is never replaced."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {get_args(Method)}, got {method!r}; 'auto' chooses for you")
    if method == "eigh" and rtol < EIGH_RTOL:
        raise ValueError(f"rtol must be >= {EIGH_RTOL:g} for method 'eigh', got {rtol:g}; raise it or use method='svd'")
    if method != "auto":
        return method
    return "svd" if dtype == torch.float64 or rtol < EIGH_RTOL else "eigh"


def _by_svd(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    return _recombine(U, _gain(S, rtol, floor), Vh)


def _by_eigh(X: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    tall = X.shape[-2] > X.shape[-1]
    A = X.mT if tall else X  # the short side in front
    eigenvalues, Q = torch.linalg.eigh(A @ A.mT)  # ascending
    S = eigenvalues.clamp_min(0).sqrt()
    inverse = torch.where(_above_cut(S, rtol), 1 / S, 0)
    P = _recombine(Q, inverse, Q.mT) @ A
    weakest = torch.where(inverse > 0, S, math.inf).amin(-1)
    rough = weakest < REFINE_BELOW * S[..., -1]
    if rough.any():  # one Newton-Schulz step, which squares the distance of the singular values from 1
        refined = 1.5 * P - 0.5 * (P @ P.mT) @ P
        P = torch.where(rough[..., None, None], refined, P)
    if floor is not None:
        P = _recombine(Q, _gain(S, rtol, floor), Q.mT) @ P
    return P.mT if tall else P


_POLAR: dict[Method, Callable[[Tensor, float, Tensor | None], Tensor]] = {"svd": _by_svd, "eigh": _by_eigh}


def _recombine(U: Tensor, gain: Tensor, Vh: Tensor) -> Tensor:
    """U diag(gain) Vh."""
    return (U * gain[..., None, :]) @ Vh


def _above_cut(S: Tensor, rtol: float) -> Tensor:
    return rtol * S.amax(-1, keepdim=True) < S


def _gain(S: Tensor, rtol: float, floor: Tensor | None) -> Tensor:
    """What becomes of each singular value: 1 above the cut, s / floor above the cut but under the floor, else 0."""
    gain = torch.ones_like(S) if floor is None else S / torch.maximum(S, floor)
    return torch.where(_above_cut(S, rtol), gain, 0)


def _contained(G: Tensor, factor: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """factor(X, scale) for X = G / scale in float64, where scale (..., 1) is a power of two for each matrix.

    A power of two, so that scaling G by one changes no bit of the result.
    """
    if G.numel() == 0:
        return G.clone()
    largest = largest_entry(G).to(torch.float64)
    finite = torch.isfinite(largest)
    if G.device.type == "cpu" and bool(finite.all()):  # no synchronisation there, and two passes less
        X, scale = _scaled(G, largest)
        return factor(X, scale).to(G.dtype)
    X, scale = _scaled(torch.where(finite, G, 0), torch.where(finite, largest, 0))
    return torch.where(finite, factor(X, scale), math.nan).to(G.dtype)


def largest_entry(G: Tensor) -> Tensor:
    """max |G_ij| of each matrix, (..., 1, 1); NaN or Inf where any entry is, so one pass tells size and finiteness."""
    return G.abs().amax((-2, -1), keepdim=True)


def _scaled(G: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """(X, scale) with G = scale X. Anything narrower than float64 can be squared there as it is: scale 1."""
    one = torch.ones_like(largest)
    if G.dtype != torch.float64:
        return G.to(torch.float64), one[..., 0]
    exponent = torch.frexp(largest).exponent
    half = torch.div(exponent, 2, rounding_mode="floor")  # 2**-exponent alone may overflow
    return G * torch.ldexp(one, -half) * torch.ldexp(one, half - exponent), torch.ldexp(one, exponent)[..., 0]


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
