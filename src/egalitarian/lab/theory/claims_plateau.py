"""Section 3 against simulation: how long the plateaus of GD, of EGD and of the normalised step are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.theory import theorem
from egalitarian.lab.theory.claim import ToyClaim, estimate, slopes
from egalitarian.lab.theory.distributions import Array
from egalitarian.lab.theory.error import Descent, error_on_test, first_step, on_plateau, quadratics, simulated_plateaus
from egalitarian.lab.theory.problem import Quadratic, ShiftedProblem, egd, gd, polar_by_steps, start_at
from egalitarian.lab.theory.settings import ClaimSettings


def corollary_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """(A) and (B) over eps x theta, both signs of u2, with the phase the printed tau puts a start into."""
    s, zeta = settings.s[-1], settings.zeta[-1]
    for (i, eps), (j, theta) in itertools.product(enumerate(settings.eps), enumerate(settings.theta)):
        problem = ShiftedProblem(eps, theta, s, settings.eta)
        trained = quadratics(problem, settings.samples_for(eps), settings.seeds, (settings.seed, 9, i, j))
        for sign in (1, -1):
            start = start_at(zeta, sign * math.pi / 2)
            printed, true = theorem.plateau_large_as_printed(problem, start), theorem.plateau_large(problem, start)
            claim = f"k_* = log(tau)/log(1/beta), tau with tan, u2 {'>' if sign > 0 else '<'} 0"
            key, where = f"corollary A (u2 {'>' if sign > 0 else '<'} 0)", "Corollary 1 (A)"
            yield _length(
                key, where, claim, problem, start, printed, true, simulated_plateaus(trained, gd, problem, start), settings
            )
        small = start_at(settings.small_tau * math.tan(theta) * problem.m1 / problem.m2)
        printed, true = theorem.plateau_small_as_printed(problem, small), theorem.plateau_small(problem, small)
        found = simulated_plateaus(trained, gd, problem, small)
        claim = "k_* = (1/eta) log(1/(tau eps))"
        yield _length("corollary B", "Corollary 1 (B)", claim, problem, small, printed, true, found, settings)
        if theta < max(settings.theta):  # the noise of w_ols hides the descent at a narrow wedge
            continue
        groks = np.array([_time_to_error(one, problem, small, settings.error_level) for one in trained])
        true = theorem.steps_to_error(problem, small, settings.error_level)
        claim = f"a small start groks (error <= {settings.error_level:g}) after (1/eta) log(1/(tau eps))"
        yield _length("time to grok", "Corollary 1 (B)", claim, problem, small, printed, true, groks, settings)


def _length(
    key: str,
    where: str,
    claim: str,
    problem: ShiftedProblem,
    start: Array,
    printed: float,
    true: float,
    found: Array,
    settings: ClaimSettings,
) -> ToyClaim:
    """A row about a number of steps: lengths are read in whole steps, so one step of slack."""
    mean, error = estimate(found)
    setting = f"eps={problem.eps:g} theta={problem.theta / math.pi:g}pi s={problem.s:g} u2={start[1]:.3g}"
    return ToyClaim(key, where, claim, setting, printed, true, mean, error, settings.sigmas, 1.0)


def _time_to_error(one: Quadratic, problem: ShiftedProblem, start: Array, level: float) -> float:
    def low(w: Array) -> NDArray[np.bool_]:
        return error_on_test(w, problem.eps, problem.theta) <= level

    return first_step(lambda k: gd(one, problem.rate, start, k), low, math.ceil(100 / (problem.eta * problem.eps)))


def phase_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """Which phase a start belongs to: at small theta a printed tau < 1 comes with a plateau of order 1/eps."""
    eps, s = settings.eps[-1], settings.s[-1]
    for i, theta in enumerate((min(settings.theta), math.pi / 2 - min(settings.theta))):
        problem = ShiftedProblem(eps, theta, s, settings.eta)
        start = start_at(problem.m1 / problem.m2)  # tau = cot(theta), printed tau = tan(theta)
        trained = quadratics(problem, settings.samples_for(eps), settings.seeds, (settings.seed, 10, i))
        long = simulated_plateaus(trained, gd, problem, start) > 0.1 / (problem.eta * eps)
        mean, error = estimate(long)
        printed, true = (
            float(value > 1) for value in (theorem.tau_as_printed(problem, start), theorem.tau(problem, start))
        )
        claim = "the plateau is of order 1/eps if and only if |u2| tan(theta) m2/m1 > 1 (1: yes)"
        setting = f"eps={eps:g} theta={theta / math.pi:g}pi u2={start[1]:.3g}"
        yield ToyClaim("phase", "Corollary 1", claim, setting, printed, true, mean, error, settings.sigmas)


def order_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """Exponents: d log k_* / d log(1/eps) for GD, EGD and the normalised step; d k_* / d log(zeta) for EGD."""
    theta, s, zeta = settings.theta[0], settings.s[-1], settings.zeta[-1]
    problems = [ShiftedProblem(eps, theta, s, settings.eta) for eps in settings.eps]
    samples = [
        quadratics(one, settings.samples_for(one.eps), settings.seeds, (settings.seed, 11, i))
        for i, one in enumerate(problems)
    ]
    x, big, noise = np.log(1 / np.array(settings.eps)), start_at(zeta), settings.sigmas

    def per_seed(method: Descent, start: Array) -> Array:
        pairs = zip(samples, problems, strict=True)
        return np.stack([simulated_plateaus(sample, method, one, start) for sample, one in pairs], axis=1)

    def exponent(values: Array) -> tuple[float, float]:
        return estimate(slopes(x, values))

    grid, slack = f"eps={','.join(f'{eps:g}' for eps in settings.eps)} zeta={zeta:g}", settings.order_slack
    mean, error = exponent(np.log(per_seed(gd, big)))
    yield ToyClaim(
        "GD order", "Corollary 1 (A)", "large start: k_* of order 1/eps (exponent)", grid, 1, 1, mean, error, noise, slack
    )
    mean, error = exponent(np.log(per_seed(egd, big)))
    claim = "k_* of the modified scheme does not depend on eps (exponent)"
    yield ToyClaim("EGD order", "Section 3, modified scheme", claim, grid, 0, 0, mean, error, noise, slack)
    small = start_at(settings.small_tau * math.tan(theta) * problems[0].m1 / problems[0].m2)
    mean, error = exponent(per_seed(gd, small))
    claim = "small start: k_* grows by 1/eta per factor e in 1/eps"
    yield ToyClaim("small-start order", "Corollary 1 (B)", claim, grid, 1 / settings.eta, 0, mean, error, noise, slack)
    yield from _insensitivity(problems[-1], samples[-1], settings)


def _insensitivity(problem: ShiftedProblem, trained: Sequence[Quadratic], settings: ClaimSettings) -> Iterator[ToyClaim]:
    sizes = settings.zeta[-1] * np.array([1.0, 10.0, 100.0, 1000.0])
    found = np.stack([simulated_plateaus(trained, egd, problem, start_at(zeta)) for zeta in sizes], axis=1)
    mean, error = estimate(slopes(np.log(sizes), found))
    claim = "EGD is 'completely insensitive' to zeta: d k_*/d log(zeta) = 0"
    setting = f"eps={problem.eps:g} zeta={sizes[0]:g}..{sizes[-1]:g}"
    true = -1 / math.log1p(-problem.eta)
    slack = settings.order_slack
    yield ToyClaim(
        "EGD and zeta", "caption, GD and EGD curves", claim, setting, 0, true, mean, error, settings.sigmas, slack
    )
    for zeta in sizes[:2]:
        start = start_at(float(zeta))
        true, claim = theorem.plateau_egd(problem, start), "k_* of EGD: log(1 + (u2 cot - u1) m2/m1) / log(1/(1 - eta))"
        found_there = simulated_plateaus(trained, egd, problem, start)
        yield _length("EGD length (ours)", "not in the paper", claim, problem, start, true, true, found_there, settings)


def polar_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """EGD as Section 4 defines it, w - eta g/|g| on this one-row gradient: the exponent of 1/eps in k_* (population)."""
    theta, s, zeta = settings.theta[0], settings.s[-1], settings.zeta[-1]
    grid = (settings.eps[-1], settings.eps[-1] / 10)
    # mu oscillates about its limit in steps of eta; its phase depends on u1, so starts are spread over one step
    starts = [np.array([settings.eta * i / settings.polar_starts, zeta]) for i in range(settings.polar_starts)]
    problems = [ShiftedProblem(eps, theta, s, settings.eta) for eps in grid]
    lengths = np.array([[_polar_plateau(problem, start) for problem in problems] for start in starts])
    mean, error = estimate(slopes(np.log(1 / np.array(grid)), np.log(lengths)))
    claim = "the EGD of Section 4 leaves the plateau at a rate free of eps (exponent)"
    setting, where = f"eps={grid[0]:g},{grid[1]:g} zeta={zeta:g}", "Section 4, 'Theoretical foundations'"
    slack = settings.order_slack
    yield ToyClaim("polar order", where, claim, setting, 0, 1, mean, error, settings.sigmas, slack)


def _polar_plateau(problem: ShiftedProblem, start: Array) -> float:
    """k_* of w - eta g/|g|, iterated for as long as GD's own plateau lasts."""
    count = math.ceil(theorem.plateau_large(problem, start))
    path = polar_by_steps(problem.population(), problem.eta, start, count)
    return float(np.argmin(on_plateau(path, problem.theta)))
