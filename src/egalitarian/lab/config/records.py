"""The format of a run's records: which epochs have a snapshot, and how a sketch of the weights is written as text."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
"""One line of `records.jsonl`: the measures of an epoch, or its snapshot."""
SKETCH = 1024
"""Numbers in a sketch of the displacement: inner products are right to about 1 / sqrt(SKETCH) = 3 %."""
CUT = 1e-6
"""Singular values at or below this share of the largest are rounding noise of float32 gradients (docs/method.md)."""


def is_snapshot(epoch: int) -> bool:
    """Ten epochs per decade: 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, ..."""
    return epoch < 1 or epoch == round(10 ** (round(10 * math.log10(epoch)) / 10))


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
