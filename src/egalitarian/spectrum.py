"""Read-only measures of a gradient: how unequal are its directions?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from egalitarian.kernels import check_matrix


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The singular values of one matrix, or of each matrix of a batch, and what they say.

    The measures are computed when asked for, so keeping a spectrum costs no synchronisation with the device.
    """

    values: Tensor
    """(..., min(m, n)), float64, largest first. All NaN for a matrix with a non-finite entry."""

    @property
    def condition(self) -> Tensor:
        """s_max / s_min: 1 when all directions are equal, inf when the matrix is singular, NaN when it is zero."""
        return self.values[..., 0] / self.values[..., -1]

    @property
    def stable_rank(self) -> Tensor:
        """sum(s²) / s_max²: how many directions carry the energy; 0 for a zero matrix."""
        largest = self.values[..., 0]
        return torch.where(largest == 0, 0, (self.values / largest[..., None]).square().sum(-1))

    @property
    def effective_rank(self) -> Tensor:
        """exp of the entropy of s / sum(s) (Roy and Vetterli 2007); 0 for a zero matrix."""
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
    """The singular values of one matrix or of a batch `(..., m, n)`, in float64, with the measures that follow.

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
