"""Figures of accuracy by epoch. If the seeds of a method differ much: of the share of seeds that have passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from egalitarian.lab.analysis import Estimate, Gathered, band, estimate, survival
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.axes import (
    TRAINING,
    accuracy_axis,
    add_key,
    draw_band,
    draw_levels,
    epoch_axis,
    grow,
    lowest,
    mark,
    median_key,
    note,
    training_key,
)
from egalitarian.lab.report.figures.choice import choose
from egalitarian.lab.report.figures.labels import Flag, flag_panels, name_ends
from egalitarian.lab.report.figures.style import FOOT, WIDTH, literal, looks_of, styled

HEIGHT, INSIDE = 1.2, 5.3
"""Inches: a panel without its flags and title, and the width of its axis."""
FEW = 4
"""With more methods than this, training accuracy is not drawn."""
APART = 2.5
"""If the slowest seed needs more times the epochs of the fastest, a figure shows shares of seeds instead of accuracies."""
CURVES = (
    "The number after a name is the median epoch at which seeds of the method pass the threshold. The pole below the "
    "name leads to it. Without a threshold, names are at the ends of lines. A seed stops soon after it passes; from then "
    "on its last value counts. A line ends when half of the seeds have stopped. If the seeds of a method differ much, "
    "or some do not pass, the figure shows the share of seeds that have passed instead of accuracies. Epochs count from "
    "0, as in the tables."
)


@styled
def draw_curves(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    """Draws one panel per experiment: test accuracy by epoch, or the share of seeds that have passed."""
    methods = choose(gathered, experiments, methods)
    looks = looks_of(experiments, methods)
    shares = any(seeds_differ(gathered, experiment, methods) for experiment in experiments)
    figure = Figure(figsize=(WIDTH, FOOT + HEIGHT * len(experiments)), layout="constrained")
    axes = list(figure.subplots(len(experiments), 1, sharex=True, squeeze=False)[:, 0])
    flags = []
    for axis, experiment in zip(axes, experiments, strict=True):
        flags.append((_survival_panel if shares else _accuracy_panel)(axis, gathered, experiment, looks))
        axis.set_title(literal(experiment.title), loc="left")
        if not flags[-1]:
            note(axis, "not run")
    epoch_axis(axes)
    waits = [experiment.measure.has_threshold for experiment in experiments]
    above = [own if each else [] for own, each in zip(flags, waits, strict=True)]
    grow(figure, flag_panels(axes, above, INSIDE, HEIGHT))
    for axis, own, each in zip(axes, flags, waits, strict=True):
        if not each:
            name_ends(axis, own, HEIGHT)
    if any(flags) and not shares:
        training = [training_key()] if len(methods) <= FEW and any(waits) else []
        add_key(figure, [*median_key("test accuracy, median of the seeds"), *training])
    return figure


def seeds_differ(gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> bool:
    """Whether the seeds of a method differ so much that their median accuracy would be like that of no seed.

    Some pass and some do not, or one needs more than `APART` times the epochs of another.
    """
    found = [estimate(gathered.of(experiment.name, method)) for method in methods]
    ends = [(each.low.value, each.slowest) for each in found if each.low is not None and each.slowest is not None]
    mixed = any(each.passed and each.failed for each in found)
    return experiment.measure.has_threshold and (mixed or any(slow + 1 > APART * (low + 1) for low, slow in ends))


def _accuracy_panel(axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look]) -> list[Flag]:
    """Draws medians, bands, and a mark where a method passes or its line ends. Returns a flag for each mark."""
    accuracy_axis(axis, "accuracy", lowest(experiment))
    flags = []
    for method in gathered.methods_run(experiment.name, list(looks)):
        look, found = looks[method], estimate(gathered.of(experiment.name, method))
        if len(looks) <= FEW and experiment.measure.has_threshold:
            training = band(gathered, experiment.name, method, "train_accuracy", hold=True)
            draw_band(axis, training, look, edges=False, **TRAINING)
        test = band(gathered, experiment.name, method, "test_accuracy", hold=True)
        draw_band(axis, test, look)
        if test.known.any():
            middle = exact_median(found) if experiment.measure.has_threshold else None
            x = float(test.epochs[test.known][-1]) if middle is None else middle
            if experiment.measure.has_threshold:
                mark(axis, x, test.at(x), look)
            flags.append(Flag(flag_text(experiment, method, found), x, test.at(x), look.colour))
    if experiment.measure.has_threshold:
        draw_levels(axis, experiment)
    else:
        axis.autoscale(axis="y")
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    return flags


def _survival_panel(axis: Axes, gathered: Gathered, experiment: Experiment, looks: Mapping[str, Look]) -> list[Flag]:
    """Draws the share of seeds that have passed, and a mark where it is one half. Returns a flag for each mark."""
    accuracy_axis(axis, f"seeds past {100 * experiment.measure.threshold:g} %")
    flags = []
    for method in gathered.methods_run(experiment.name, list(looks)):
        look, seeds = looks[method], gathered.of(experiment.name, method)
        epochs, shares = survival(seeds)
        axis.plot(epochs, shares, color=look.colour, linestyle=look.line, drawstyle="steps-post")
        middle = exact_median(found := estimate(seeds))
        x, y = (epochs[-1], shares[-1]) if middle is None else (middle, 0.5)
        mark(axis, x, y, look)
        flags.append(Flag(flag_text(experiment, method, found), x, y, look.colour))
    return flags


def flag_text(experiment: Experiment, method: str, found: Estimate) -> str:
    """A method's name. With a threshold, also its median epoch, and how many of its seeds pass if not all do."""
    title = experiment.method(method).title
    if not experiment.measure.has_threshold:
        return title
    parts = [] if exact_median(found) is None else [str(found.median)]
    parts += [f"{found.passed} of {found.n}"] if found.failed else []
    return f"{title}: {', '.join(parts)}"


def exact_median(found: Estimate) -> float | None:
    """The median, or None if it is only a bound."""
    return found.median.value if found.median is not None and found.median.is_exact else None
