"""Numbers of curves: bands over seeds, spectra, the plane of the weights' paths, and what early spectra predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from egalitarian.lab.analysis.counts import NOTHING, Value
from egalitarian.lab.analysis.gathered import Gathered
from egalitarian.lab.analysis.reading import RunSummary
from egalitarian.lab.config import CUT, is_kept

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Array = NDArray[np.float64]

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Quantiles of one spectrum, from its smallest to its largest singular value."""
Group = Sequence[tuple[float, float]]
"""Points of an early measure and the epoch that passed."""

EARLY_EPOCHS = (0, 1, 2, 5, 10)
"""The epochs whose spectra are compared with the epoch that passed, at their first batch."""
EARLY_MEASURES = ("condition", "effective_rank")
FEWEST_POINTS = 5
"""Points that a group must have for a correlation."""
CHANCE = 0.05
"""The p-value below which a correlation is significant."""
NEAR = 9
"""Readings in a running median."""


class Band(NamedTuple):
    """Median and quartiles over seeds, by epoch; NaN where too few seeds are in training."""

    epochs: Array
    middle: Array
    low: Array
    high: Array

    @property
    def known(self) -> NDArray[np.bool_]:
        """The epochs with a median."""
        return np.isfinite(self.middle)

    def at(self, epoch: float) -> float:
        """The median at an epoch, linear in the logarithm of the epoch between its neighbours."""
        logs = np.log(self.epochs[self.known] + 1)
        return float(np.interp(np.log(epoch + 1), logs, self.middle[self.known]))

    def until(self, epoch: float) -> Band:
        """The part up to an epoch."""
        return Band(*(values[self.epochs <= epoch] for values in self))


def band(gathered: Gathered, experiment: str, method: str, measure: str, *, hold: bool = False) -> Band:
    """The seeds of one method: the median while half of them are in training, the quartiles while a quarter is.

    Seeds stop soon after they pass, at different epochs, so that the slow ones are left. With `hold`, a seed that passed
    keeps its last value. For an accuracy this does not change its rank: the other seeds are below the threshold.

    Args:
        measure: a column of the curves, or "condition": the condition number of the gradient.
    """
    curves = gathered.curves_of(experiment, method)
    if measure == "condition":
        curves = curves.assign(condition=curves.sigma_max / curves.sigma_min)
    return band_of(curves, gathered.of(experiment, method), measure, hold=hold)


def band_of(curves: pd.DataFrame, seeds: Sequence[RunSummary], measure: str, *, hold: bool = False) -> Band:
    """The same from curves of these seeds."""
    ordered = sorted(seeds, key=lambda seed: seed.seed)
    wide = curves.pivot_table(index="seed", columns="epoch", values=measure).reindex([seed.seed for seed in ordered])
    epochs = np.array([epoch for epoch in wide.columns if is_kept(epoch) and wide[epoch].notna().any()], dtype=float)
    held = wide.ffill(axis="columns")[epochs.astype(int)].to_numpy(dtype=float)
    training = epochs < np.array([[seed.outcome.epochs] for seed in ordered])
    passed = np.array([[hold and seed.outcome.crossed is not None] for seed in ordered])
    values = np.where(training | passed, held, np.nan)
    live = training.mean(0)
    low, middle, high = _quartiles(values)
    return Band(
        epochs,
        np.where(live >= 0.5, middle, np.nan),
        np.where(live >= 0.25, low, np.nan),
        np.where(live >= 0.25, high, np.nan),
    )


def _quartiles(values: Array) -> Array:
    """(3, epochs) from (seeds, epochs), of finite values; NaN where there are none.

    Each quartile is the value of one seed. If half of the seeds have learnt and half have not, a mean of both is no seed's.
    """
    columns = [column[np.isfinite(column)] for column in values.T]
    rows = [
        np.quantile(column, (0.25, 0.5, 0.75), method="inverted_cdf") if len(column) else np.full(3, np.nan)
        for column in columns
    ]
    return np.array(rows, dtype=float).reshape(-1, 3).T


def rest_of_full_run(gathered: Gathered, experiment: str, method: str, measure: str, drawn: Band) -> tuple[Array, Array]:
    """(epochs, values) of the first full-length run that passed, from the end of a band on; empty without one.

    Values are running medians: of `NEAR` kept epochs, without the epochs that leap away and come back.
    """
    full = [run.seed for run in gathered.of(experiment, method) if run.full and run.outcome.crossed is not None]
    known = drawn.epochs[drawn.known]
    if not full or not len(known):
        return np.empty(0), np.empty(0)
    own = gathered.curves_of(experiment, method)
    rest = own[(own.seed == full[0]) & (own.epoch >= known[-1])].sort_values("epoch")
    smooth = rest[measure].rolling(NEAR, center=True, min_periods=1).median()
    return rest.epoch.to_numpy(dtype=float), smooth.to_numpy(dtype=float)


def survival(seeds: Sequence[RunSummary]) -> tuple[Array, Array]:
    """(epochs, shares): from each of these epochs on, this share of the seeds has passed.

    The last epoch is the last that a seed was trained without passing, or that of the last seed that passed.
    """
    crossed = sorted(seed.outcome.crossed for seed in seeds if seed.outcome.crossed is not None)
    last = max((seed.outcome.epochs - 1 for seed in seeds if seed.outcome.crossed is None), default=0)
    epochs = [0, *crossed, max([last, *crossed])]
    shares = [0, *range(1, len(crossed) + 1), len(crossed)]
    return np.array(epochs, dtype=float), np.array(shares, dtype=float) / max(1, len(seeds))


def fan(snapshots: pd.DataFrame) -> tuple[Array, Array]:
    """(epochs, quantiles of the spectrum), as medians over seeds, at epochs that half of the seeds or more have."""
    _require_packed(snapshots, "singular_values")
    seeds = snapshots.seed.nunique()
    epochs, rows = [], []
    for epoch, group in snapshots.groupby("epoch"):
        spectra = [values[values > CUT * values.max()] for values in group.singular_values]
        spectra = [values for values in spectra if len(values)]
        if len(spectra) >= max(1, seeds / 2):
            epochs.append(epoch)
            rows.append(np.median([np.quantile(values, SHARES) for values in spectra], axis=0))
    return np.array(epochs, dtype=float), np.array(rows, dtype=float).reshape(-1, len(SHARES))


def powers(gathered: Gathered, experiment: str, method: str, seed: int | None) -> tuple[Array, Array]:
    """(epochs, shares of each frequency) of one run's snapshots with Fourier power; empty without any."""
    snapshots = gathered.snapshots(experiment, method, [] if seed is None else [seed])
    rows = [(epoch, row) for epoch, row in zip(snapshots.epoch, snapshots.fourier_power, strict=True) if row is not None]
    known = [(epoch, row) for epoch, row in rows if np.isfinite(row).all()]
    if not known:
        return np.empty(0), np.empty((0, 0))
    return np.array([epoch for epoch, _ in known], dtype=float), np.stack([row for _, row in known])


def _require_packed(snapshots: pd.DataFrame, column: str) -> None:
    """An error if the runs are evidence that was packed without what a figure shows now."""
    lacking = sorted({int(seed) for seed in snapshots.seed[[each is None for each in snapshots[column]]]})
    if lacking:
        raise LookupError(
            f"{column} must be packed for seed {', '.join(map(str, lacking))}, got evidence without; pack the runs again"
        )


class Trajectory(NamedTuple):
    """The weights of one run in the plane, snapshot by snapshot."""

    epochs: Array
    """The start has -1."""
    points: Array
    """(epochs, 2)."""

    def nearest(self, epoch: int) -> Array:
        """The point of the snapshot nearest to an epoch, in the logarithm; never the start."""
        index = np.abs(np.log(self.epochs[1:] + 1) - np.log(epoch + 1)).argmin() + 1
        nearest: Array = self.points[index]
        return nearest


class Plane(NamedTuple):
    """The plane of the two main directions of several runs."""

    trajectories: Mapping[str, Trajectory]
    shares: Array
    """Of the variance, for each axis."""


def common_seed(gathered: Gathered, experiment: str, methods: Sequence[str]) -> int | None:
    """The smallest seed that all methods have; None if there is none."""
    seeds = [{run.seed for run in gathered.of(experiment, method)} for method in methods]
    return min(set.intersection(*seeds), default=None) if seeds else None


def plane_of(gathered: Gathered, experiment: str, methods: Sequence[str], seed: int) -> Plane | None:
    """The trajectories of these methods with one seed; None without a snapshot."""
    found = {method: gathered.snapshots(experiment, method, [seed]) for method in methods}
    for frame in found.values():
        _require_packed(frame, "displacement")
    found = {method: frame[[bool(np.isfinite(row).all()) for row in frame.displacement]] for method, frame in found.items()}
    displacements = {
        method: (frame.epoch.to_numpy(dtype=float), np.stack(frame.displacement.to_list()).astype(float))
        for method, frame in found.items()
        if len(frame)
    }
    return project(displacements) if displacements else None


def project(displacements: Mapping[str, tuple[Array, Array]]) -> Plane:
    """One PCA of all methods, the start included, from (epochs, displacements from the start) of each."""
    with_start = {
        name: (np.append(-1.0, epochs), np.vstack([np.zeros((1, rows.shape[1])), rows]))
        for name, (epochs, rows) in displacements.items()
    }
    stacked = np.vstack([rows for _, rows in with_start.values()])
    centre = stacked.mean(0)
    _, values, directions = np.linalg.svd(stacked - centre, full_matrices=False)
    directions = directions[:2]
    largest = np.abs(directions).argmax(1)
    signs = np.sign(directions[np.arange(len(directions)), largest])  # an SVD leaves them open
    directions = directions * signs[:, None]
    total = float((values**2).sum())
    trajectories = {name: Trajectory(epochs, (rows - centre) @ directions.T) for name, (epochs, rows) in with_start.items()}
    return Plane(trajectories, values[:2] ** 2 / total if total else np.zeros(2))


class EarlyPoint(NamedTuple):
    """One run that passed its threshold: an early measure of its spectrum, and the epoch that passed."""

    experiment: str
    method: str
    seen: float
    crossed: int


class Correlations(NamedTuple):
    """The rank correlations of several groups of points."""

    values: tuple[float, ...]
    significant: int

    @property
    def median(self) -> float | None:
        return float(np.median(self.values)) if self.values else None

    def __str__(self) -> str:
        if self.median is None:
            return NOTHING
        low, high = min(self.values), max(self.values)
        return f"{self.median:+.2f} ({low:+.2f} to {high:+.2f}); {self.significant} of {len(self.values)}"


class EarlyRow(NamedTuple):
    """One measure at one epoch."""

    measure: str
    epoch: int
    runs: int
    seeds: Correlations
    """Between the seeds of a method."""
    methods: Correlations
    """Between the methods of a task, each by the medians of its seeds."""

    def csv_row(self) -> dict[str, Value]:
        """One row of the CSV file."""
        found: dict[str, Value] = {"measure": self.measure, "epoch": self.epoch, "runs": self.runs}
        for name, own in (("seeds", self.seeds), ("methods", self.methods)):
            found[f"{name}_groups"] = len(own.values)
            found[f"{name}_median_rho"] = own.median
            found[f"{name}_significant"] = own.significant
        return found


def early_rows(gathered: Gathered, experiments: Sequence[str]) -> list[EarlyRow]:
    """Every measure at every epoch."""
    rows = []
    for measure in EARLY_MEASURES:
        for epoch in EARLY_EPOCHS:
            points = list(_points(gathered, experiments, measure, epoch))
            seeds, methods = correlations(_by_method(points)), correlations(_medians(points))
            rows.append(EarlyRow(measure, epoch, len(points), seeds, methods))
    return rows


def correlations(groups: Mapping[tuple[str, ...], Group]) -> Correlations:
    """Spearman's rank correlation of every group that has enough points, not all of them equal."""
    from scipy import stats  # type: ignore[import-untyped]  # slow to import, and one table alone needs it

    values, significant = [], 0
    for points in groups.values():
        seen, crossed = np.array(points, dtype=float).T
        if len(points) >= FEWEST_POINTS and len(set(seen)) > 1 and len(set(crossed)) > 1:
            found = stats.spearmanr(seen, crossed)
            values.append(float(found.statistic))
            significant += bool(found.pvalue < CHANCE)
    return Correlations(tuple(values), significant)


def _points(gathered: Gathered, experiments: Sequence[str], measure: str, epoch: int) -> Iterator[EarlyPoint]:
    """The runs that passed later than the epoch, and have a spectrum of it."""
    for run, reading in zip(gathered.runs, gathered.readings, strict=True):
        curve, crossed = reading.curve, run.outcome.crossed
        if crossed is None or crossed <= epoch or run.experiment not in experiments or "sigma_max" not in curve:
            continue
        then = curve[curve.epoch == epoch]
        if len(then):
            row = then.iloc[0]
            with np.errstate(all="ignore"):
                seen = row.sigma_max / row.sigma_min if measure == "condition" else row[measure]
            if np.isfinite(seen):
                yield EarlyPoint(run.experiment, run.method, float(seen), crossed)


def _by_method(points: Sequence[EarlyPoint]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for point in points:
        groups.setdefault((point.experiment, point.method), []).append((point.seen, point.crossed))
    return groups


def _medians(points: Sequence[EarlyPoint]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """By task, with a point for every method."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for (task, _), own in _by_method(points).items():
        seen, crossed = np.median(np.array(own), 0)
        groups.setdefault((task,), []).append((float(seen), float(crossed)))
    return groups
