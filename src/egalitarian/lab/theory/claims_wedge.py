"""The equi-distribution appendix against simulation: the wedge's moments, their orders in eps, and M^k."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from egalitarian.lab.theory import equidistribution as equal
from egalitarian.lab.theory.claim import ToyClaim, estimate, slopes
from egalitarian.lab.theory.dynamics import Quadratic
from egalitarian.lab.theory.moments import wedge_moments, wedge_moments_as_printed
from egalitarian.lab.theory.problem import EqualProblem
from egalitarian.lab.theory.sample import Array, labels, wedge_by_rejection
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
