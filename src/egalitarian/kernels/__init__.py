"""The maths: G -> U Vᵀ and its relatives, on matrices `(..., m, n)`.

A kernel sees a tensor and returns a new one. It knows no parameter, no optimizer and no global random state. Scale does
not matter, a zero matrix stays zero, and a matrix with a NaN or an Inf comes back as NaN without touching the others.
Functions: `polar`, `polar_lowrank`, `normalize`, `natural`, `spectrum`; `explain` prints the `Route` that `polar` follows.
"""

from egalitarian.kernels.factor import explain, polar
from egalitarian.kernels.lowrank import gaussian, polar_lowrank
from egalitarian.kernels.route import (
    RTOL,
    Method,
    Precision,
    Route,
    Tier,
    TierChoice,
    check_matrix,
    check_options,
    choose,
    choose_lowrank,
    decide,
    tier_for,
)
from egalitarian.kernels.scaling import largest_entry, normalize
from egalitarian.kernels.svd import Spectrum, natural, spectrum

__all__ = [
    "RTOL",
    "Method",
    "Precision",
    "Route",
    "Spectrum",
    "Tier",
    "TierChoice",
    "check_matrix",
    "check_options",
    "choose",
    "choose_lowrank",
    "decide",
    "explain",
    "gaussian",
    "largest_entry",
    "natural",
    "normalize",
    "polar",
    "polar_lowrank",
    "spectrum",
    "tier_for",
]
