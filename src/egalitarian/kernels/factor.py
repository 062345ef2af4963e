"""`polar` chooses a route and follows it; `explain` prints the route."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from egalitarian.kernels.eigh import polar_by_eigh
from egalitarian.kernels.half import polar_by_halves
from egalitarian.kernels.polynomial import polar_by_polynomial
from egalitarian.kernels.rational import coarse_by_rational, polar_by_rational
from egalitarian.kernels.route import Algorithm, Method, Route, Tier, TierChoice, choose
from egalitarian.kernels.scaling import contained
from egalitarian.kernels.svd import polar_by_svd

KERNELS: dict[Algorithm, Callable[[Route, Tensor, Tensor], Tensor]] = {
    "svd": polar_by_svd,
    "eigh": polar_by_eigh,
    "polynomial": polar_by_polynomial,
    "rational": polar_by_rational,
}
"""kernel(route, X, scale): the polar factor of X = G / scale. The scale, (..., 1), matters for a floor alone."""


LOOSE: dict[tuple[Algorithm, Tier], Callable[[Route, Tensor, Tensor], Tensor]] = {
    ("polynomial", "fast"): polar_by_halves,
    ("polynomial", "coarse"): polar_by_halves,
    ("rational", "coarse"): coarse_by_rational,
}
"""The kernels of tiers that have one of their own."""


@torch.no_grad()
def polar(
    G: Tensor,
    *,
    method: Method = "auto",
    precision: TierChoice = "exact",
    rtol: float | None = None,
    floor: float | None = None,
) -> Tensor:
    """The polar factor U Vᵀ of G = U S Vᵀ: the same singular directions, every singular value 1.

    Directions with a singular value of at most `rtol` times the largest become zero. So the result has the rank of G,
    and a zero matrix stays zero. The result carries no gradient.

    Args:
        G: one matrix or a batch `(..., m, n)`, of dtype float64, float32, float16 or bfloat16.
        method: the algorithm. `"auto"` chooses one of the others; `explain` names it.
            - `"polynomial"`: matrix products on the Gram matrix of the short side. It never synchronises, so a CUDA graph
              can capture it. Its cut-off is accurate to a factor of three.
            - `"eigh"`: the eigenvectors of that Gram matrix.
            - `"rational"`: one or two inverses and a few products in float32; fast or coarse only, on a CPU.
            - `"svd"`: an SVD in float64, the reference.
        precision: how accurate the factor is. See `docs/tiers.md`.
            - `"exact"` is at least as accurate as a float32 SVD.
            - `"fast"` has a root mean square error of at most 1e-3 over the directions above 1e-3 of the largest. Weaker
              directions may come out weaker than 1. In some cases it runs an exact algorithm.
            - `"coarse"` leaves singular values between 0.65 and 1.25. Directions below 1/40 of the Schatten-4 norm may come
              out weaker. It has no cut-off: `rtol` must be None. A GPU takes four half-precision steps, a CPU one inverse.
            - `"auto"` is coarse for a half-precision G, and on a GPU from a short side of 257 on; otherwise exact. With
              `rtol`, `floor`, or the method `"svd"` or `"eigh"`, it is exact.
        rtol: the relative cut-off, in [0, 1). None takes it from G's dtype (`egalitarian.kernels.RTOL`). Under autocast
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
    route = choose(G, method=method, precision=precision, rtol=rtol, floor=floor)
    device = "cpu" if G.is_meta else G.device.type  # autocast has no meta device
    with torch.autocast(device, enabled=False):  # it would lower the precision of products in float32
        kernel = partial(LOOSE.get((route.algorithm, route.tier), KERNELS[route.algorithm]), route)
        if route.scaled is None:
            return kernel(G, G.new_ones(1)).to(G.dtype)
        return contained(G, kernel, route.readable, route.scaled)


def explain(
    G: Tensor,
    *,
    method: Method = "auto",
    precision: TierChoice = "exact",
    rtol: float | None = None,
    floor: float | None = None,
) -> str:
    """The algorithm that `polar` uses for this tensor, and why. The arguments are those of `polar`.

    >>> explain(torch.zeros(194, 512))
    'eigh: Gram matrix 194 x 194 in float64 and its eigenvectors, cut-off 1e-06 (on a CPU)'
    """
    return str(choose(G, method=method, precision=precision, rtol=rtol, floor=floor))
