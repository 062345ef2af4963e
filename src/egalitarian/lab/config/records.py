"""The format of a run's records: what reports read of them, at which epochs, and as how exact numbers."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]
"""One line of `records.jsonl`: the measures of an epoch, or its snapshot."""
SKETCH = 1024
"""Numbers in a sketch of the displacement: inner products are right to about 1 / sqrt(SKETCH) = 3 %."""
LEARNING = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "validation_accuracy")
"""The measures of every epoch that reports read."""
FOURIER = ("concentration", "excluded_loss", "restricted_loss", "logit_scale")
"""The Fourier measures with one number for an epoch."""
KEPT = ("weight_norm", "distance", "sigma_max", "sigma_min", "effective_rank", *FOURIER)
"""The measures that reports read at kept epochs alone."""
PER_DECADE = 100
"""Kept epochs per decade of (epoch + 1): 400 for a run of ten thousand."""
WHOLE = 100
"""Epochs at the start that are all kept: where labels are shuffled, accuracy changes from one epoch to the next."""
SPECTRUM_BITS = 12
"""Significant bits of the singular values that reports read: a quarter of a thousandth."""
CUT = 1e-6
"""Singular values at or below this share of the largest are rounding noise of float32 gradients (docs/method.md)."""


def is_snapshot(epoch: int) -> bool:
    """Ten epochs per decade: 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, ..."""
    return epoch < 1 or epoch == round(10 ** (round(10 * math.log10(epoch)) / 10))


@cache
def is_kept(epoch: int) -> bool:
    """Whether a curve keeps the epoch: all at the start, then `PER_DECADE` per decade, evenly in the logarithm.

    Snapshots are kept as well: some runs have spectra at these epochs alone.
    """
    number = epoch + 1
    return (
        number <= WHOLE
        or is_snapshot(epoch)
        or number == round(10 ** (round(PER_DECADE * math.log10(number)) / PER_DECADE))
    )


def encode(values: Iterable[float]) -> str:
    """Little-endian float32 in base 64."""
    vector = array("f", values)
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def decode(text: str) -> array[float]:
    """The float32 vector that `encode` wrote."""
    vector = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


class Snapshot(NamedTuple):
    """The spectrum of the hidden gradient, a sketch of how far the weights have moved, and the power of each frequency in
    the first weight; None if not packed, or not measured."""

    epoch: int
    singular_values: NDArray[np.float64] | None
    displacement: NDArray[np.float64] | None
    fourier_power: NDArray[np.float64] | None = None


def single(values: NDArray[np.floating[Any]], bits: int = 24) -> NDArray[np.float32]:
    """As float32 with so many significant bits. What is finite stays finite, and a second time changes nothing."""
    largest = np.finfo(np.float32).max
    found = np.where(np.isinf(values), values, np.clip(values, -largest, largest)).astype(np.float32)
    if (rest := 24 - bits) <= 0:
        return found
    rounded = ((found.view(np.int32) + (1 << rest >> 1)) >> rest << rest).view(np.float32)
    return np.where(np.isfinite(found) & np.isfinite(rounded), rounded, found)


class Coarse(NamedTuple):
    """A sketch in one byte a number: numbers from -127 to 127, times a power of two.

    Rounding is far below the sketch's own error of 3 %.
    """

    numbers: NDArray[np.int8]
    unit: float
    """NaN if an entry was not finite."""

    @staticmethod
    def of(values: NDArray[np.floating[Any]]) -> Coarse:
        """The nearest one. Of the vector of a coarse sketch it is the same sketch."""
        largest = float(np.abs(values).max(initial=0))
        if not math.isfinite(largest):
            return Coarse(np.zeros(len(values), np.int8), math.nan)
        unit = 2.0 ** math.ceil(math.log2(largest / 127)) if largest else 0.0
        return Coarse(np.rint(values / (unit or 1)).astype(np.int8), unit)

    def vector(self) -> NDArray[np.float64]:
        return self.numbers.astype(np.float64) * self.unit
