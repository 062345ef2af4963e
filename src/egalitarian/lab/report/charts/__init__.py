"""Interactive figures: numbers from analysis in, a `Chart` out, which the page's script draws. One for each kind of figure.

They have the methods, medians, bands and looks of the static figures, and every seed by itself.
"""

from collections.abc import Callable, Sequence

from egalitarian.lab.analysis import Gathered
from egalitarian.lab.config import Experiment
from egalitarian.lab.report.charts.curves import chart_curves, chart_learning, chart_shuffles
from egalitarian.lab.report.charts.measured import (
    chart_costs,
    chart_distances,
    chart_spectra,
    chart_tasks,
    chart_trajectories,
)
from egalitarian.lab.report.charts.parts import Arrays, Chart, Detail, chart_json

CHARTS: dict[str, Callable[[Gathered, Sequence[Experiment], Sequence[str]], Chart]] = {
    "curves": chart_curves,
    "costs": chart_costs,
    "learning": chart_learning,
    "shuffles": chart_shuffles,
    "spectra": chart_spectra,
    "distances": chart_distances,
    "trajectories": chart_trajectories,
}
"""By the kind of a report's figures. Fourier measures have none: power by frequency is a picture of colours."""

__all__ = ["CHARTS", "Arrays", "Chart", "Detail", "chart_json", "chart_tasks"]
