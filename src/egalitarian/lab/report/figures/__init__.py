"""Draws matplotlib figures from the numbers of `analysis` and `theory`. Related kinds of figures share a file.

`FIGURES` has the function and the caption of each kind of figure in a report. Other rooms use the style, too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from egalitarian.lab.analysis import Gathered
from egalitarian.lab.config import Experiment
from egalitarian.lab.report.figures import costs, curves, fourier, learning, spectra, weights
from egalitarian.lab.report.figures.axes import accuracy_axis, draw_levels, epoch_axis, lowest, mark
from egalitarian.lab.report.figures.choice import MOST, chosen_of, remarks_of
from egalitarian.lab.report.figures.costs import draw_costs, draw_ratios
from egalitarian.lab.report.figures.labels import Flag, flag_panels
from egalitarian.lab.report.figures.style import CYCLE, FOOT, OKABE_ITO, WIDTH, literal, looks_of, save, slim, styled
from egalitarian.lab.report.figures.tasks import TASKS, draw_tasks, task_rows

Draw = Callable[[Gathered, Sequence[Experiment], Sequence[str]], Figure]


class Drawing(NamedTuple):
    """A kind of figure: the function that draws it, and the caption that all figures of the kind share."""

    draw: Draw
    caption: str
    most: int | None = None
    """The largest number of methods that it shows; None shows all."""


FIGURES: dict[str, Drawing] = {
    "curves": Drawing(curves.draw_curves, curves.CURVES, MOST),
    "costs": Drawing(costs.draw_needed, costs.COSTS),
    "learning": Drawing(learning.draw_learning, learning.LEARNING, MOST),
    "shuffles": Drawing(learning.draw_shuffles, learning.SHUFFLES),
    "spectra": Drawing(spectra.draw_spectra, spectra.CAPTION, spectra.MOST),
    "fourier": Drawing(fourier.draw_fourier, fourier.CAPTION, fourier.MOST),
    "distances": Drawing(weights.draw_distances, weights.DISTANCES, weights.MOST),
    "trajectories": Drawing(weights.draw_trajectories, weights.TRAJECTORIES, weights.MOST),
}


def caption_of(kind: str, gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> str:
    """The caption of a figure: the text of its kind, how methods were chosen, and which seeds or methods are missing."""
    own = FIGURES[kind]
    chosen = chosen_of(len(methods), own.most) if own.most else ""
    return " ".join(filter(None, (own.caption, chosen, remarks_of(gathered, experiments, methods))))


__all__ = [
    "CYCLE",
    "FIGURES",
    "FOOT",
    "OKABE_ITO",
    "TASKS",
    "WIDTH",
    "Drawing",
    "Flag",
    "accuracy_axis",
    "caption_of",
    "draw_costs",
    "draw_levels",
    "draw_ratios",
    "draw_tasks",
    "epoch_axis",
    "flag_panels",
    "literal",
    "looks_of",
    "lowest",
    "mark",
    "save",
    "slim",
    "styled",
    "task_rows",
]
