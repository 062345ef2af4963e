"""Read-only measures of a gradient: how unequal are its directions?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.kernels import check_matrix


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values s of one matrix, or of each matrix of a batch. Made by `spectrum`.

    `condition`, `stable_rank` and `effective_rank` are computed when they are read.
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
