"""The style of every figure: palette, one set of rc values, a look for each method, small files with the same bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from egalitarian.lab.config import Look, load_looks

P = ParamSpec("P")
R = TypeVar("R")

OKABE_ITO = load_looks().palette
"""Colour-blind-safe, by name."""
CYCLE = load_looks().cycle
"""For series without a colour of their own, in this order."""
MANY = tuple(to_hex(colormaps["tab20"](index)) for index in (*range(0, 20, 2), *range(1, 20, 2)))
"""Ten colours, and ten paler ones, for figures with more methods than the palette has colours."""
APART = 0.2
"""The distance in RGB above which two colours can be distinguished."""
WIDTH = 6.5
"""Inches: the text width of a page."""
PNG_COLOURS = 256
"""Figures have few colours, and shades of them at the edges of lines."""

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
    """`draw` under matplotlib's defaults and `RC`. The caller's rc values have no effect, and do not change."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(cast(Any, RC))  # its keys are literals to mypy
            return draw(*args, **kwargs)

    return inside


def look(method: str, methods: Sequence[str]) -> Look:
    """The look of a method among those of a figure.

    Some methods have no look of their own, or the colour of an earlier one. They take the colours of the palette that are
    left. If these are too few, they take others that are not colour-blind-safe, and then a scale from dark to light.
    """
    known: dict[str, Look] = {}
    for name in methods:
        own = load_looks().methods.get(name)
        if own is not None and own.colour not in {other.colour for other in known.values()}:
            known[name] = own
    if method in known:
        return known[method]
    others = [name for name in methods if name not in known]
    taken = {own.colour for own in known.values()}
    colours = [colour for colour in CYCLE if colour not in taken]
    if len(colours) < len(others):
        colours = [colour for colour in MANY if all(_distance(colour, other) > APART for other in taken)]
    if len(colours) < len(others):
        colours = [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.12, 0.92, len(others)))]
    index, markers = others.index(method), load_looks().markers
    return Look(colour=colours[index], marker=markers[index % len(markers)])


def _distance(colour: str, other: str) -> float:
    """In RGB."""
    return float(np.linalg.norm(np.subtract(to_rgb(colour), to_rgb(other))))


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """Writes path.png and path.svg without dates, so that the same figure gives the same bytes. `path` has no suffix.

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


def slim(path: Path) -> None:
    """Rewrites a PNG or SVG in fewer bytes, small enough to be committed. The picture stays the same."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(PNG_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    else:
        path.write_text(slim_svg(path.read_text(encoding="utf-8")), encoding="utf-8")


def slim_svg(text: str) -> str:
    """Coordinates to a hundredth of a point, short ids and no unused ones, no comments, indentation, repeated styles."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_rounded(" ".join(found[1].split()))}"', text)
    text = re.sub(r' [xy]="[^"]*"|translate\([^)]*\)', lambda found: _rounded(found[0]), text)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    styles = dict(re.findall(r'<path id="([^"]*)"[^>]*? style="([^"]*)"', text))
    text = re.sub(
        r'(<use [^>]*?href="#([^"]*)"[^>]*?) style="([^"]*)"',
        lambda found: found[1] if styles.get(found[2]) == found[3] else found[0],
        text,
    )
    short = {name: f"i{index}" for index, name in enumerate(sorted(used))}
    text = re.sub(r"\n\s*", "\n", text)
    text = re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda found: found[1] + short[found[2]], text)
    return _without_bare_groups(text)


def _rounded(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), numbers)


def _without_bare_groups(text: str) -> str:
    """Without groups that have no attribute: they have no effect."""
    lines, bare = [], []
    for line in text.split("\n"):
        if line == "<g/>":
            continue
        if line.startswith("<g") and not line.endswith("/>"):
            bare.append(line == "<g>")
        if line == "<g>" or (line == "</g>" and bare.pop()):
            continue
        lines.append(line)
    return "\n".join(lines)
