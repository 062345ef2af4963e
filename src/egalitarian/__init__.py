"""Egalitarian gradient descent for PyTorch: every principal direction of a gradient moves at the same speed."""

from egalitarian.apply.gradients import State, equalize_
from egalitarian.kernels.polar import explain, normalize, polar, polar_lowrank
from egalitarian.optimizers.attach import Attachment, attach
from egalitarian.optimizers.egd import EGD
from egalitarian.optimizers.until import Until
from egalitarian.select.matrices import matrices
from egalitarian.select.plan import Plan
from egalitarian.spectrum import Spectrum, spectrum
from egalitarian.transforms.elementwise import GrokfastEMA, GrokfastMA, Identity, Momentum
from egalitarian.transforms.matrix import RENAMED as _RENAMED
from egalitarian.transforms.matrix import LowRankPolar, Natural, Polar, RowNorm
from egalitarian.transforms.sketches import Sketches

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
