"""The polar factor and the natural gradient by an SVD in float64: the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from egalitarian.kernels.route import Route, check_matrix, cut_off, is_traced
from egalitarian.kernels.scaling import contained


def polar_by_svd(route: Route, X: Tensor, scale: Tensor) -> Tensor:
    """U diag(gain) Vᵀ of X = U S Vᵀ, where the gain is 1 above the cut-off and the floor."""
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
