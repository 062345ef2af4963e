"""Interactive figures of points and of the weights: what every seed needed, distances, spectra, paths, and the overview."""

from __future__ import annotations

import math
from collections.abc import Sequence

from egalitarian.lab.analysis import Array, Gathered, TaskSpeed, band, common_seed, estimate, fan, plane_of
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.charts.curves import all_looks, titles_of
from egalitarian.lab.report.charts.parts import (
    Chart,
    ChartLine,
    ChartPanel,
    ChartRow,
    RowPoint,
    Spot,
    Strip,
    YAxis,
    clock_of,
    median_line,
    seed_lines,
)
from egalitarian.lab.report.figures import weights
from egalitarian.lab.report.figures.axes import Row
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.costs import accuracy_label, epoch_rows, final_rows
from egalitarian.lab.report.figures.curves import exact_median, flag_text
from egalitarian.lab.report.figures.spectra import FAN
from egalitarian.lab.report.figures.spectra import MOST as FANS
from egalitarian.lab.report.figures.style import family_colour, looks_of
from egalitarian.lab.report.figures.tasks import TaskRow, families_of


def family_looks(experiments: Sequence[Experiment], methods: Sequence[str]) -> dict[str, Look]:
    """The colour of each method's family alone, as in figures of points."""
    found = {}
    for name in methods:
        own = next(each.method(name) for each in experiments if name in each.methods)
        found[name] = Look(colour=family_colour(own), marker="o")
    return found


def chart_costs(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """One panel per experiment, one row per method, a point per seed."""
    waits = all(experiment.measure.has_threshold for experiment in experiments)
    panels = []
    for experiment in experiments:
        rows = (epoch_rows if waits else final_rows)(gathered, experiment, methods)
        panels.append(
            ChartPanel(
                experiment.title,
                "rows",
                YAxis("epoch that passes the threshold" if waits else accuracy_label(experiment)),
                rows=tuple(_seed_row(gathered, experiment, row) for row in reversed(rows)),
                x_label="" if waits else accuracy_label(experiment),
                clock=clock_of(gathered, experiment, [row.method for row in rows]) if waits else {},
            )
        )
    looks = family_looks(experiments, methods)
    return Chart(tuple(panels), titles_of(experiments, methods), looks, tuple(methods), log_x=True if waits else None)


def _seed_row(gathered: Gathered, experiment: Experiment, row: Row) -> ChartRow:
    seeds = [run.seed for run in gathered.of(experiment.name, row.method)]
    points = tuple(RowPoint(row.method, value, f"seed {seed}") for seed, value in zip(seeds, row.values, strict=True))
    return ChartRow(row.title, row.method, points, row.middle, row.text)


def chart_distances(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """One panel per experiment and measure."""
    chosen = choose(gathered, experiments, methods, weights.MOST)
    panels = []
    for experiment in experiments:
        run = gathered.methods_run(experiment.name, methods)
        for measure, label in weights.MEASURES.items():
            lines: list[ChartLine] = []
            spots: list[Spot] = []
            for method in run:
                passed, found = (
                    estimate(gathered.of(experiment.name, method)),
                    band(gathered, experiment.name, method, measure),
                )
                middle = exact_median(passed)
                found = found if middle is None else found.until(middle)
                lines += [median_line(method, found), *seed_lines(gathered, experiment.name, method, measure)]
                if found.known.any():
                    x, y = float(found.epochs[found.known][-1]), float(found.middle[found.known][-1])
                    spots.append(Spot(method, x, y, flag_text(experiment, method, passed)))
            axis, clock = YAxis(label, low=0.0), clock_of(gathered, experiment, run)
            panels.append(ChartPanel(experiment.title, "time", axis, tuple(lines), tuple(spots), clock=clock))
    return Chart(tuple(panels), titles_of(experiments, methods), all_looks(experiments, methods, chosen), tuple(chosen))


def chart_spectra(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """For each experiment a fan for a few methods, those of the static figure, and their condition numbers."""
    chosen = choose(gathered, experiments, methods, FANS)
    looks, panels = looks_of(experiments, methods), []
    for experiment in experiments:
        run = gathered.methods_run(experiment.name, chosen)
        clock = clock_of(gathered, experiment, run)
        for method in run:
            title = f"{experiment.title}: {experiment.method(method).title}"
            axis = YAxis("singular values of the gradient", log=True, shared=True)
            alone = [link.kind for link in experiment.method(method).transform] == ["polar"]
            levels = ((1.0, "equalised: all 1"),) if alone else ()
            snapshots = gathered.snapshots(experiment.name, method)
            lines = _fan_lines(method, *fan(snapshots)) if len(snapshots) else ()
            panels.append(ChartPanel(title, "time", axis, lines, levels=levels, clock=clock))
        conditions = tuple(median_line(method, band(gathered, experiment.name, method, "condition")) for method in run)
        axis = YAxis("largest over smallest", log=True)
        levels = ((1.0, "equalised: 1"),)
        panels.append(ChartPanel(experiment.title, "time", axis, conditions, levels=levels, clock=clock))
    return Chart(tuple(panels), titles_of(experiments, chosen), {name: looks[name] for name in chosen}, tuple(chosen))


def _fan_lines(method: str, epochs: Array, quantiles: Array) -> tuple[ChartLine, ...]:
    strips = tuple(Strip(quantiles[:, low], quantiles[:, high], opacity) for low, high, opacity, _ in FAN)
    return (ChartLine(method, "median", epochs, quantiles[:, 3], strips),)


def chart_trajectories(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """One plane per experiment; the same methods as in the static figure, since they decide the plane."""
    chosen = choose(gathered, experiments, methods, weights.MOST)
    panels = []
    for experiment in experiments:
        run = gathered.methods_run(experiment.name, chosen)
        seed = common_seed(gathered, experiment.name, run)
        plane = None if seed is None else plane_of(gathered, experiment.name, run, seed)
        lines: list[ChartLine] = []
        spots: list[Spot] = []
        for method, path in plane.trajectories.items() if plane is not None else ():
            lines.append(ChartLine(method, "path", path.points[:, 0], path.points[:, 1], epochs=path.epochs))
            crossed = next(own.outcome.crossed for own in gathered.of(experiment.name, method) if own.seed == seed)
            if crossed is not None:
                x, y = map(float, path.nearest(crossed))
                title = experiment.method(method).title
                spots.append(Spot(method, x, y, f"{title} passes the threshold: epoch {crossed}", star=True))
        first, second = (0.0, 0.0) if plane is None else plane.shares
        panels.append(
            ChartPanel(
                experiment.title,
                "plane",
                YAxis(f"PCA 2: {100 * second:.0f} %", log=None),
                tuple(lines),
                tuple(spots),
                x_label=f"PCA 1: {100 * first:.0f} % (seed {seed})",
            )
        )
    looks = looks_of(experiments, chosen)
    return Chart(tuple(panels), titles_of(experiments, chosen), looks, tuple(chosen), log_x=None)


def chart_tasks(rows: Sequence[TaskRow], speeds: Sequence[TaskSpeed]) -> Chart:
    """The overview: one row per task, and the median of every method on it."""
    experiments = [speed.experiment for speed in speeds]
    methods = list(dict.fromkeys(point.method for row in rows for point in row.points))
    titles = titles_of(experiments, methods)
    made = tuple(
        ChartRow(
            row.title,
            "",
            tuple(RowPoint(point.method, point.value, f"{titles[point.method]}: {point.text}") for point in row.points),
            math.inf,
            row.text,
            row.span,
        )
        for row in rows
    )
    panel = ChartPanel(
        "", "rows", YAxis("median epochs to the threshold"), rows=made, x_label="median epochs to the threshold"
    )
    return Chart((panel,), titles, family_looks(experiments, methods), tuple(methods), key=families_of(rows, speeds))
