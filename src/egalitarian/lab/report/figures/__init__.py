"""Figures: numbers from analysis and theory in, matplotlib figures out. One file for each kind.

`FIGURES` has the function and the caption of each kind of a report's figures. The style is for other rooms, too.
"""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from egalitarian.lab.analysis import Gathered
from egalitarian.lab.config import Experiment
from egalitarian.lab.report.figures import curves, spectra, weights
from egalitarian.lab.report.figures.costs import draw_costs, draw_ratios
from egalitarian.lab.report.figures.style import CYCLE, OKABE_ITO, WIDTH, literal, look, mark, save, slim, styled

Draw = Callable[[Gathered, Sequence[Experiment], Sequence[str]], Figure]
FIGURES: dict[str, tuple[Draw, str]] = {
    "curves": (curves.draw_curves, curves.CURVES),
    "learning": (curves.draw_learning, curves.LEARNING),
    "shuffles": (curves.draw_shuffles, curves.SHUFFLES),
    "spectra": (spectra.draw_spectra, spectra.CAPTION),
    "distances": (weights.draw_distances, weights.DISTANCES),
    "trajectories": (weights.draw_trajectories, weights.TRAJECTORIES),
}

__all__ = [
    "CYCLE",
    "FIGURES",
    "OKABE_ITO",
    "WIDTH",
    "draw_costs",
    "draw_ratios",
    "literal",
    "look",
    "mark",
    "save",
    "slim",
    "styled",
]
