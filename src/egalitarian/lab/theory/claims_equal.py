"""The equi-distribution appendix against simulation: w(k), its test error and its plateau."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from egalitarian.lab.theory import equidistribution as equal
from egalitarian.lab.theory.claim import ToyClaim, estimate, mean_and_error, slopes
from egalitarian.lab.theory.claims_wedge import APPENDIX, at
from egalitarian.lab.theory.dynamics import Quadratic, gd
from egalitarian.lab.theory.error import error_on_test, error_on_test_one_sided
from egalitarian.lab.theory.moments import wedge_moments_as_printed
from egalitarian.lab.theory.problem import EqualProblem, start_at
from egalitarian.lab.theory.sample import Array
from egalitarian.lab.theory.settings import ClaimSettings
from egalitarian.lab.theory.simulate import counted, quadratics, simulated_errors, simulated_plateaus, wedge_points


def path_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """w(k) and E(w(k)) over eps x theta x zeta x k: GD on samples, errors counted on rejection draws."""
    grid = itertools.product(enumerate(settings.eps), enumerate((*settings.theta, *settings.obtuse)))
    for (i, eps), (j, theta) in grid:
        problem = EqualProblem(eps, theta, settings.eta)
        trained = quadratics(problem, settings.samples_for(eps), settings.seeds, (settings.seed, 21, i, j))
        rngs = [np.random.default_rng([settings.seed, 22, i, j, seed]) for seed in range(settings.seeds)]
        tests = [wedge_points(eps, theta, settings.test_points, rng) for rng in rngs]
        for zeta in settings.zeta:
            start = start_at(zeta)
            scale = equal.plateau(problem, start) or 0.25 / (problem.eta * eps)  # obtuse: no plateau from there
            steps = np.round(scale * np.array([0.5, 1.3, 2.0, 8.0]))
            yield from _weight_rows(problem, start, steps[:2], trained, settings)
            errors = simulated_errors(trained, tests, problem.rate, start, steps)
            yield from _error_rows(problem, start, steps, errors, settings)


def _weight_rows(
    problem: EqualProblem, start: Array, steps: Array, trained: list[Quadratic], settings: ClaimSettings
) -> Iterator[ToyClaim]:
    """mu_k and nu_k by the appendix's display: with its moments, and with the corrected ones."""
    printed = equal.path(wedge_moments_as_printed(problem.eps, problem.theta), problem.eta, start, steps)
    true = equal.gd_path(problem, start, steps)
    mean, error = mean_and_error(np.stack([gd(one, problem.rate, start, steps) for one in trained]))
    for (i, k), (j, name) in itertools.product(enumerate(steps), enumerate(("mu_k", "nu_k"))):
        setting = f"{at(problem.eps, problem.theta)} zeta={np.linalg.norm(start):g} k={k:.0f}"
        yield ToyClaim(
            key=f"path {name}",
            where=f"{APPENDIX}, display of mu_k, nu_k",
            claim=f"{name} from the printed moments",
            setting=setting,
            printed=float(printed[i, j]),
            corrected=float(true[i, j]),
            measured=float(mean[i, j]),
            standard_error=float(error[i, j]),
            sigmas=settings.sigmas,
        )


def _error_rows(
    problem: EqualProblem, start: Array, steps: Array, errors: Array, settings: ClaimSettings
) -> Iterator[ToyClaim]:
    path = equal.gd_path(problem, start, steps)
    printed = error_on_test_one_sided(path, problem.eps, problem.theta)
    true = error_on_test(path, problem.eps, problem.theta)
    mean, error = counted(errors, settings.test_points)
    for i, k in enumerate(steps):
        side = "nu_k >= 0" if path[i, 1] >= 0 else "nu_k < 0"
        yield ToyClaim(
            key=f"test error ({side})",
            where=f"{APPENDIX}, test error",
            claim=f"E = arccos(max(rho, rho_k))/arccos(rho), at {side} (w(k) from the corrected moments)",
            setting=f"{at(problem.eps, problem.theta)} zeta={np.linalg.norm(start):g} k={k:.0f}",
            printed=float(printed[i]),
            corrected=float(true[i]),
            measured=float(mean[i]),
            standard_error=float(error[i]),
            sigmas=settings.sigmas,
        )


def plateau_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """The boxed bounds, the order in eps from a fixed start, and growth with the size of a large start (acute theta)."""
    where, noise, eta = f"{APPENDIX}, plateau", settings.sigmas, settings.eta
    for j, theta in enumerate(settings.theta):
        for i, eps in enumerate(settings.eps):
            problem, start = EqualProblem(eps, theta, eta), start_at(settings.zeta[-1])
            trained = quadratics(problem, settings.samples, settings.seeds, (settings.seed, 23, i, j))
            mean, error = estimate(simulated_plateaus(trained, gd, problem, start))
            true = equal.plateau(problem, start)
            printed = equal.plateau_as_printed(problem, start, problem.moments)
            claim, setting = "the boxed bounds, C = 1, corrected moments", f"{at(eps, theta)} zeta={settings.zeta[-1]:g}"
            yield ToyClaim("boxed bounds", where, claim, setting, printed, true, mean, error, noise, 1.0)
        yield _order_row(theta, j, settings)
        yield _growth_row(theta, j, settings)


def _order_row(theta: float, j: int, settings: ClaimSettings) -> ToyClaim:
    """From a fixed start, eps far below |u|^(-2): the exponent of 1/eps in k_*."""
    small = tuple(settings.eps[-1] / 10**i for i in (1, 2, 3))
    found = []
    for i, eps in enumerate(small):
        problem = EqualProblem(eps, theta, settings.eta)
        trained = quadratics(problem, settings.samples, settings.seeds, (settings.seed, 24, i, j))
        found.append(simulated_plateaus(trained, gd, problem, start_at(settings.zeta[0])))
    mean, error = estimate(slopes(np.log(1 / np.array(small)), np.log(np.stack(found, axis=1))))
    setting = f"theta={theta / math.pi:g}pi zeta={settings.zeta[0]:g} eps={small[0]:g}..{small[-1]:g}"
    where, claim = "Theorem 2", "the plateau has length Theta(1/(eta eps)) (exponent)"
    return ToyClaim("order of the plateau", where, claim, setting, 1.0, 0.5, mean, error, settings.sigmas, 0.05)


def _growth_row(theta: float, j: int, settings: ClaimSettings) -> ToyClaim:
    """From ever larger starts: what k_* gains per factor e in |w(0)|."""
    problem = EqualProblem(settings.eps[0], theta, settings.eta)
    trained = quadratics(problem, settings.samples, settings.seeds, (settings.seed, 25, j))
    sizes = np.array(settings.far_zeta)
    found = np.stack([simulated_plateaus(trained, gd, problem, start_at(float(zeta))) for zeta in sizes], axis=1)
    mean, error = estimate(slopes(np.log(sizes), found))
    low = float(np.linalg.eigvalsh(problem.moments.sigma)[0])
    claim = "k_* grows like log|u2 - nu_*| / (2 eta lambda_-) (steps per factor e)"
    setting = f"{at(problem.eps, theta)} zeta={sizes[0]:g}..{sizes[-1]:g}"
    printed = 1 / (2 * problem.eta * low)
    where = f"{APPENDIX}, plateau"
    return ToyClaim("growth with the start", where, claim, setting, printed, 0.0, mean, error, settings.sigmas, 0.2)


def limit_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """Our two limits against simulation: a start near the origin on a small eps, and a far one."""
    for j, theta in enumerate(settings.theta):
        for key, eps, zeta, formula in (
            ("near start (ours)", settings.eps[-1] / 1000, settings.zeta[0], equal.plateau_near),
            ("far start (ours)", settings.eps[0], settings.far_zeta[-1], equal.plateau_far),
        ):
            problem, start = EqualProblem(eps, theta, settings.eta), start_at(zeta)
            trained = quadratics(problem, settings.samples, settings.seeds, (settings.seed, 26, j))
            mean, error = estimate(simulated_plateaus(trained, gd, problem, start))
            value, claim = formula(problem, start), f"k_* of a {key.split(' (')[0]}"
            setting = f"{at(eps, theta)} zeta={zeta:g}"
            slack = 1.0 + 0.02 * value
            yield ToyClaim(key, "not in the paper", claim, setting, value, value, mean, error, settings.sigmas, slack)


def same_error_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """On that plateau the *training* error is one too: slow learning, not delayed generalisation."""
    problem = EqualProblem(settings.eps[0], settings.theta[0], settings.eta)
    start = start_at(settings.zeta[-1])
    half = equal.plateau(problem, start) // 2
    errors = []
    for seed in range(settings.seeds):
        x, y = problem.train(settings.samples, np.random.default_rng([settings.seed, 27, seed]))
        w = gd(Quadratic.of_sample(x, y), problem.rate, start, [half])
        errors.append(float(np.mean(y * (x @ w[0]) <= 0)))
    mean, error = estimate(errors)
    claim, setting = (
        "grokking: no training error while the test error is one",
        f"{at(problem.eps, problem.theta)} k={half:.0f}",
    )
    yield ToyClaim("memorised (appendix)", APPENDIX, claim, setting, 0.0, 1.0, mean, error, settings.sigmas)
