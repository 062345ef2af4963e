"""Claims of Section 3: the two-dimensional toy problem under a shift, and how long its plateau lasts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.theory import theorem
from egalitarian.lab.theory.claim import ToyClaim, estimate, slopes
from egalitarian.lab.theory.distributions import Array, folded_by_rejection, labels
from egalitarian.lab.theory.error import (
    Descent,
    counted,
    error_on_test,
    error_on_test_one_sided,
    error_on_train,
    first_step,
    on_plateau,
    plateau_length,
    quadratics,
    sampled_error,
    simulated_errors,
    simulated_plateaus,
    wedge_points,
)
from egalitarian.lab.theory.problem import Quadratic, ShiftedProblem, egd, gd, polar_by_steps, start_at
from egalitarian.lab.theory.settings import ClaimSettings


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
    end = theorem.plateau(problem, start)
    steps = np.array([0.0, 1.0, end + round(0.3 * slow), end + round(slow)])
    path = theorem.gd_path(problem, start, steps)
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
    ratio = float(np.linalg.norm(gradient) / np.linalg.norm(sample.half_gradient(w)))
    claim = "GD on (1/n)|Xw-Y|² steps by eta Xᵀ(Xw-Y)/n"
    yield ToyClaim("step", "Section 3, recursion", claim, "factor", 1.0, 2.0, ratio, 0.0, settings.sigmas, slack=1e-6)


def cosine_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """r_k as the correlation of z1 and z.w, and the sign of r_k - r when the plateau ends."""
    for i, eps in enumerate(settings.eps):
        problem = ShiftedProblem(eps, settings.theta[0], settings.s[-1], settings.eta)
        start = start_at(settings.zeta[-1])
        end = theorem.plateau(problem, start)
        w = theorem.gd_path(problem, start, [end])
        values = [_correlation(w[0], eps, [settings.seed, 5, i, seed]) for seed in range(settings.seeds)]
        mean, error = estimate(values)
        printed, true = float(theorem.cosine_as_printed(w)[0]), float(theorem.cosine(w, eps)[0])
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
    before, after = theorem.cosine(gd(sample, problem.rate, start, [end - 1, end]), problem.eps)
    return float(np.sign(after - before))


def training_rows(settings: ClaimSettings) -> Iterator[ToyClaim]:
    """The training error halfway along the plateau: none in the paper, a positive amount by Owen's T."""
    claim = "GD quickly separates the training data: no training error on the plateau"
    for (i, eps), zeta in itertools.product(enumerate(settings.eps), settings.zeta):
        problem = ShiftedProblem(eps, settings.theta[0], settings.s[-1], settings.eta)
        start = start_at(zeta)
        half = theorem.plateau(problem, start) // 2
        w = theorem.gd_path(problem, start, [half])
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
        late, setting = theorem.late_error(problem, settings.samples), f"eps={eps:g} n={settings.samples}"
        # the corrected value is first-order in the spread: its own error is of that order, squared
        slack = late * theorem.spread_of_solution(problem, settings.samples)
        claim = "E(w(k)) -> 0 for large n, at every k"
        yield ToyClaim("late error", "Theorem 1", claim, setting, 0.0, late, mean, error, settings.sigmas, slack)
    x, y = np.log(1 / np.array(settings.eps)), np.log(np.array(spreads))
    slope = float(slopes(x, y[None])[0])
    error = math.sqrt(1 / (2 * settings.many_seeds)) / math.sqrt(float(np.sum((x - x.mean()) ** 2)))
    claim = "w_ols fluctuates by O(n^(-1/2)): no power of 1/eps"
    setting = f"n={settings.samples}, {settings.many_seeds} samples per eps"
    yield ToyClaim("w_ols spread", "Lemma 1", claim, setting, 0.0, 0.5, slope, error, settings.sigmas)


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
