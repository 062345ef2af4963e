"""Egalitarian gradient descent for PyTorch: every principal direction of a gradient moves at the same speed."""

from egalitarian.apply import State, equalize_
from egalitarian.kernels import Spectrum, explain, normalize, polar, polar_lowrank, spectrum
from egalitarian.optimizers import EGD, Attachment, Until, attach
from egalitarian.select import Plan, matrices
from egalitarian.transforms import (
    GrokfastEMA,
    GrokfastMA,
    Identity,
    LowRankPolar,
    Momentum,
    Natural,
    Polar,
    RowNorm,
    Sketches,
)
from egalitarian.transforms import renamed as _renamed

__version__ = "0.1.0"

__all__ = [
    "EGD",
    "Attachment",
    "GrokfastEMA",
    "GrokfastMA",
    "Identity",
    "LowRankPolar",
    "Momentum",
    "Natural",
    "Plan",
    "Polar",
    "RowNorm",
    "Sketches",
    "Spectrum",
    "State",
    "Until",
    "attach",
    "equalize_",
    "explain",
    "matrices",
    "normalize",
    "polar",
    "polar_lowrank",
    "spectrum",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if new := _renamed(name):
        raise AttributeError(f"a transform must have its new name, got {name!r}; it is now called {new!r}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
