"""By an SVD in float64: the polar factor as a reference, the natural gradient, and the spectrum of a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.kernels.route import Route, check_matrix, cut_off, is_traced
from egalitarian.kernels.scaling import contained


def polar_by_svd(route: Route, X: Tensor, scale: Tensor) -> Tensor:
    """U diag(gain) Vᵀ of X = G / scale = U S Vᵀ. The gain is 1, smaller below the floor, and 0 below the cut-off."""
    U, S, Vh = torch.linalg.svd(X.to(torch.float64), full_matrices=False)
    return recombine(U, gain(S, route, scale), Vh)


@torch.no_grad()
def natural(G: Tensor, *, rtol: float | None = None) -> Tensor:
    """F⁻¹ G with F = G Gᵀ: U S⁻¹ Vᵀ, directions below the cut-off being zero. EGD is F^(1/2) times this."""
    check_matrix(G)
    rtol = cut_off(G.dtype, rtol)

    def inverse(X: Tensor, scale: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(X.to(torch.float64), full_matrices=False)
        return recombine(U, torch.where(above_cut(S, rtol), 1 / (S * scale), 0), Vh)

    return contained(G, inverse, readable=G.device.type == "cpu" and not is_traced(G))


def recombine(U: Tensor, gain: Tensor, Vh: Tensor) -> Tensor:
    """U diag(gain) Vh."""
    return (U * gain[..., None, :]) @ Vh


def above_cut(S: Tensor, rtol: float) -> Tensor:
    """Which singular values are above `rtol` times the largest."""
    return rtol * S.amax(-1, keepdim=True) < S


def gain(S: Tensor, route: Route, scale: Tensor) -> Tensor:
    """The new singular values: 1 above the cut-off, s / floor between cut-off and floor, else 0."""
    new = torch.ones_like(S) if route.floor is None else S / torch.maximum(S, route.floor / scale)
    return torch.where(above_cut(S, route.rtol), new, 0)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values s of one matrix, or of each matrix of a batch. Made by `spectrum`.

    `condition`, `stable_rank` and `effective_rank` are computed when they are read.

    >>> found = spectrum(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    >>> found.values.tolist(), found.condition.item()
    ([3.0, 1.0], 3.0)
    """

    values: Tensor
    """Shape (..., min(m, n)), float64, largest first. All NaN for a matrix with a NaN or an Inf."""

    @property
    def condition(self) -> Tensor:
        """s_max / s_min: 1 if all singular values are equal, inf for a singular matrix, NaN for a zero matrix."""
        return self.values[..., 0] / self.values[..., -1]

    @property
    def stable_rank(self) -> Tensor:
        """sum(s²) / s_max²: roughly the number of strong directions; 0 for a zero matrix."""
        largest = self.values[..., 0]
        return torch.where(largest == 0, 0, (self.values / largest[..., None]).square().sum(-1))

    @property
    def effective_rank(self) -> Tensor:
        """exp(entropy of s / sum(s)), after Roy and Vetterli (2007); 0 for a zero matrix."""
        total = self.values.sum(-1, keepdim=True)
        share = self.values / total
        entropy = -torch.xlogy(share, share).sum(-1)
        return torch.where(total[..., 0] == 0, 0, entropy.exp())

    def __repr__(self) -> str:
        if self.values.ndim > 1:
            return f"Spectrum({tuple(self.values.shape[:-1])} matrices of {self.values.shape[-1]} singular values)"
        return (
            f"Spectrum({self.values.numel()} singular values, largest {self.values[0]:.3g}, "
            f"condition {self.condition:.3g}, stable rank {self.stable_rank:.3g}, "
            f"effective rank {self.effective_rank:.3g})"
        )


@torch.no_grad()
def spectrum(G: Tensor) -> Spectrum:
    """Computes the singular values of a matrix, or of a batch `(..., m, n)`, in float64.

    Raises:
        TypeError: G is not a dense floating-point tensor.
        ValueError: G has fewer than two dimensions, or no rows or columns.

    >>> float(spectrum(torch.tensor([[3.0, 0.0], [0.0, 0.5]])).condition)
    6.0
    """
    check_matrix(G)
    if 0 in G.shape[-2:]:
        raise ValueError(f"G must have rows and columns, got shape {tuple(G.shape)}; an empty matrix has no spectrum")
    X = G.to(torch.float64)
    finite = torch.isfinite(X).all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], X, 0))
    return Spectrum(torch.where(finite[..., None], values, torch.nan))
