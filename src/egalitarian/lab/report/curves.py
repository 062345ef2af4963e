"""Accuracy against epochs: one panel per experiment, one colour per method, seeds as a band, log epochs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.report.gather import Gathered
from egalitarian.lab.report.lines import band, draw_band, labels, legend, look, mark, panel_title, present, say_missing
from egalitarian.lab.report.statistics import Estimate, estimate
from egalitarian.lab.report.style import WIDTH, styled
from egalitarian.lab.spec import Experiment

FEW = 4
"""Methods whose legend fits into one line."""
CAPTION = (
    "Test accuracy (solid) and training accuracy (dashed): the median over seeds, with the middle half of them as a band. "
    "A seed stops soon after it passes the threshold (dotted) and counts at its last value from then on; a line ends when "
    "half of the seeds have stopped. The mark is the median epoch of passing (the axis counts from 1). Where not all seeds "
    "pass, the legend says how many do, panel by panel; an asterisk: some are unfinished."
)


@styled
def draw_curves(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> Figure:
    lines = 1 if len(methods) <= FEW else -(-(len(methods) + 2) // 3)
    figure = Figure(figsize=(WIDTH, 2.4 + 0.15 * lines), layout="constrained")
    axes = figure.subplots(1, len(experiments), sharey=True, squeeze=False)[0]
    for axis, experiment in zip(axes, experiments, strict=True):
        _panel(axis, gathered, experiment, methods)
        axis.set_title(panel_title(experiment, len(experiments)))
    axes[0].set_ylabel("accuracy")
    kinds = (
        Line2D([], [], color="0.25", label="test (band: middle half of seeds)"),
        Line2D([], [], color="0.25", linewidth=0.8, linestyle="--", label="training"),
    )
    named = labels(experiments, methods)
    named = {method: title + _passing(gathered, experiments, method) for method, title in named.items()}
    legend(figure, named, *kinds, columns=None if lines == 1 else 3)
    return figure


def _panel(axis: Axes, gathered: Gathered, experiment: Experiment, methods: Sequence[str]) -> None:
    shown, missing = present(gathered, experiment, methods)
    threshold = experiment.measure.threshold
    axis.axhline(threshold, color="0.5", linewidth=0.7, linestyle=":")
    curves = gathered.curves
    for method in shown:
        drawn = look(method, methods)
        seeds = gathered.of(experiment.name, method)
        own = curves[(curves.experiment == experiment.name) & (curves.method == method)]
        training = band(own, seeds, "train_accuracy", hold=True)
        draw_band(axis, training, drawn.colour, edges=False, linewidth=0.8, linestyle="--")
        draw_band(axis, band(own, seeds, "test_accuracy", hold=True), drawn.colour)
        passing = estimate(seeds).median
        if passing is not None and not passing.sign:
            mark(axis, passing.value + 1, threshold, drawn)
    say_missing(axis, missing, shown)
    axis.set(xscale="log", ylim=(-0.03, 1.04), xlabel="epoch")


def _passing(gathered: Gathered, experiments: Sequence[Experiment], method: str) -> str:
    """How many seeds pass in each panel, unless all do."""
    found = [estimate(gathered.of(experiment.name, method)) for experiment in experiments]
    if all(one.passed == one.n for one in found):
        return ""
    return f" ({', '.join(map(_fraction, found))})"


def _fraction(found: Estimate) -> str:
    return f"{found.passed}/{found.n}{'*' if found.unfinished else ''}" if found.n else "–"
