"""Egalitarian gradient descent for PyTorch: every principal direction of a gradient moves at the same speed."""

from egalitarian.apply import State, equalize_
from egalitarian.attach import Attachment, attach
from egalitarian.filters import GrokfastEMA, GrokfastMA, Identity, Momentum
from egalitarian.kernels import explain, normalize, polar, polar_lowrank
from egalitarian.optim import EGD
from egalitarian.plan import Plan
from egalitarian.select import matrices
from egalitarian.sketches import Sketches
from egalitarian.spectrum import Spectrum, spectrum
from egalitarian.transforms import RENAMED as _RENAMED
from egalitarian.transforms import LowRankPolar, Natural, Polar, RowNorm
from egalitarian.until import Until

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


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        raise AttributeError(f"a transform must have its new name, got {name!r}; it is now called {_RENAMED[name]!r}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
