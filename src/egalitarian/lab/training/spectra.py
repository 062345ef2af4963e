"""Other singular values for a gradient, to ask whether it is equality that groks: G = U S Vᵀ becomes U f(S) Vᵀ.

EGD has f(S) = 1. All transforms here keep its directions and its cut-off, so that they differ from it in f alone.

- `Power` goes from the plain gradient through EGD to the natural gradient. By default it keeps the gradient's own scale: of
  a G, f is a^(1-c) times as long. So it changes two things: how equal the values are, and how a step's length follows the
  gradient, which shrinks as a network learns. With `rescaled=True` it changes the first alone.
- `RandomSpectrum`, `HalfSpectrum` and `ReversedSpectrum` have unequal values with the Frobenius norm of U Vᵀ, the root of
  the rank. So a step is as long as EGD's at the same learning rate, whatever the gradient's scale.

The singular vectors are from the Gram matrix of the short side, in float64. On a GPU its `eigh` takes less than half of the
time of an SVD, and like it cannot be captured. With directions down to the cut-off the error is 1e-4 at most.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from egalitarian.lab.problems import stream
from egalitarian.transforms import MatrixTransform, Site

CUT = 1e-6
"""Directions below this share of the largest are rounding noise, and become zero: the cut-off of an exact polar factor in
float32. It holds in float64 as well, since a Gram matrix does not resolve weaker ones."""


@dataclass(frozen=True, repr=False)
class _Spectrum(MatrixTransform):
    """Replaces the singular values by others. Each matrix of a stack is treated as it would be alone."""

    @abstractmethod
    def values(self, S: Tensor, kept: Tensor, site: Site) -> Tensor:
        """The new ones of (..., n) singular values, largest first; those that are not `kept` do not count."""

    @torch.no_grad()
    def __call__(self, G: Tensor, site: Site) -> Tensor:
        """A matrix with a NaN or an Inf comes back as NaN."""
        if G.ndim > 2 and G.device.type == "cpu":  # a batch gains nothing there, and its products have other roundings
            return torch.stack([self(matrix, site) for matrix in G])
        largest = G.abs().amax((-2, -1), keepdim=True).to(torch.float64)
        finite = largest.isfinite()
        unit = torch.where(finite & (largest > 0), largest, 1)  # so that no square overflows
        X = torch.where(finite, G / unit, 0)
        tall = X.shape[-2] > X.shape[-1]
        A = X.mT if tall else X
        Q = torch.linalg.eigh(A @ A.mT).eigenvectors
        W = Q.mT @ A  # its rows are s v
        S, order = torch.linalg.vector_norm(W, dim=-1).sort(-1, descending=True)  # more exact than roots of eigenvalues
        kept = CUT * S[..., :1] < S
        gain = torch.where(kept, self.values(S * unit[..., 0], kept, site) / S, 0)
        gain = torch.zeros_like(gain).scatter(-1, order, gain)
        P = (Q * gain[..., None, :]) @ W
        return torch.where(finite, P.mT if tall else P, torch.nan).to(G.dtype)

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        return "its eigenvectors synchronise"


@dataclass(frozen=True, repr=False)
class Power(_Spectrum, captures=True):
    """U S^(1-c) Vᵀ: the gradient itself for c = 0, EGD for c = 1, the natural gradient for c = 2.

    Args:
        c: how far from the plain gradient. Above 1 the weakest directions move fastest.
        rescaled: whether the result gets the Frobenius norm of U Vᵀ.
    """

    c: float
    rescaled: bool = False

    def __call__(self, G: Tensor, site: Site) -> Tensor:
        return G if self._is_plain else super().__call__(G, site)

    def values(self, S: Tensor, kept: Tensor, site: Site) -> Tensor:
        new = S.pow(1 - self.c)
        return _as_long_as_equal(new, kept) if self.rescaled else new

    def why_eager(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, site: Site) -> str:
        return "" if self._is_plain else super().why_eager(rows, columns, dtype, device, site)

    @property
    def _is_plain(self) -> bool:
        return self.c == 0 and not self.rescaled


@dataclass(frozen=True, repr=False)
class _Drawn(_Spectrum):
    """Values from a random stream that depends on (seed, matrix's name, step), like the sketches of `LowRankPolar`.

    Args:
        seed: of all draws. Matrices of a stack share them.
        fixed: one draw for all steps. Drawn for each step, the values average out: the mean update is a multiple of
            EGD's. Drawn once, the i-th strongest direction always gets the same value.
    """

    seed: int = field(default=0, kw_only=True)
    fixed: bool = field(default=False, kw_only=True)

    def draw(self, like: Tensor, site: Site) -> Tensor:
        """Independent numbers in [0, 1), one for each direction."""
        generator = stream(self.seed, "spectrum", site.name, *(() if self.fixed else (site.step,)))
        return torch.rand(like.shape[-1], generator=generator, dtype=like.dtype).to(like.device).expand_as(like)


@dataclass(frozen=True, repr=False)
class RandomSpectrum(_Drawn):
    """Independent values, uniform between 0 and a number that gives the norm of U Vᵀ: about the root of 3."""

    def values(self, S: Tensor, kept: Tensor, site: Site) -> Tensor:
        return _as_long_as_equal(self.draw(S, site), kept)


@dataclass(frozen=True, repr=False)
class HalfSpectrum(_Drawn):
    """Equal values on a random half of the directions, and 0 on the others.

    They are about the root of 2, not 1, so that the norm is that of U Vᵀ. Of an odd number one more than half is taken.
    """

    def values(self, S: Tensor, kept: Tensor, site: Site) -> Tensor:
        drawn = torch.where(kept, self.draw(S, site), torch.inf)
        taken = drawn.argsort(-1).argsort(-1) < (kept.sum(-1, keepdim=True) + 1) // 2
        return _as_long_as_equal(taken.to(S.dtype), kept)


@dataclass(frozen=True, repr=False)
class ReversedSpectrum(_Spectrum):
    """The gradient's values in reverse order: the strongest direction gets the smallest value, the weakest the largest.

    Rescaled to the norm of U Vᵀ. `Power(0, rescaled=True)` has the same values in the gradient's own order.
    """

    def values(self, S: Tensor, kept: Tensor, site: Site) -> Tensor:
        last = kept.sum(-1, keepdim=True) - 1
        opposite = (last - torch.arange(S.shape[-1], device=S.device)).clamp_min(0)
        return _as_long_as_equal(S.gather(-1, opposite), kept)


def _as_long_as_equal(values: Tensor, kept: Tensor) -> Tensor:
    """The values with the norm of as many ones as are kept."""
    counted = torch.where(kept, values, 0)
    largest = counted.amax(-1, keepdim=True)
    shape = counted / largest  # so that no square overflows
    return shape * (kept.sum(-1, keepdim=True) / shape.square().sum(-1, keepdim=True)).sqrt()
