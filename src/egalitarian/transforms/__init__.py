"""What may be done to a gradient, as frozen values.

A *matrix* transform acts on the matrices that the plan takes and keeps nothing. An *elementwise* transform, a filter, acts
on whole parameters. It may keep a memory, which it takes and returns as plain tensors: no transform holds one itself.
"""

from egalitarian.transforms.base import (
    ElementwiseTransform,
    MatrixTransform,
    Memory,
    Site,
    Transform,
    as_chain,
    asks_for_autocast,
    broadcast,
    ignoring_autocast,
    is_of_chain,
    not_declared,
    renamed,
    uses_matrices,
)
from egalitarian.transforms.elementwise import GrokfastEMA, GrokfastMA, Identity, Momentum
from egalitarian.transforms.matrix import LowRankPolar, Natural, Polar, RowNorm
from egalitarian.transforms.sketches import Sketches

__all__ = [
    "ElementwiseTransform",
    "GrokfastEMA",
    "GrokfastMA",
    "Identity",
    "LowRankPolar",
    "MatrixTransform",
    "Memory",
    "Momentum",
    "Natural",
    "Polar",
    "RowNorm",
    "Site",
    "Sketches",
    "Transform",
    "as_chain",
    "asks_for_autocast",
    "broadcast",
    "ignoring_autocast",
    "is_of_chain",
    "not_declared",
    "renamed",
    "uses_matrices",
]
