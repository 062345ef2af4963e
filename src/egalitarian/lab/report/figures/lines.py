"""What the figures of runs share: seeds as a line and a band, marks, legends, titles, remarks below a panel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from egalitarian.lab.analysis import Array, Band, Gathered, estimate
from egalitarian.lab.config import Experiment, Look
from egalitarian.lab.report.figures.style import WIDTH, look

SPARSE = 25
"""Points per decade on the edges of a band: the SVG writer simplifies lines, but not bands."""
LETTER, KEY = 0.05, 0.5
"""Inches: an average letter of a legend, and the line before a label."""
TALL = 8
"""Labels of a legend in one column; with more of them, the figure is widened."""


def draw_band(
    axis: Axes, found: Band, colour: str, *, edges: bool = True, thin: bool = True, per_epoch: int = 1, **line: object
) -> None:
    """The median as a line, the quartiles as a band. Epochs count from 1, for a logarithmic axis.

    Args:
        edges: whether to draw the band.
        thin: whether to leave out points of the band, which is right for a logarithmic axis only.
        per_epoch: steps of an epoch, for an axis of steps.
        line: options of the line, as in matplotlib.
    """
    if not len(found.epochs):
        return  # no epoch has a value
    ends = per_epoch * (found.epochs + 1)
    axis.plot(ends, found.middle, color=colour, **line)  # type: ignore[arg-type]
    if edges:
        keep = sparse(found.epochs) if thin else np.arange(len(ends))
        axis.fill_between(ends[keep], found.low[keep], found.high[keep], color=colour, alpha=0.2, linewidth=0)


def sparse(epochs: Array) -> NDArray[np.intp]:
    """The indices of about `SPARSE` epochs per decade, with the first and the last."""
    steps = np.round(SPARSE * np.log10(epochs + 1))
    fresh = np.flatnonzero(np.diff(steps, prepend=-1.0))
    return np.union1d(fresh, [len(epochs) - 1]).astype(np.intp)


def mark(axis: Axes, x: float | Array, y: float | Array, own: Look) -> None:
    """A method's marker, where it passes the threshold or its line ends."""
    axis.plot(x, y, own.marker, color=own.colour, markeredgecolor="white", markersize=5.5, zorder=5)


def note(axis: Axes, text: str) -> None:
    """A text in the middle of an empty panel."""
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="0.4")


def list_missing(gathered: Gathered, experiment: Experiment, titles: Mapping[str, str]) -> list[str]:
    """The methods of the legend that a panel lacks, line by line; nothing for a panel without any run."""
    shown = gathered.methods_run(experiment.name, list(titles))
    lacking = [title for method, title in titles.items() if method in experiment.methods and method not in shown]
    return ["not run:", *lacking] if shown and lacking else []


def count_passed(gathered: Gathered, experiment: Experiment, titles: Mapping[str, str]) -> Iterator[str]:
    """How many seeds pass, for each method of which not all do; methods with the same numbers share a line.

    Nothing for an experiment without a threshold.
    """
    alike: dict[str, list[str]] = {}
    for method, title in titles.items() if experiment.measure.waits else ():
        found = estimate(gathered.of(experiment.name, method))
        if found.failed:
            share = f"{found.passed} of {found.n} pass".replace(" ", "\N{NO-BREAK SPACE}")
            alike.setdefault(f"{share}{', unfinished' if found.unfinished else ''}", []).append(title)
    for share, own in alike.items():
        yield f"{own[0]}: {share}" if len(own) == 1 else f"{share}: {'; '.join(own)}"


def add_remarks(axes: Sequence[Axes], remarks: Sequence[Sequence[str]], panels: int | None = None) -> None:
    """Remarks on each panel, below the label of its axis. The figure grows by their height.

    Args:
        panels: in one row of the figure, if these are not all of `axes`.
    """
    width = round(1.2 * _letters(panels or len(axes)))  # their letters are smaller than those of a title
    lines = [[line for remark in own for line in textwrap.wrap(remark, width)] for own in remarks]
    for axis, own in zip(axes, lines, strict=True):
        axis.set_xlabel("\n".join([axis.get_xlabel(), *own]))
    figure = axes[0].get_figure(root=True)
    if figure is not None:
        figure.set_figheight(figure.get_figheight() + 0.14 * max(map(len, lines)))


def add_legend(figure: Figure, titles: Mapping[str, str], methods: Sequence[str], *more: Line2D) -> None:
    """Below the panels: the methods, then the meaning of lines and marks. The figure grows by its height."""
    handles = [
        Line2D([], [], color=look(name, methods).colour, marker=look(name, methods).marker, label=title)
        for name, title in titles.items()
    ]
    handles += more
    if not handles:
        return
    lengths = [len(str(handle.get_label())) for handle in handles]
    if len(lengths) > TALL and _columns(lengths, figure.get_figwidth()) == 1:
        figure.set_figwidth(WIDTH)
    for handle in handles:
        handle.set_label(textwrap.fill(str(handle.get_label()), int(0.9 * (figure.get_figwidth() - KEY) / LETTER)))
    columns = _columns(lengths, figure.get_figwidth())
    lines = sum(1 + str(handle.get_label()).count("\n") for handle in handles)
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-lines // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.2, handlelength=2)


def _columns(lengths: Sequence[int], width: float) -> int:
    """How many columns of labels fit, for labels of so many letters, filled one column after the other."""
    for columns in range(len(lengths), 1, -1):
        longest = [max(part) for part in np.array_split(lengths, columns)]
        if sum(LETTER * length + KEY for length in longest) <= width:
            return columns
    return 1


def titles_of(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> dict[str, str]:
    """The methods that have runs of any of the experiments, with their titles in the first of these."""
    run = {
        method: literal(experiment.methods[method].title)
        for experiment in reversed(experiments)
        for method in gathered.methods_run(experiment.name, methods)
    }
    return {method: run[method] for method in methods if method in run}


def new_figure(panels: int, height: float) -> Figure:
    """As wide as so many panels in a row need, at most a page's text; `height` is without the legend."""
    return Figure(figsize=({1: 4.0, 2: 5.4}.get(panels, WIDTH), height), layout="constrained")


def panel_title(title: str, panels: int) -> str:
    """In as many lines as a panel's width needs."""
    return textwrap.fill(literal(title), _letters(panels))


def literal(title: str) -> str:
    """A title in which no character begins a formula."""
    return title.replace("$", r"\$")


def _letters(panels: int) -> int:
    """How many letters of a title fit into a panel's width."""
    return {1: 44, 2: 36, 3: 25}.get(panels, 20)
