"""The appendix on equal distributions against simulation: moments and their orders in eps, w(k), its error and plateau."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from egalitarian.lab.theory import equidistribution as equal
from egalitarian.lab.theory.claim import ToyClaim, estimate, mean_and_error, slopes
from egalitarian.lab.theory.distributions import (
    Array,
    labels,
    wedge_by_rejection,
    wedge_moments,
    wedge_moments_as_printed,
)
from egalitarian.lab.theory.error import (
    counted,
    error_on_test,
    error_on_test_one_sided,
    quadratics,
    simulated_errors,
    simulated_plateaus,
    wedge_points,
)
from egalitarian.lab.theory.problem import EqualProblem, Quadratic, gd, start_at
from egalitarian.lab.theory.settings import ClaimSettings

BATCHES = 8
APPENDIX = "Appendix, equi-distribution"


def at(eps: float, theta: float) -> str:
    return f"eps={eps:g} theta={theta / math.pi:g}pi"


def moment_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """Z, a, b, d, c1, c2 by rejection over eps x theta, then the orders of the eigenvalues from the same draws."""
    for j, theta in enumerate((*settings.theta, *settings.obtuse)):
        batches = []
        for i, eps in enumerate(settings.eps):
            x = wedge_by_rejection(settings.draws, eps, theta, np.random.default_rng([settings.seed, 20, i, j]))
            yield from _moments_at(eps, theta, x, settings)
            parts = np.array_split(x, BATCHES)
            batches.append([Quadratic.of_sample(part, labels(part)).sigma for part in parts])
        yield from _order_rows(theta, np.array(batches), settings)


def _moments_at(eps: float, theta: float, x: Array, settings: ClaimSettings) -> Iterator[ToyClaim]:
    y, true, printed = labels(x), wedge_moments(eps, theta), wedge_moments_as_printed(eps, theta)
    products = {
        "a": x[:, 0] ** 2, "b": x[:, 0] * x[:, 1], "d": x[:, 1] ** 2, "c1": y * x[:, 0], "c2": y * x[:, 1],
    }  # fmt: skip
    share = len(x) / settings.draws
    found = {"Z": (share, math.sqrt(share * (1 - share) / settings.draws))}
    found |= {name: estimate(values) for name, values in products.items()}
    for name, (mean, error) in found.items():
        yield ToyClaim(
            key=f"moment {name}",
            where=f"{APPENDIX}, moments",
            claim=f"{name} by its integral",
            setting=f"{at(eps, theta)} n={len(x)}",
            printed=getattr(printed, name),
            corrected=getattr(true, name),
            measured=mean,
            standard_error=error,
            sigmas=settings.sigmas,
        )


def _order_rows(theta: float, sigmas: Array, settings: ClaimSettings) -> Iterator[ToyClaim]:
    """Exponents in eps of lambda_±, b and the fast mode's time; the slow eigenvector. `sigmas` is (eps, batch, 2, 2)."""
    x, slack = np.log(np.array(settings.eps)), settings.order_slack
    low, high = np.moveaxis(np.log(np.linalg.eigvalsh(sigmas)), -1, 0)
    off = np.log(np.abs(sigmas[..., 0, 1]))
    acute = theta < math.pi / 2
    kind = "acute" if acute else "obtuse"
    setting = f"theta={theta / math.pi:g}pi eps={settings.eps[0]:g}..{settings.eps[-1]:g}"

    def row(key: str, claim: str, printed: float, true: float, values: Array) -> ToyClaim:
        mean, error = estimate(slopes(x, values.T))
        where = f"{APPENDIX}, orders"
        return ToyClaim(f"{key} ({kind})", where, claim, setting, printed, true, mean, error, settings.sigmas, slack)

    yield row("order of lambda_+", "lambda_+ = Theta(eps) (exponent)", 1, 1 if acute else 0, high)
    yield row("order of lambda_-", "lambda_- = Theta(eps) (exponent)", 1, 1, low)
    yield row(
        "fast mode", "the fast mode is over after O(1/eta) steps (exponent of 1/lambda_+)", 0, -1 if acute else 0, -high
    )
    if acute:
        yield replace(row("order of b", "|b| = O(sqrt(eps)) (exponent at least 1/2)", 0.5, 1, off), relation=">")
    for i, eps in enumerate(settings.eps):
        slow = np.abs(np.linalg.eigh(sigmas[i])[1][:, 1, 0])
        mean, error = estimate(slow)
        yield ToyClaim(
            key=f"slow direction ({kind})",
            where=f"{APPENDIX}, plateau",
            claim="q_- = e_2 + O(sqrt(eps)) (second entry of q_-)",
            setting=at(eps, theta),
            printed=1.0,
            corrected=abs(float(equal.slow_direction(wedge_moments(eps, theta))[1])),
            measured=mean,
            standard_error=error,
            sigmas=settings.sigmas,
            slack=eps,  # of a unit vector e_2 + O(sqrt(eps))
        )


def algebra_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """M^k by Cayley-Hamilton against repeated multiplication; r_± under the stated bound on eta."""
    for eps, theta in itertools.product(settings.eps, (*settings.theta, *settings.obtuse)):
        problem = EqualProblem(eps, theta, settings.eta)
        step = np.eye(2) - problem.rate * problem.moments.sigma
        k = round(1 / (settings.eta * eps))
        ours, theirs = equal.power(problem.moments, settings.eta, k), np.linalg.matrix_power(step, k)
        claim, setting = "M^k = alpha_k I + beta_k M (its trace)", f"{at(eps, theta)} k={k}"
        traces = float(np.trace(ours)), float(np.trace(theirs))
        where, noise = f"{APPENDIX}, Cayley-Hamilton", settings.sigmas
        yield ToyClaim("M^k", where, claim, setting, traces[0], traces[0], traces[1], 0.0, noise, 1e-8)
        largest = 0.9 / float(np.linalg.eigvalsh(problem.moments.sigma)[-1])
        plus, claim = equal.factors(problem.moments, largest)[0], "r_+ in (0, 1) for every eta < 1/lambda_max"
        setting = f"{at(eps, theta)} eta=0.9/lambda_max"
        yield ToyClaim("r_+ range", where, claim, setting, 0.0, plus, plus, 0.0, noise, relation=">")


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
