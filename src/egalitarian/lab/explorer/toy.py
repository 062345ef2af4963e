"""The toy problem at one setting of the sliders: simulation, theorem and plateau of gradient descent and of EGD."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from egalitarian.lab.theory import (
    Curve,
    CurveSettings,
    ShiftedProblem,
    load_settings,
    plateau,
    plateau_egd,
    shift_curves,
    start_at,
)

SIZES = {"samples": 20000, "test_points": 1000, "seeds": 4, "grid": 40}
"""Of the simulation: small enough for a few milliseconds."""
BASE = load_settings(CurveSettings, quick=True)


@dataclass(frozen=True)
class Knob:
    """One slider: what it sets, in words, and from where to where it goes."""

    name: str
    words: str
    low: float
    high: float
    start: float
    value: Callable[[float], float] = float
    """From the slider's position."""


def _power(position: float) -> float:
    return float(10**position)


KNOBS = (
    Knob("eps", "Variance of the slow feature (eps)", -3.0, -0.5, -2.0, _power),
    Knob("theta", "Angle of the test direction (theta, in units of pi)", 0.05, 0.45, 0.25),
    Knob("s", "Half-margin of the training data (s)", 0.0, 3.0, 1.0),
    Knob("eta", "Step size (eta)", 0.01, 0.5, 0.1),
    Knob("zeta", "Size of the start (zeta)", -1.0, 3.0, 1.0, _power),
)


class ToyLines(NamedTuple):
    """One method's test error by step, and the length of its plateau, in steps."""

    theory: list[list[float]]
    simulation: list[list[float]]
    plateau: float


def simulate(**values: float) -> dict[str, ToyLines]:
    """By method, at these values of the knobs. ValueError if a value is not allowed: it says which, and what is."""
    eps, angle, zeta = values["eps"], values["theta"] * math.pi, values["zeta"]
    problem = ShiftedProblem(eps, angle, values["s"], values["eta"])
    changes: dict[str, Any] = {"theta": angle, "s": values["s"], "eta": values["eta"], "zeta": (zeta,), **SIZES}
    curves = shift_curves(replace(BASE, **changes), eps)
    start = start_at(zeta, BASE.start)
    ends = {"GD": plateau(problem, start), "EGD": plateau_egd(problem, start)}
    return {curve.method: _lines(curve, ends[curve.method]) for curve in curves}


def _lines(curve: Curve, end: float) -> ToyLines:
    theory, dots = (
        np.column_stack((curve.steps, curve.theory)),
        np.column_stack((curve.marks, curve.simulated.mean(axis=0))),
    )
    return ToyLines(theory.round(4).tolist(), dots.round(4).tolist(), end)
