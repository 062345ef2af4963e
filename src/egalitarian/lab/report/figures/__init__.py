"""Figures: numbers from analysis and theory in, matplotlib figures out. One file for each kind.

`FIGURES` has the function and the caption of each kind of a report's figures. The style is for other rooms, too.
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

Draw = Callable[[Gathered, Sequence[Experiment], Sequence[str]], Figure]


class Drawing(NamedTuple):
    """How a kind of figure is drawn, and what its caption says of every figure of the kind."""

    draw: Draw
    caption: str
    most: int | None = None
    """Methods that it can show; of more it shows some. None: as many as there are."""


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
    """The caption of a figure: of its kind, and what it does not show of these methods."""
    own = FIGURES[kind]
    chosen = chosen_of(len(methods), own.most) if own.most else ""
    return " ".join(filter(None, (own.caption, chosen, remarks_of(gathered, experiments, methods))))


__all__ = [
    "CYCLE",
    "FIGURES",
    "FOOT",
    "OKABE_ITO",
    "WIDTH",
    "Drawing",
    "Flag",
    "accuracy_axis",
    "caption_of",
    "draw_costs",
    "draw_levels",
    "draw_ratios",
    "epoch_axis",
    "flag_panels",
    "literal",
    "looks_of",
    "lowest",
    "mark",
    "save",
    "slim",
    "styled",
]
