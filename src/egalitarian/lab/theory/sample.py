"""z ~ N(0, diag(1, eps)), folded: on |z1| >= s (training data) or on z1 (z.v) <= 0 (the wedge). Labels are sign(x1).

Each law is drawn twice: straight from its definition by rejection, and directly. Closed forms are checked against the
rejection draws, which share no derivation with them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

Array = NDArray[np.float64]
Generator = np.random.Generator


def labels(x: Array) -> Array:
    """y = sign(x1), the teacher of the whole toy problem; `x` is (n, 2)."""
    return np.where(x[:, 0] >= 0, 1.0, -1.0)


def gaussian(n: int, eps: float, rng: Generator) -> Array:
    """n draws of z ~ N(0, diag(1, eps)), (n, 2)."""
    z = rng.standard_normal((n, 2))
    z[:, 1] *= np.sqrt(eps)
    return z


def folded(n: int, eps: float, s: float, rng: Generator) -> Array:
    """n draws of z given |z1| >= s, by inverting the survival function Q: |z1| = Q⁻¹(U Q(s))."""
    x = gaussian(n, eps, rng)
    size = -ndtri((1.0 - rng.random(n)) * ndtr(-s))
    x[:, 0] = np.where(x[:, 0] >= 0, size, -size)
    return x


def folded_by_rejection(draws: int, eps: float, s: float, rng: Generator) -> Array:
    """Those of `draws` draws of z with |z1| >= s: the definition."""
    z = gaussian(draws, eps, rng)
    return z[np.abs(z[:, 0]) >= s]


def wedge_angle(eps: float, theta: float) -> float:
    """phi = arccos(r) = atan2(sqrt(eps) sin theta, cos theta): the angle of v in the whitened plane."""
    return float(np.arctan2(np.sqrt(eps) * np.sin(theta), np.cos(theta)))


def wedge(n: int, eps: float, theta: float, rng: Generator) -> Array:
    """n draws of z given z1 (z.v) <= 0: whitened, +-R (sin chi, -cos chi) with chi uniform on (0, phi), R Rayleigh."""
    chi = wedge_angle(eps, theta) * rng.random(n)
    radius = np.sqrt(rng.chisquare(2, n)) * rng.choice([-1.0, 1.0], n)
    return np.stack([radius * np.sin(chi), -np.sqrt(eps) * radius * np.cos(chi)], axis=1)


def wedge_by_rejection(draws: int, eps: float, theta: float, rng: Generator) -> Array:
    """Those of `draws` draws of z with z1 (z.v) <= 0: the definition. About a share phi / pi of them."""
    block, kept = 1_000_000, []
    for begin in range(0, draws, block):
        z = gaussian(min(block, draws - begin), eps, rng)
        kept.append(z[z[:, 0] * (z[:, 0] * np.cos(theta) + z[:, 1] * np.sin(theta)) <= 0])
    return np.concatenate(kept)
