"""Interactive figures of curves: accuracy or the share of seeds that passed, learning by step, shuffled labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egalitarian.lab.analysis import Band, Gathered, band, estimate, rest_of_full_run, survival
from egalitarian.lab.config import Experiment, Look, changing, load_looks
from egalitarian.lab.report.charts.parts import Chart, ChartLine, ChartPanel, Spot, YAxis, clock_of, median_line, seed_lines
from egalitarian.lab.report.figures.axes import levels_of, lowest
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.curves import FEW, exact_median, flag_text, seeds_differ
from egalitarian.lab.report.figures.learning import by_optimizer
from egalitarian.lab.report.figures.style import looks_of

ACCURACY, SHARE = "accuracy", "seeds that passed"


def all_looks(experiments: Sequence[Experiment], methods: Sequence[str], chosen: Sequence[str]) -> dict[str, Look]:
    """Those of the static figure for the methods that it has; for the others what is free."""
    return looks_of(experiments, methods) | looks_of(experiments, chosen)


def titles_of(experiments: Sequence[Experiment], methods: Iterable[str]) -> dict[str, str]:
    """Of the methods, by name."""
    return {name: next(each.method(name).title for each in experiments if name in each.methods) for name in methods}


def chart_curves(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """One panel per experiment, and two views of it where there is a threshold."""
    chosen = choose(gathered, experiments, methods)
    shares = any(seeds_differ(gathered, experiment, chosen) for experiment in experiments)
    waits = [each for each in experiments if each.measure.has_threshold]
    training = len(chosen) <= FEW
    panels = [_accuracy_panel(gathered, each, methods, ACCURACY if waits else "", training) for each in experiments]
    panels += [_share_panel(gathered, each, methods) for each in waits]
    return Chart(
        panels=tuple(panels),
        titles=titles_of(experiments, methods),
        looks=all_looks(experiments, methods, chosen),
        shown=tuple(chosen),
        views=(ACCURACY, SHARE) if waits else (),
        view=SHARE if shares else ACCURACY if waits else "",
    )


def _accuracy_panel(
    gathered: Gathered, experiment: Experiment, methods: Sequence[str], view: str, training: bool
) -> ChartPanel:
    waits = experiment.measure.has_threshold
    lines: list[ChartLine] = []
    spots: list[Spot] = []
    run = gathered.methods_run(experiment.name, methods)
    for method in run:
        found = estimate(gathered.of(experiment.name, method))
        middle = exact_median(found) if waits else None
        if training and waits:
            learnt = band(gathered, experiment.name, method, "train_accuracy", hold=True)
            lines.append(median_line(method, learnt, "training", edges=False))
        test = band(gathered, experiment.name, method, "test_accuracy", hold=True)
        lines += [median_line(method, test, keep=middle), *seed_lines(gathered, experiment.name, method, "test_accuracy")]
        if test.known.any() and waits:
            x = float(test.epochs[test.known][-1]) if middle is None else middle
            spots.append(Spot(method, x, test.at(x), flag_text(experiment, method, found)))
    low = lowest(experiment) if waits else None
    return ChartPanel(
        experiment.title,
        "time",
        YAxis("accuracy", percent=True, low=low, high=1.0 if waits else None, log=None),
        tuple(lines),
        tuple(spots),
        levels=tuple(levels_of(experiment)) if waits else (),
        view=view,
        clock=clock_of(gathered, experiment, run),
    )


def _share_panel(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> ChartPanel:
    lines: list[ChartLine] = []
    spots: list[Spot] = []
    run = gathered.methods_run(experiment.name, methods)
    for method in run:
        seeds = gathered.of(experiment.name, method)
        epochs, shares = survival(seeds)
        lines.append(ChartLine(method, "steps", epochs, shares))
        middle = exact_median(found := estimate(seeds))
        x, y = (float(epochs[-1]), float(shares[-1])) if middle is None else (middle, 0.5)
        spots.append(Spot(method, x, y, flag_text(experiment, method, found)))
    label = f"seeds past {100 * experiment.measure.threshold:g} %"
    axis = YAxis(label, percent=True, low=0.0, high=1.0, log=None)
    clock = clock_of(gathered, experiment, run)
    return ChartPanel(experiment.title, "time", axis, tuple(lines), tuple(spots), view=SHARE, clock=clock)


def chart_learning(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """For each experiment accuracy and test loss, by step of the optimizer."""
    chosen = choose(gathered, experiments, methods)
    panels = [
        panel
        for experiment in experiments
        for panel in (
            _learning_panel(gathered, experiment, methods, len(chosen) <= FEW),
            _loss_panel(gathered, experiment, methods),
        )
    ]
    looks = all_looks(experiments, methods, chosen)
    return Chart(tuple(panels), titles_of(experiments, methods), looks, tuple(chosen), unit="step")


def _learning_panel(gathered: Gathered, experiment: Experiment, methods: Sequence[str], training: bool) -> ChartPanel:
    lines: list[ChartLine] = []
    spots: list[Spot] = []
    run, steps = gathered.methods_run(experiment.name, methods), experiment.steps_per_epoch or 1
    for method in run:
        seeds = gathered.of(experiment.name, method)
        found, middle = estimate(seeds, steps), exact_median(estimate(seeds))
        test = band(gathered, experiment.name, method, "test_accuracy", hold=True)
        if training:
            learnt = band(gathered, experiment.name, method, "train_accuracy", hold=True)
            lines.append(median_line(method, learnt, "training", edges=False))
        lines.append(median_line(method, test, keep=middle, edges=not (found.passed and found.failed)))
        epochs, values = rest_of_full_run(gathered, experiment.name, method, "test_accuracy", test)
        if len(epochs):
            lines.append(ChartLine(method, "rest", epochs, values))
        lines += seed_lines(gathered, experiment.name, method, "test_accuracy")
        if test.known.any():
            passes = experiment.measure.has_threshold and middle is not None
            x = middle if passes and middle is not None else float(test.epochs[test.known][-1])
            spots.append(Spot(method, x, test.at(x), flag_text(experiment, method, found)))
    return ChartPanel(
        experiment.title,
        "time",
        YAxis("accuracy", percent=True, low=lowest(experiment), high=1.0, log=None),
        tuple(lines),
        tuple(spots),
        levels=tuple(levels_of(experiment)),
        clock=clock_of(gathered, experiment, run),
        steps=steps,
    )


def _loss_panel(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> ChartPanel:
    lines: list[ChartLine] = []
    run = gathered.methods_run(experiment.name, methods)
    for method in run:
        passed = estimate(gathered.of(experiment.name, method))
        found = _until_passed(band(gathered, experiment.name, method, "test_loss"), exact_median(passed))
        lines.append(median_line(method, found, edges=not (passed.passed and passed.failed)))
        lines += seed_lines(gathered, experiment.name, method, "test_loss")
    clock, steps = clock_of(gathered, experiment, run), experiment.steps_per_epoch or 1
    return ChartPanel(experiment.title, "time", YAxis("test loss", log=True), tuple(lines), clock=clock, steps=steps)


def _until_passed(found: Band, median: float | None) -> Band:
    return found if median is None else found.until(median)


def chart_shuffles(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Chart:
    """One panel per experiment and optimizer; colours tell methods with EGD from those without."""
    pair = load_looks().pair
    looks: dict[str, Look] = {}
    panels = []
    for experiment in experiments:
        for column in by_optimizer(experiments, methods):
            run = gathered.methods_run(experiment.name, column)
            lines = [median_line(method, band(gathered, experiment.name, method, "train_accuracy")) for method in run]
            lines += [line for method in run for line in seed_lines(gathered, experiment.name, method, "train_accuracy")]
            optimizer = titles_of(experiments, column[:1])[column[0]]
            panels.append(
                ChartPanel(
                    f"{experiment.title}: {optimizer}",
                    "time",
                    YAxis("training accuracy", percent=True, low=0.0, high=1.0, log=None),
                    tuple(lines),
                    rules=tuple(map(float, changing(experiment))),
                    clock=clock_of(gathered, experiment, run),
                )
            )
    for method in methods:
        own = next(each.method(method) for each in experiments if method in each.methods)
        series = pair.transformed if own.transform else pair.plain
        looks[method] = Look(colour=series.colour, marker="")
    return Chart(tuple(panels), titles_of(experiments, methods), looks, tuple(methods), log_x=False)
