"""Section 3 against simulation: constants, Theorem 1, finite samples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from egalitarian.lab.theory.claim import ToyClaim, estimate, slopes
from egalitarian.lab.theory.distributions import Array, folded_by_rejection, labels
from egalitarian.lab.theory.error import (
    counted,
    error_on_test,
    error_on_test_one_sided,
    error_on_train,
    plateau_length,
    quadratics,
    sampled_error,
    simulated_errors,
    wedge_points,
)
from egalitarian.lab.theory.problem import Quadratic, ShiftedProblem, gd, start_at
from egalitarian.lab.theory.settings import ClaimSettings
from egalitarian.lab.theory.theorem import cosine, cosine_as_printed, gd_path, late_error, plateau, spread_of_solution


def theorem_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """E(w(k)) over eps x theta x s x zeta x direction x k: GD on samples, errors counted on rejection draws."""
    training = {
        (eps, s): quadratics(
            ShiftedProblem(eps, settings.theta[0], s, settings.eta),
            settings.samples_for(eps),
            settings.seeds,
            (settings.seed, 1, i, j),
        )
        for (i, eps), (j, s) in itertools.product(enumerate(settings.eps), enumerate(settings.s))
    }
    for (i, eps), (j, theta) in itertools.product(enumerate(settings.eps), enumerate(settings.theta)):
        rngs = [np.random.default_rng([settings.seed, 2, i, j, seed]) for seed in range(settings.seeds)]
        tests = [wedge_points(eps, theta, settings.test_points, rng) for rng in rngs]
        for s, zeta, angle in itertools.product(settings.s, settings.zeta, settings.start):
            problem = ShiftedProblem(eps, theta, s, settings.eta)
            yield from _theorem_cell(problem, zeta, angle, training[eps, s], tests, settings)


def _theorem_cell(
    problem: ShiftedProblem,
    zeta: float,
    angle: float,
    trained: Sequence[Quadratic],
    tests: Sequence[Array],
    settings: ClaimSettings,
) -> Iterator[ToyClaim]:
    """Four steps: at the start, after one step, and 0.3 and 1 slow time constants after the plateau."""
    start, slow = start_at(zeta, angle), 1 / (problem.eta * problem.eps)
    end = plateau(problem, start)
    steps = np.array([0.0, 1.0, end + round(0.3 * slow), end + round(slow)])
    path = gd_path(problem, start, steps)
    printed = error_on_test_one_sided(path, problem.eps, problem.theta)
    true = error_on_test(path, problem.eps, problem.theta)
    mean, spread = counted(simulated_errors(trained, tests, problem.rate, start, steps), settings.test_points)
    for i, k in enumerate(steps):
        side = "nu_k >= 0" if path[i, 1] >= 0 else "nu_k < 0"
        yield ToyClaim(
            key=f"theorem-1 ({side})",
            where="Theorem 1",
            claim=f"E(w(k)) = min(1, arccos(r_k)/arccos(r)), at {side}",
            setting=(
                f"eps={problem.eps:g} theta={problem.theta / math.pi:g}pi s={problem.s:g} zeta={zeta:g} "
                f"angle={angle / math.pi:g}pi k={k:.0f}"
            ),
            printed=float(printed[i]),
            corrected=float(true[i]),
            measured=float(mean[i]),
            standard_error=float(spread[i]),
            sigmas=settings.sigmas,
        )


def constant_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """m1 and m2 by rejection, the range the paper gives m1, and the step the stated loss has."""
    where = "Section 3, constants"
    for i, s in enumerate(settings.s):
        problem = ShiftedProblem(settings.eps[0], settings.theta[0], s, settings.eta)
        x = folded_by_rejection(settings.draws, problem.eps, s, np.random.default_rng([settings.seed, 3, i]))
        for name, power, value in (("m1", 1, problem.m1), ("m2", 2, problem.m2)):
            mean, error = estimate(np.abs(x[:, 0]) ** power)
            formula = {"m1": "phi(s)/Q(s)", "m2": "1 + s m1"}[name]
            yield ToyClaim(name, where, f"{name} = {formula}", f"s={s:g}", value, value, mean, error, settings.sigmas)
            if name == "m1":
                yield ToyClaim(
                    "m1 range", where, "m1 in (0, 1)", f"s={s:g}", 1.0, value, mean, error, settings.sigmas, relation="<"
                )
    x = folded_by_rejection(1000, problem.eps, problem.s, np.random.default_rng([settings.seed, 4]))
    sample, w, h = Quadratic.of_sample(x, labels(x)), np.array([0.3, -0.7]), 1e-4

    def loss(at: Array) -> float:
        return float(np.mean((x @ at - labels(x)) ** 2))

    gradient = np.array([(loss(w + h * e) - loss(w - h * e)) / (2 * h) for e in np.eye(2)])
    ratio = float(np.linalg.norm(gradient) / np.linalg.norm(sample.gradient(w)))
    claim = "GD on (1/n)|Xw-Y|² steps by eta Xᵀ(Xw-Y)/n"
    yield ToyClaim("step", "Section 3, recursion", claim, "factor", 1.0, 2.0, ratio, 0.0, settings.sigmas, slack=1e-6)


def cosine_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """r_k as the correlation of z1 and z.w, and the sign of r_k - r when the plateau ends."""
    for i, eps in enumerate(settings.eps):
        problem = ShiftedProblem(eps, settings.theta[0], settings.s[-1], settings.eta)
        start = start_at(settings.zeta[-1])
        end = plateau(problem, start)
        w = gd_path(problem, start, [end])
        values = [_correlation(w[0], eps, [settings.seed, 5, i, seed]) for seed in range(settings.seeds)]
        mean, error = estimate(values)
        printed, true = float(cosine_as_printed(w)[0]), float(cosine(w, eps)[0])
        where, setting = "Section 3, display before Theorem 1", f"eps={eps:g} k={end:.0f}"
        yield ToyClaim("r_k", where, "r_k = mu_k/nu_k", setting, printed, true, mean, error, settings.sigmas)
        gap = [_crossing(problem, start, [settings.seed, 6, i, seed], settings) for seed in range(settings.seeds)]
        mean, error = estimate(gap)
        claim = "the plateau ends when r_k falls below r (sign of the change)"
        yield ToyClaim("crossing", "after Theorem 1", claim, setting, -1.0, 1.0, mean, error, settings.sigmas)


def _correlation(w: Array, eps: float, key: list[int]) -> float:
    z = np.random.default_rng(key).standard_normal((20_000, 2)) * [1.0, math.sqrt(eps)]
    return float(np.corrcoef(z[:, 0], z @ w)[0, 1])


def _crossing(problem: ShiftedProblem, start: Array, key: list[int], settings: ClaimSettings) -> float:
    """+1 if r_k rises as a simulated plateau ends, -1 if it falls."""
    sample = Quadratic.of_sample(*problem.train(settings.samples, np.random.default_rng(key)))
    end = plateau_length(lambda k: gd(sample, problem.rate, start, k), problem.theta)
    before, after = cosine(gd(sample, problem.rate, start, [end - 1, end]), problem.eps)
    return float(np.sign(after - before))


def training_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """The training error halfway along the plateau: none in the paper, a positive amount by Owen's T."""
    claim = "GD quickly separates the training data: no training error on the plateau"
    for (i, eps), zeta in itertools.product(enumerate(settings.eps), settings.zeta):
        problem = ShiftedProblem(eps, settings.theta[0], settings.s[-1], settings.eta)
        start = start_at(zeta)
        half = plateau(problem, start) // 2
        w = gd_path(problem, start, [half])
        draws = [
            folded_by_rejection(
                settings.test_points * 10, eps, problem.s, np.random.default_rng([settings.seed, 7, i, seed])
            )
            for seed in range(settings.seeds)
        ]
        errors = np.stack([sampled_error(w, x, labels(x)) for x in draws])
        mean, error = counted(errors, min(len(x) for x in draws))
        true = float(error_on_train(w, eps, problem.s)[0])
        setting = f"eps={eps:g} s={problem.s:g} zeta={zeta:g} k={half:.0f}"
        yield ToyClaim(
            "memorised", "after Corollary 1", claim, setting, 0.0, true, float(mean[0]), float(error[0]), settings.sigmas
        )


def finite_sample_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """How w_ols scatters: its spread's order in eps, and the test error it leaves where Theorem 1 has zero."""
    theta, s, spreads = settings.theta[0], settings.s[-1], []
    for i, eps in enumerate(settings.eps):
        problem = ShiftedProblem(eps, theta, s, settings.eta)
        trained = quadratics(problem, settings.samples, settings.many_seeds, (settings.seed, 8, i))
        found = np.stack([one.solution for one in trained])
        spreads.append(found[:, 1].std(ddof=1))
        mean, error = estimate(error_on_test(found, eps, theta))
        late, setting = late_error(problem, settings.samples), f"eps={eps:g} n={settings.samples}"
        # the corrected value is first-order in the spread: its own error is of that order, squared
        slack = late * spread_of_solution(problem, settings.samples)
        claim = "E(w(k)) -> 0 for large n, at every k"
        yield ToyClaim("late error", "Theorem 1", claim, setting, 0.0, late, mean, error, settings.sigmas, slack)
    x, y = np.log(1 / np.array(settings.eps)), np.log(np.array(spreads))
    slope = float(slopes(x, y[None])[0])
    error = math.sqrt(1 / (2 * settings.many_seeds)) / math.sqrt(float(np.sum((x - x.mean()) ** 2)))
    claim = "w_ols fluctuates by O(n^(-1/2)): no power of 1/eps"
    setting = f"n={settings.samples}, {settings.many_seeds} samples per eps"
    yield ToyClaim("w_ols spread", "Lemma 1", claim, setting, 0.0, 0.5, slope, error, settings.sigmas)
