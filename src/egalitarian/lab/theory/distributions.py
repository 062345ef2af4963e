"""The two distributions of z ~ N(0, diag(1, eps)), conditioned, with labels sign(x1): draws and moments.

Section 3 trains on |z1| >= s, the folded data. Test points, and the whole appendix, are on z1 (z.v) <= 0, the wedge. Each
distribution is drawn twice: by rejection, straight from its definition, and directly. Closed forms are checked against the
rejection draws, which share no derivation with them. Moments come in closed form, by integral, and as printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad  # type: ignore[import-untyped]
from scipy.special import log_ndtr, ndtr, ndtri  # type: ignore[import-untyped]

Array = NDArray[np.float64]
Generator = np.random.Generator
ROOT_TWO_PI = math.sqrt(2 * math.pi)


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


def density(t: float) -> float:
    """phi(t) = exp(-t²/2) / sqrt(2 pi)."""
    return math.exp(-t * t / 2) / ROOT_TWO_PI


def folded_first(s: float) -> float:
    """m1 = E|x1| = phi(s) / Q(s), in logarithms so that a large s does not underflow.

    >>> round(folded_first(0.0), 4), round(folded_first(1.0), 4)
    (0.7979, 1.5251)
    """
    return math.exp(-s * s / 2 - float(log_ndtr(-s))) / ROOT_TWO_PI


def folded_second(s: float) -> float:
    """m2 = E[x1²] = 1 + s m1."""
    return 1.0 + s * folded_first(s)


@dataclass(frozen=True)
class WedgeMoments:
    """Sigma = [[a, b], [b, d]], c = (c1, c2) and the wedge's probability Z under z."""

    Z: float
    a: float
    b: float
    d: float
    c1: float
    c2: float

    @property
    def sigma(self) -> Array:
        return np.array([[self.a, self.b], [self.b, self.d]])

    @property
    def c(self) -> Array:
        return np.array([self.c1, self.c2])


def wedge_moments(eps: float, theta: float) -> WedgeMoments:
    """Z = phi/pi; a, d/eps = 1 -+ sin 2phi / 2phi; b = -sqrt(eps) sin²phi / phi; c in the same way.

    The appendix has these as integrals over t (three of them with a slip). In polar coordinates of the whitened plane the
    wedge is an interval of angles, and every integral closes. phi is `wedge_angle(eps, theta)`, c1 = sqrt(pi/2)
    (1 - cos phi) / phi and c2 = -sqrt(eps pi / 2) sin phi / phi.
    """
    phi = wedge_angle(eps, theta)
    root, half = math.sqrt(eps), math.sin(2 * phi) / (2 * phi)
    mean = math.sqrt(math.pi / 2)
    return WedgeMoments(
        Z=phi / math.pi,
        a=_one_minus_sinc(2 * phi),
        b=-root * math.sin(phi) ** 2 / phi,
        d=eps * (1 + half),
        c1=mean * 2 * math.sin(phi / 2) ** 2 / phi,
        c2=-mean * root * math.sin(phi) / phi,
    )


def _one_minus_sinc(x: float) -> float:
    """1 - sin(x)/x; below 0.01 by its series, where the difference would lose digits."""
    return x * x / 6 * (1 - x * x / 20) if abs(x) < 0.01 else 1 - math.sin(x) / x


def wedge_moments_by_integral(eps: float, theta: float) -> WedgeMoments:
    """The appendix's integrals with the event's own sign: Phi(-kappa t), and Phi(-kappa t) + kappa t phi(kappa t) in d.

    Given z1 = t > 0 the event z1 (z.v) <= 0 is z2 / sqrt(eps) <= -kappa t, kappa = cot(theta) / sqrt(eps).
    """
    return _integrals(eps, theta, lambda x: float(ndtr(-x)), lambda x: float(ndtr(-x)) + x * density(x))


def wedge_moments_as_printed(eps: float, theta: float) -> WedgeMoments:
    """The appendix to the letter: Phi(kappa t) in a, c1 and d. Wrong in all three; b, c2 and Z are right."""
    return _integrals(eps, theta, lambda x: float(ndtr(x)), lambda x: float(ndtr(x)) - x * density(x))


def _integrals(
    eps: float, theta: float, weight: Callable[[float], float], second: Callable[[float], float]
) -> WedgeMoments:
    """(2/Z) int_0^inf (...) phi(t) dt, with `weight` for P(event | t) and `second` for E[z2²/eps; event | t]."""
    root, Z = math.sqrt(eps), wedge_angle(eps, theta) / math.pi
    kappa = math.cos(theta) / (math.sin(theta) * root)
    bends = [x / max(abs(kappa), 1.0) for x in (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)] + [4.0, 8.0]

    def integral(f: Callable[[float], float]) -> float:
        value, _ = quad(lambda t: f(t) * density(t), 0.0, 40.0, limit=400, points=sorted(set(bends)))
        return float(value)

    return WedgeMoments(
        Z=Z,
        a=2 / Z * integral(lambda t: t * t * weight(kappa * t)),
        b=-2 * root / Z * integral(lambda t: t * density(kappa * t)),
        d=2 * eps / Z * integral(lambda t: second(kappa * t)),
        c1=2 / Z * integral(lambda t: t * weight(kappa * t)),
        c2=-2 * root / Z * integral(lambda t: density(kappa * t)),
    )
