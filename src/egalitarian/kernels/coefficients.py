"""Coefficients of polynomials and rational functions that map an interval [lower, 1] as close to 1 as possible."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

Coefficients = tuple[float, float, float]
Steps = tuple[Coefficients, ...]

TOLERANCE = 2e-3
"""The distance from 1 that the inverse root leaves to the last quintic."""
FAST_LOW = 1e-3
"""The weakest direction, relative to the largest, that the fast factor equalises on a CPU."""
BASIS_CUT = 1e-6
"""The soft cut-off of an intermediate basis."""
ROUGH = 0.3
"""The distance from 1 that such a basis may have."""
LOST = 1e-3
"""Directions of an intermediate basis that are weaker than this are noise."""
CUSHION = 0.03
"""The smallest lower end, over the upper, for which a quintic is made."""
LAST: Coefficients = (15 / 8, -10 / 8, 3 / 8)
"""Newton and Schulz's quintic: takes 1 - d to 1 - 5/2 d³."""
EXCHANGES = 50
"""The most exchanges. A handful suffices, but near 1 rounding may make them cycle."""
GRID = 300
"""Points on which the extremes of an error are searched."""


def root_steps(k: int, rtol: float) -> Steps:
    """The quintics for the inverse root of a Gram matrix (k, k) with this cut-off."""
    return quintics(math.sqrt(2) * rtol * least_ratio(k), TOLERANCE)


def basis_steps(k: int) -> Steps:
    """The quintics for an intermediate basis of k directions."""
    return quintics(BASIS_CUT * least_ratio(k), ROUGH)


def least_ratio(k: int) -> float:
    """The smallest square root of `ratio` in `polynomial._normalized`: that of k equal eigenvalues."""
    return float(2.0 ** (-bits(k) / 16))


def bits(k: int) -> int:
    """The exponent of the first power of two that is at least k. It compares, which a compiler can trace."""
    exponent = 0
    while 2**exponent < k:
        exponent += 1
    return exponent


@lru_cache
def quintics(lower: float, tolerance: float) -> Steps:
    """Odd quintics a x + b x³ + c x⁵ whose composition takes [lower, 1] to 1 +- tolerance, each optimal."""
    steps = []
    for step, low, high in narrowing(lower):
        steps.append(step)
        if max(high - 1, 1 - low) <= tolerance:
            return tuple(steps)
    raise AssertionError


def narrowing(lower: float) -> Iterator[tuple[Coefficients, float, float]]:
    """One quintic after another, with the interval that [lower, 1] has become.

    The best quintic for a tiny lower end has a dip as deep as that end, and rounding swamps what falls into it. So a lower
    end below `CUSHION` counts as `CUSHION`.
    """
    low, high = lower, 1.0 + 2 * lower * lower
    while True:
        start = low / high
        (a, b, c), error = best_quintic(max(start, CUSHION))
        low, high, before = min(1 - error, start * (a + start**2 * (b + c * start**2))), 1 + error, high
        yield (a / before, b / before**3, c / before**5), low, high


def best_quintic(lower: float) -> tuple[Coefficients, float]:
    """(a, b, c) with a x + b x³ + c x⁵ closest to 1 on [lower, 1], and its largest distance from 1.

    The error of the best one has the same size, with alternating sign, at both ends and the two extremes between (Remez).
    """
    if lower > 0.99:  # Newton and Schulz's to many digits, and the four points coincide
        a, b, c = LAST
        return LAST, abs(1 - lower * (a + lower**2 * (b + c * lower**2)))
    points = [lower, 0.75 * lower + 0.25, 0.25 * lower + 0.75, 1.0]
    for _ in range(100):
        rows = [[x, x**3, x**5, (-1.0) ** index] for index, x in enumerate(points)]
        a, b, c, error = solve(rows, [1.0] * 4)
        root = math.sqrt(9 * b * b - 20 * a * c)
        extremes = [math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))]
        if max(abs(new - old) for new, old in zip(extremes, points[1:3], strict=True)) < 1e-15:
            break
        points[1:3] = extremes
    return (a, b, c), abs(error)


@lru_cache
def rationals(lower: float, tolerance: float) -> Steps:
    """(a, b, c) of x (a + b x²) / (1 + c x²), each the best for the interval so far (dynamically weighted Halley)."""
    low = lower
    steps: list[Coefficients] = []
    while 1 - low > tolerance:
        d = (4 * (1 - low**2) / low**4) ** (1 / 3)
        a = math.sqrt(1 + d) + math.sqrt(8 - 4 * d + 8 * (2 - low**2) / (low**2 * math.sqrt(1 + d))) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        steps.append((a, b, c))
        low = min(low * (a + b * low**2) / (1 + c * low**2), 1.0)
    return tuple(steps)


class LastStep(NamedTuple):
    """x (p + q / (1 + d x²) + r x² + ...), and its largest distance from 1."""

    powers: tuple[float, ...]
    q: float
    d: float
    error: float


@lru_cache
def best_last_step(lower: float, powers: int) -> LastStep:
    """The step with this many powers (p, r, ...) that is closest to 1 on [lower, 1].

    Remez's exchange finds it for each d, golden section finds the best d.
    """
    grid = [lower ** (0.5 + 0.5 * math.cos(math.pi * index / GRID)) for index in range(GRID + 1)]
    points = [round(GRID * index / (powers + 1)) for index in range(powers + 2)]

    def step(log_d: float) -> LastStep:
        found, points[:] = _exchange(grid, points, powers, math.exp(log_d))
        return found

    halley = math.log(rationals(lower, 0.5 * (1 - lower))[0][2])
    return _golden(step, halley - 1, halley + 2)


def _exchange(grid: list[float], points: list[int], powers: int, d: float) -> tuple[LastStep, list[int]]:
    """The best step for this d, from these starting points; and the points where its error is largest, in turn."""
    columns = [[x ** (2 * power + 1) for power in range(powers)] + [x / (1 + d * x * x)] for x in grid]
    for _ in range(EXCHANGES):
        rows = [[*columns[point], (-1.0) ** index] for index, point in enumerate(points)]
        *found, even = solve(rows, [1.0] * len(rows))
        off = [1 - sum(map(operator.mul, found, column)) for column in columns]
        after = _extremes(off, len(points))
        error = max(map(abs, off))
        if error <= abs(even) * (1 + 1e-9) or after == points or len(after) < len(points):  # the last: rounding alone
            break
        points = after
    return LastStep(tuple(found[:-1]), found[-1], d, error), points


def _extremes(off: list[float], count: int) -> list[int]:
    """Where `off` is largest between changes of its sign. Surplus points are dropped at the ends."""
    runs = [list(run) for _, run in itertools.groupby(range(len(off)), lambda index: off[index] > 0)]
    peaks = [max(run, key=lambda index: abs(off[index])) for run in runs]
    while len(peaks) > count:
        peaks.pop(0 if abs(off[peaks[0]]) < abs(off[peaks[-1]]) else -1)
    return peaks


def _golden(step: Callable[[float], LastStep], low: float, high: float) -> LastStep:
    """The step with the smallest error, which falls and then rises with d."""
    share = (math.sqrt(5) - 1) / 2
    inner = [high - share * (high - low), low + share * (high - low)]
    left, right = map(step, inner)
    while high - low > 1e-4:
        if left.error < right.error:
            high, right = inner[1], left
            inner = [high - share * (high - low), inner[0]]
            left = step(inner[0])
        else:
            low, left = inner[0], right
            inner = [inner[1], low + share * (high - low)]
            right = step(inner[1])
    return min(left, right, key=lambda found: found.error)


def solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """Solves a small linear system by elimination with pivoting, in plain numbers, so that it works while torch traces."""
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    size = len(table)
    for column in range(size):
        best = column
        for row in range(column + 1, size):
            if abs(table[row][column]) > abs(table[best][column]):
                best = row
        table[column], table[best] = table[best], table[column]
        for row in range(size):
            if row != column:
                factor = table[row][column] / table[column][column]
                table[row] = [mine - factor * theirs for mine, theirs in zip(table[row], table[column], strict=True)]
    return [table[row][size] / table[row][row] for row in range(size)]
