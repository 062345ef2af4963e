"""The grid on which the closed forms of the toy problem are tested."""

from __future__ import annotations

import itertools
import math
from typing import Any

EPS = (0.1, 0.01, 0.001)
ACUTE = (math.pi / 8, math.pi / 4, 3 * math.pi / 8)
OBTUSE = (5 * math.pi / 8, 3 * math.pi / 4)
SIGMAS = 4.0
"""Standard errors that a simulated mean may be away."""


def grid(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return list(itertools.product(*axes))
