"""How every figure of the lab looks: Okabe-Ito colours, one set of rc values, files that come out the same byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib
from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
"""Okabe and Ito's colour-blind-safe palette; yellow is too light for lines on white."""

CYCLE = tuple(OKABE_ITO[name] for name in ("blue", "orange", "green", "vermillion", "purple", "sky", "black"))
"""For series without a meaning of their own, in this order."""

WIDTH = 6.5
"""Inches: the text width of a page."""

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same outlines everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.hashsalt": "egalitarian",
    "svg.fonttype": "path",
}


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """`draw` under matplotlib's defaults and `RC`; the caller's own rc values neither enter nor change."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(cast(Any, RC))  # its keys are literals to mypy
            return draw(*args, **kwargs)

    return inside


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """path.png and path.svg, without dates: the same figure gives the same bytes. `path` has no suffix.

    Raises:
        ValueError: `path` has a suffix that would be doubled.
    """
    if path.suffix in (".png", ".svg"):
        raise ValueError(f"path must be without suffix, got {path}; .png and .svg are added")
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(path.name + ending) for ending in (".png", ".svg")]
    figure.savefig(files[0], metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
