"""The picture on top of a report's page: every task in a row, with the median of each method that passes."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.analysis import TaskSpeed, times
from egalitarian.lab.config import load_looks
from egalitarian.lab.report.figures.axes import LINEAR, MARGIN, add_key, name_rows, note, plain_numbers
from egalitarian.lab.report.figures.style import SMALL, WIDTH, family_colour, literal, styled

MOST = 16
"""Tasks that one picture can show."""
ROW = 0.27
"""Inches: a task's row."""
LETTERS = 48
"""Of a task's name, at most."""
TASKS = (
    "Every dot is the median of one method's seeds on a task: the epoch at which test accuracy passes the threshold. "
    "The colour is the method's family. The line goes from the baseline, the task's first method without EGD, to the "
    "fastest method with EGD, and the number is the ratio of both. A method that half of its seeds do not pass has no dot. "
    "Settings are the experiments' own: they were not searched with the same effort for every method."
)


class TaskPoint(NamedTuple):
    """The median of one method."""

    method: str
    value: float
    text: str


class TaskRow(NamedTuple):
    """A task, its medians, and what the line between two of them says."""

    title: str
    points: tuple[TaskPoint, ...]
    span: tuple[float, float] | None
    text: str


def task_rows(speeds: Sequence[TaskSpeed]) -> list[TaskRow]:
    """One row for each of the first `MOST` tasks with two methods or more, of which one passes."""
    rows = []
    for speed in [speed for speed in speeds if speed.passed and len(speed.medians) > 1][:MOST]:
        points = tuple(TaskPoint(name, value, str(speed.medians[name])) for name, value in speed.passed.items())
        baseline, best = speed.baseline, speed.equalised
        span, text = None, ""
        if speed.gain is not None and baseline in speed.passed and best is not None:
            span, text = (speed.passed[baseline], speed.passed[best]), times(speed.gain)
        rows.append(TaskRow(speed.experiment.title, points, span, text))
    return rows


def families_of(rows: Sequence[TaskRow], speeds: Sequence[TaskSpeed]) -> dict[str, str]:
    """The families of the methods in these rows, with their colours."""
    by_title = {speed.experiment.title: speed.experiment for speed in speeds}
    methods = [by_title[row.title].method(point.method) for row in rows for point in row.points]
    found = {load_looks().family_of(method): family_colour(method) for method in methods}
    return {name: found[name] for name in load_looks().families if name in found}


@styled
def draw_tasks(speeds: Sequence[TaskSpeed]) -> Figure:
    """The rows, the first on top."""
    rows = task_rows(speeds)[::-1]
    figure = Figure(figsize=(WIDTH, MARGIN + ROW * max(len(rows), 2)), layout="constrained")
    axis = figure.add_subplot()
    by_title = {speed.experiment.title: speed.experiment for speed in speeds}
    for place, row in enumerate(rows):
        if row.span is not None:
            axis.plot(row.span, [place, place], color="0.8", lw=3, zorder=1, solid_capstyle="round")
        for point in row.points:
            colour = family_colour(by_title[row.title].method(point.method))
            axis.plot(point.value, place, "o", color=colour, mec="white", mew=0.5, ms=5.5)
        right = max(point.value for point in row.points)
        axis.annotate(row.text, (right, place), (7, 0), textcoords="offset points", va="center", size=SMALL)
    axis.set_xscale("symlog", linthresh=1, linscale=LINEAR)
    values = [point.value for row in rows for point in row.points]
    axis.set_xlim(min(values, default=1) / 1.5, 2.5 * max(values, default=1))
    name_rows(axis, [(shorten(row.title, LETTERS, placeholder="…"), "#000000", False) for row in rows])
    plain_numbers(axis)
    axis.set_xlabel("median epochs to the threshold (logarithmic)")
    if not rows:
        note(axis, "not run")
    families = families_of(rows, speeds).items()
    add_key(figure, [Line2D([], [], color=colour, marker="o", ls="", label=literal(name)) for name, colour in families])
    return figure
