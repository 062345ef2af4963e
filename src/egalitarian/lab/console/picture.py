"""The picture at the end of `egalitarian grok`: test and train accuracy of each method over logarithmic epochs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.console.grok import MethodRuns, ranked
from egalitarian.lab.report.figures import WIDTH, literal, look, mark, styled
from egalitarian.lab.runs import Record, Store

GREY = "#8A8A8A"
MARGIN = 0.03
"""Of accuracy, above and below the curves."""
LINE = 0.15
"""Inches of one in the legend."""


@styled
def draw_grok(store: Store, experiment: Experiment, methods: Sequence[MethodRuns], path: Path) -> None:
    """Every seed is a line: solid for test, dotted for train accuracy; a mark where the threshold is passed.

    The legend has the methods in the order in which they pass, which is that of the curves from left to right.
    """
    names = [each.name for each in methods]
    entries = [_entry(experiment, each, look(each.name, names)) for each in ranked(methods)]
    lines = sum(1 + str(entry.get_label()).count("\n") for entry in entries)
    figure = Figure(figsize=(WIDTH + 1.5, max(3.6, 0.6 + LINE * lines)), layout="constrained")
    axis = figure.add_subplot()
    lowest = chance(experiment)
    for each in methods:
        for progress in each.runs:
            records = [record for record in store.find(progress.run).records() if "snapshot" not in record]
            records = records[: progress.next_epoch]
            _draw_seed(axis, records, progress.crossed, look(each.name, names), alone=len(each.runs) == 1)
            lowest = min([lowest, *(min(record["test_accuracy"], record["train_accuracy"]) for record in records)])
    _draw_levels(axis, experiment)
    axis.set(
        xscale="log",
        xlim=(0.9, None),
        xlabel="epochs trained (epoch 0 is the first)",
        ylabel="accuracy",
        ylim=(lowest - MARGIN, 1 + MARGIN),
    )
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axis.set_title(textwrap.fill(literal(title(experiment, methods)), 88), loc="left")
    kinds = [Line2D([], [], color="0.3", label="test"), Line2D([], [], color="0.3", ls=":", lw=1, label="train")]
    figure.legend(
        handles=[*entries, *kinds],
        loc="outside right upper",
        title=f"passes {100 * experiment.measure.threshold:g} %" if experiment.measure.waits else None,
        alignment="left",
    )
    figure.savefig(path)


def chance(experiment: Experiment) -> float:
    """The accuracy of a guess: one output is a sign, more are classes."""
    return 1 / max(2, getattr(experiment.task, "outputs", 2))


def title(experiment: Experiment, methods: Sequence[MethodRuns]) -> str:
    """What is to be seen."""
    if not experiment.measure.waits:
        return f"{experiment.heading}: accuracy by epoch"
    threshold = f"{100 * experiment.measure.threshold:g} % test accuracy"
    first = ranked(methods)[0]
    if math.isinf(first.median):
        return f"{experiment.heading}: no method has passed {threshold}"
    name = experiment.method(first.name).title
    return f"{experiment.heading}: {name} passes {threshold}{' first,' if len(methods) > 1 else ''} {_passing(first)}"


def _draw_seed(axis: Axes, records: Sequence[Record], crossed: int | None, drawn: Look, alone: bool) -> None:
    width, strength = (1.6, 1.0) if alone else (0.9, 0.7)
    axis.plot(*_curve(records, "test_accuracy"), color=drawn.colour, lw=width, alpha=strength, zorder=3)
    axis.plot(*_curve(records, "train_accuracy"), color=drawn.colour, lw=0.9, alpha=0.8, ls=":")
    if crossed is not None:
        mark(axis, crossed + 1, records[crossed]["test_accuracy"], drawn)


def _draw_levels(axis: Axes, experiment: Experiment) -> None:
    """The threshold and what a guess would reach, each with its name at the right edge."""
    levels = {"chance": chance(experiment)}
    if experiment.measure.waits:
        levels["threshold"] = experiment.measure.threshold
    for name, level in levels.items():
        axis.axhline(level, color=GREY, lw=0.8, ls="--", zorder=1)
        text = f"{name}\n{100 * level:{'.2g' if name == 'chance' else 'g'}} %"
        axis.text(1.01, level, text, transform=axis.get_yaxis_transform(), va="center", color="0.35", fontsize=7)


def _entry(experiment: Experiment, method: MethodRuns, drawn: Look) -> Line2D:
    name = textwrap.fill(literal(experiment.method(method.name).title), 36)
    label = f"{name}\n{_passing(method)}" if experiment.measure.waits else name
    return Line2D([], [], color=drawn.colour, marker=drawn.marker, markersize=5, markeredgecolor="white", label=label)


def _passing(method: MethodRuns) -> str:
    if math.isinf(method.median):
        return f"not in {max(run.next_epoch for run in method.runs)} epochs"
    return f"at epoch {method.median:g}{' (median)' if len(method.runs) > 1 else ''}"


def _curve(records: Sequence[Record], measure: str) -> tuple[list[int], list[float]]:
    return [record["epoch"] + 1 for record in records], [record[measure] for record in records]
