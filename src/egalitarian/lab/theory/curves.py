"""The arrays of the figures: test error by step, and the length of the plateau. Theory is exact, simulation over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from egalitarian.lab.theory import equidistribution as equal
from egalitarian.lab.theory import theorem
from egalitarian.lab.theory.distributions import Array, wedge_moments_as_printed
from egalitarian.lab.theory.error import (
    error_on_test,
    error_on_test_one_sided,
    error_on_train,
    quadratics,
    simulated_errors,
    simulated_plateaus,
)
from egalitarian.lab.theory.problem import EqualProblem, Problem, Quadratic, ShiftedProblem, egd, gd, start_at
from egalitarian.lab.theory.settings import CloudSettings, CurveSettings, EqualCurveSettings, PlateauSettings

FINE = 400
"""Steps of a theory line, enough to look smooth."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """Training and test points of one problem, (n, 2) each; labels are the sign of the first entry."""

    problem: Problem
    train: Array
    test: Array


@dataclass(frozen=True, eq=False)
class Curve:
    """Test error against the step k of one method from one start: theory at `steps` (K,), simulation at `marks` (M,).

    `simulated` is (seeds, M). `printed` is the paper's formula, None if it is the same or diverges. `train` is the closed
    form of the training error.
    """

    method: Literal["GD", "EGD"]
    eps: float
    zeta: float
    steps: Array
    theory: Array
    marks: Array
    simulated: Array
    printed: Array | None = None
    train: Array | None = None


@dataclass(frozen=True, eq=False)
class PlateauCurve:
    """Length of the plateau against x: simulation (seeds, X), theory (X,) and the paper's formula (X,)."""

    name: str
    """GD, EGD, or appendix."""
    x: Array
    """1/eps, or zeta."""
    simulated: Array
    theory: Array
    printed: Array | None = None


def clouds(settings: CloudSettings) -> tuple[Cloud, Cloud]:
    """The cloud of Section 3 and that of the appendix."""
    rng, unused = np.random.default_rng(settings.seed), 1e-3  # a problem needs eta, a cloud does not
    problems = (
        ShiftedProblem(settings.eps, settings.theta, settings.s, unused),
        EqualProblem(settings.eps, settings.theta, unused),
    )
    drawn = [(one, one.train(settings.points, rng)[0], one.test(settings.points, rng)[0]) for one in problems]
    first, second = (Cloud(*each) for each in drawn)
    return first, second


def _grid(last: float, count: int) -> Array:
    """Up to `count` whole steps from 1 to `last`, evenly in log k."""
    return np.unique(np.round(np.geomspace(1, max(last, 10.0), count)))


def shift_curves(settings: CurveSettings, eps: float) -> list[Curve]:
    """GD and EGD at one eps, every zeta, on the same training and test samples."""
    problem = ShiftedProblem(eps, settings.theta, settings.s, settings.eta)
    key = (settings.seed, round(1 / eps))
    trained = quadratics(problem, settings.samples, settings.seeds, (*key, 0))
    tests = [problem.test(settings.test_points, np.random.default_rng([*key, 1, i]))[0] for i in range(settings.seeds)]
    starts = [start_at(zeta, settings.start) for zeta in settings.zeta]
    last = max(theorem.plateau_large(problem, start) for start in starts) + 5 / (problem.eta * eps)
    steps, marks, curves = _grid(last, FINE), _grid(last, settings.grid), []
    for name, method in (("GD", gd), ("EGD", egd)):
        for zeta, start in zip(settings.zeta, starts, strict=True):
            path = method(problem.population(), problem.rate, start, steps)
            curves.append(
                Curve(
                    method="GD" if name == "GD" else "EGD",
                    eps=eps,
                    zeta=zeta,
                    steps=steps,
                    theory=error_on_test(path, eps, problem.theta),
                    marks=marks,
                    simulated=simulated_errors(trained, tests, problem.rate, start, marks, method),
                    train=error_on_train(path, eps, problem.s),
                )
            )
    return curves


def equal_curves(settings: EqualCurveSettings, eps: float) -> list[Curve]:
    """GD where training and test distributions are equal: simulation, the corrected theory, and the appendix as printed."""
    problem = EqualProblem(eps, settings.theta, settings.eta)
    key = (settings.seed, round(1 / eps))
    trained = quadratics(problem, settings.samples, settings.seeds, (*key, 0))
    tests = [problem.test(settings.test_points, np.random.default_rng([*key, 1, i]))[0] for i in range(settings.seeds)]
    starts = [start_at(zeta, settings.start) for zeta in settings.zeta]
    printed = wedge_moments_as_printed(eps, problem.theta)
    stable = abs(equal.factors(printed, problem.eta)[0]) < 1
    last = 30 / (problem.eta * eps)
    steps, marks, curves = _grid(last, FINE), _grid(last, settings.grid), []
    for zeta, start in zip(settings.zeta, starts, strict=True):
        as_printed = error_on_test_one_sided(equal.path(printed, problem.eta, start, steps), eps, problem.theta)
        curves.append(
            Curve(
                method="GD",
                eps=eps,
                zeta=zeta,
                steps=steps,
                theory=error_on_test(equal.gd_path(problem, start, steps), eps, problem.theta),
                marks=marks,
                simulated=simulated_errors(trained, tests, problem.rate, start, marks),
                printed=as_printed if stable else None,
            )
        )
    return curves


def plateaus_over_eps(settings: PlateauSettings) -> list[PlateauCurve]:
    """Plateau length k_* from one start, against 1/eps: GD and EGD of Section 3, and GD of the appendix."""
    cells = [(eps, settings.fixed_zeta) for eps in settings.eps]
    return _plateaus(settings, cells, 1 / np.array(settings.eps))


def plateaus_over_zeta(settings: PlateauSettings) -> list[PlateauCurve]:
    """The same at one eps, against |w(0)|."""
    cells = [(settings.fixed_eps, zeta) for zeta in settings.zeta]
    return _plateaus(settings, cells, np.array(settings.zeta))


def _plateaus(settings: PlateauSettings, cells: list[tuple[float, float]], x: Array) -> list[PlateauCurve]:
    found: dict[str, list[tuple[Array, float, float]]] = {"GD": [], "EGD": [], "appendix": []}
    drawn: dict[float, tuple[list[Quadratic], list[Quadratic]]] = {}
    for eps, zeta in cells:
        start = start_at(zeta)
        shifted = ShiftedProblem(eps, settings.theta, settings.s, settings.eta)
        equals = EqualProblem(eps, settings.theta, settings.eta)
        if eps not in drawn:
            drawn[eps] = (_trained(shifted, settings, 0), _trained(equals, settings, 1))
        printed = theorem.plateau_large_as_printed(shifted, start)
        lengths = simulated_plateaus(drawn[eps][0], gd, shifted, start)
        found["GD"].append((lengths, theorem.plateau(shifted, start), printed))
        lengths = simulated_plateaus(drawn[eps][0], egd, shifted, start)
        found["EGD"].append((lengths, theorem.plateau_egd(shifted, start), math.nan))
        printed = equal.plateau_as_printed(equals, start, equals.moments)
        lengths = simulated_plateaus(drawn[eps][1], gd, equals, start)
        found["appendix"].append((lengths, equal.plateau(equals, start), printed))
    return [_plateau_curve(name, x, rows) for name, rows in found.items()]


def _trained(problem: Problem, settings: PlateauSettings, which: int) -> list[Quadratic]:
    return quadratics(problem, settings.samples, settings.seeds, (settings.seed, round(1 / problem.eps), which))


def _plateau_curve(name: str, x: Array, rows: list[tuple[Array, float, float]]) -> PlateauCurve:
    simulated, theory, printed = zip(*rows, strict=True)
    lengths = np.array(printed)
    # a printed length below one step is no plateau, and a logarithmic axis cannot show it
    shown = np.where(lengths > 1, lengths, np.nan)
    as_printed = None if np.isnan(shown).all() else shown
    return PlateauCurve(name, x, np.stack(simulated, axis=1), np.array(theory), as_printed)
