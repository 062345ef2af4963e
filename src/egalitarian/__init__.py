"""Egalitarian gradient descent for PyTorch: every principal direction of a gradient moves at the same speed."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


_ROOMS = ("apply", "kernels", "optimizers", "select", "transforms")
"""Where the names are. They are imported at first use, so that the console command handles Ctrl-C before torch is there."""


def __dir__() -> list[str]:
    return sorted(__all__)


def _imported(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rooms = {room: import_module(f"{__name__}.{room}") for room in _ROOMS}
    for known in __all__:
        globals().setdefault(known, next(vars(room)[known] for room in rooms.values() if known in room.__all__))
    if name in globals():
        return globals()[name]
    if new := rooms["transforms"].renamed(name):
        raise AttributeError(f"a transform must have its new name, got {name!r}; it is now called {new!r}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a type checker would take any name then
    __getattr__ = _imported
