"""Draws the README's first picture, docs/grokking.png (`make figure`). Nothing is trained.

It reads results/provisional/: the test accuracies of `egalitarian run grokking --seeds 0-7`, epoch by epoch. A
line is the median over the seeds, a band reaches from the smallest to the largest. A seed's curve ends five epochs after it
has passed 95 %. From then on it counts at its last value, until the slowest seed ends. A label's number is the median of
`crossed` in summary.csv. Epochs count from 0, there and on the axis, which is linear up to 1 and then logarithmic.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from egalitarian.lab.report.figures import OKABE_ITO, styled

FOLDER = Path(__file__).parent
STORED = FOLDER.parent / "results" / "provisional"
EXPERIMENT = "grokking"
THRESHOLD, CHANCE = 0.95, 1 / 97
COLOURS = {"SGD": "#666666", "AdamW": OKABE_ITO["blue"], "EGD": OKABE_ITO["vermillion"]}
QUIET = "#595959"
PAPER = "paper's settings"
TITLE, SIZE, SMALL = 12, 10, 8.5
"""Points: a picture is eight inches wide, and 800 pixels on a page."""
PAD = 0.1  # inches of white around everything
TOP = 1.45
"""Of the accuracies' axis: the labels are above 1."""
KEY = (
    "solid: the best settings known",
    "dashed: the paper's settings",
    "line: median of 8 seeds",
    "band: smallest to largest",
    "dot: median epoch past 95 %",
)


class Drawn(NamedTuple):
    """How a method is drawn: its colour is its family's, its label stands in a row above the curves."""

    family: str
    variant: str
    row: int
    provisional: bool = False
    leftwards: bool = False

    @property
    def colour(self) -> str:
        return COLOURS[self.family]

    @property
    def dashes(self) -> str | tuple[int, tuple[float, float]]:
        return (0, (4, 1.5)) if self.variant == PAPER else "-"

    def label(self, epoch: float) -> str:
        name = ", ".join(filter(None, (self.family, self.variant)))
        return f"{name}: {epoch:g}{' (provisional)' if self.provisional else ''}"


METHODS = {
    "egd-both": Drawn("EGD", "both layers, momentum", 4, provisional=True),
    "adamw": Drawn("AdamW", "", 3, provisional=True),
    "egd-lr4": Drawn("EGD", "hidden layer", 2),
    "egd": Drawn("EGD", PAPER, 1),
    "sgd-lr8": Drawn("SGD", "best known", 0),
    "sgd": Drawn("SGD", PAPER, 2, leftwards=True),
}


def medians() -> dict[str, float]:
    """For each method the median epoch, counted from 0, at which a seed passes the threshold."""
    runs = pd.read_csv(STORED / "summary.csv")
    crossed = runs[runs.experiment == EXPERIMENT].groupby("method").crossed.median()
    return {name: float(crossed[name]) for name in METHODS}


@styled
def draw_grokking() -> Figure:
    """Test accuracy on addition mod 97 over epochs, with a label where each method passes the threshold."""
    stored = pd.read_csv(STORED / "curves.csv.gz")
    stored = stored[stored.experiment == EXPERIMENT]
    passed = medians()
    figure = Figure(figsize=(8, 4.9), layout=ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD))
    axis = figure.add_subplot()
    for name, drawn in METHODS.items():
        curves = stored[stored.method == name].pivot(index="epoch", columns="seed", values="test_accuracy").ffill()
        epochs, middle = curves.index.to_numpy(), curves.median(axis="columns").to_numpy()
        edges = curves.min(axis="columns"), curves.max(axis="columns")
        axis.fill_between(epochs, *edges, color=drawn.colour, alpha=0.25, linewidth=0)
        axis.plot(epochs, middle, color=drawn.colour, lw=1.8, ls=drawn.dashes, zorder=3)
        _flag(axis, drawn, passed[name], float(np.interp(passed[name], epochs, middle)))
    _lay_out(axis)
    figure.suptitle(_title(passed), size=TITLE)
    return figure


def _title(passed: dict[str, float]) -> str:
    """The smallest and the largest epoch of each family."""
    spans = {}
    for family in COLOURS:
        epochs = [passed[name] for name, drawn in METHODS.items() if drawn.family == family]
        spans[family] = " to ".join(f"{epoch:g}" for epoch in sorted({min(epochs), max(epochs)}))
    return "Addition mod 97: EGD groks at epoch {EGD}, AdamW at {AdamW}, SGD at {SGD}".format(**spans)


def _flag(axis: Axes, drawn: Drawn, epoch: float, height: float) -> None:
    """A dot on the line at the median epoch, hollow where that is provisional, and the label above it."""
    top = 1.07 + 0.08 * drawn.row
    axis.plot([epoch, epoch], [height, top + 0.04], color=drawn.colour, lw=0.8)
    face = "white" if drawn.provisional else drawn.colour
    axis.plot(epoch, height, "o", color=drawn.colour, markerfacecolor=face, markersize=6, zorder=5)
    side, shift = ("right", -4) if drawn.leftwards else ("left", 4)
    axis.annotate(
        drawn.label(epoch), (epoch, top), (shift, 0), textcoords="offset points", color=drawn.colour, size=SIZE, ha=side
    )


def _lay_out(axis: Axes) -> None:
    """The axes, and the two levels that matter."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.3, subs=range(2, 10))
    axis.set(xlim=(0, 7500), ylim=(-0.03, TOP))
    axis.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axis.spines.left.set_bounds(0, 1)
    axis.grid(visible=False)
    axis.tick_params(labelsize=SIZE)
    axis.set_xlabel("epoch, counted from 0 (logarithmic)", size=SIZE)
    axis.set_ylabel("test accuracy", size=SIZE, y=0.5 / TOP)
    for level, text in ((THRESHOLD, "threshold: 95 %"), (CHANCE, "chance: 1 in 97")):
        axis.axhline(level, color=QUIET, lw=0.8, ls=":")
        axis.annotate(text, (0, level), (4, 3), textcoords="offset points", color=QUIET, size=SMALL)
    axis.annotate("\n".join(KEY), (210, 0.6), color=QUIET, size=SMALL, va="center", linespacing=1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the picture")
    draw_grokking().savefig(parser.parse_args().out / "grokking.png", dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    main()
