"""How long a tuning would take on a GPU, from what an epoch takes there and what the best point may need."""

from __future__ import annotations

from typing import NamedTuple

from egalitarian.lab.tuning.plan import Family, Tuned

START = 0.3
"""Seconds until a run is under way: its CUDA graphs are recorded, its first checkpoint is written."""
MORE_SEEDS = 1.5
"""How much longer an epoch of the fresh seeds takes than one of the tuning seeds: GPUs hardly notice a few more."""


class Estimate(NamedTuple):
    """Of one method of one family."""

    points: int
    most_points: int
    """With all moves, each to a corner."""
    seconds: float
    """Without a move; every point as long as the cut lets it be."""
    most_seconds: float


def estimate(family: Family, tuned: Tuned) -> Estimate:
    column = 1 if family.no_decay else 0
    points = family.size * (family.size + column)
    most = points + family.moves * (2 * family.size - 1 + column)
    whole = family.score != "epochs"
    epochs = family.budget if whole else min(family.budget, family.cut * tuned.expected)
    each = START + epochs * tuned.ms_per_epoch / 1e3
    fresh = START + (family.budget if whole else 1.5 * tuned.expected) * MORE_SEEDS * tuned.ms_per_epoch / 1e3
    return Estimate(points, most, points * each + fresh, most * each + fresh)
