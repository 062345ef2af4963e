"""The style of every figure: colours, matplotlib settings, a look for each method; and saving to small, equal files."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from egalitarian.lab.config import Experiment, Look, Method, load_looks
from egalitarian.lab.runs import write_atomically

P = ParamSpec("P")
R = TypeVar("R")

OKABE_ITO = load_looks().palette
"""A colour-blind-safe palette: colour codes by name."""
CYCLE = load_looks().cycle
"""Colours of series without one of their own, in this order."""
WIDTH = 6.5
"""Inches: the text width of a page."""
FOOT = 0.45
"""Inches: the height of the labels below the lowest panel."""
LETTER = 0.06
"""Inches: the average width of a letter in small print."""
SMALL = 7
"""Points: the font size of small print."""
LUMINANCE, DARK = (0.3, 0.59, 0.11), 0.42
"""The weights of red, green and blue in luminance, and the largest luminance that letters may have."""
RELATIVE, ON_DARK, GREY = np.array((0.2126, 0.7152, 0.0722)), 0.14, 0.02
"""The weights of linear red, green and blue; the least luminance on a dark page, for a contrast of 3; what is a grey."""
QUIET = "0.35"
"""The colour of everything that is not a method, such as levels and their names."""

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same outlines everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
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
PNG_COLOURS = 256
"""Enough for figures: they have few colours, and shades of them at the edges of lines."""


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Makes `draw` run with matplotlib's defaults and `RC`. The caller's rc values have no effect, and do not change."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(cast(Any, RC))  # its keys are literals to mypy
            return draw(*args, **kwargs)

    return inside


def looks_of(experiments: Sequence[Experiment], methods: Sequence[str]) -> dict[str, Look]:
    """How the methods of a figure look. The colour shows the family; methods of one colour have different line styles.

    A method without a look of its own gets the next free look of its family. So does one whose look an earlier method
    has. If a family runs out of looks, methods may differ by their markers only.
    """
    known, found = load_looks().methods, dict[str, Look]()
    for name in methods:
        own = known.get(name)
        if own is not None and _free(own, found):
            found[name] = own
    for index, name in enumerate(methods):
        if name not in found:
            found[name] = _next_look(index, load_looks().families[family_of(experiments, name)].colours, found)
    return {name: found[name] for name in methods}


def family_of(experiments: Sequence[Experiment], method: str) -> str:
    """The family of a method in the first of the experiments that has it; the last family if none has."""
    own = next((experiment.method(method) for experiment in experiments if method in experiment.methods), None)
    return list(load_looks().families)[-1] if own is None else load_looks().family_of(own)


def ink(colour: str) -> str:
    """The colour for letters: light colours are made darker, so that the letters can be read."""
    red, green, blue = to_rgb(colour)
    light = float(np.dot((red, green, blue), LUMINANCE))
    share = min(1.0, DARK / max(light, 1e-6))
    return to_hex((share * red, share * green, share * blue))


def on_dark(colour: str) -> str:
    """The colour for a dark page: greys change places with each other, and what is dark becomes lighter."""
    own = np.array(to_rgb(colour))
    if np.ptp(own) < GREY:
        own = 1 - own
    for share in np.linspace(0, 1, 41):
        mixed = own + share * (1 - own)
        linear = np.where(mixed <= 0.04045, mixed / 12.92, ((mixed + 0.055) / 1.055) ** 2.4)
        if linear @ RELATIVE >= ON_DARK:
            break
    return to_hex(mixed)


def family_colour(method: Method) -> str:
    """The first colour of a method's family."""
    return load_looks().families[load_looks().family_of(method)].colours[0]


def _free(wanted: Look, found: Mapping[str, Look]) -> bool:
    return all((wanted.colour, wanted.line) != (other.colour, other.line) for other in found.values())


def _next_look(index: int, colours: Sequence[str], found: Mapping[str, Look]) -> Look:
    marker = load_looks().markers[index % len(load_looks().markers)]
    every = [Look(colour=colour, marker=marker, line=line) for line, colour in product(load_looks().lines, colours)]
    return next((look for look in every if _free(look, found)), every[index % len(every)])


def literal(title: str) -> str:
    """A title with dollar signs escaped, so that matplotlib reads no formula in it."""
    return title.replace("$", r"\$")


def wrapped(text: str, inches: float) -> str:
    """Small print, broken into lines of at most this width."""
    return textwrap.fill(literal(text), max(8, int(inches / LETTER)))


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """Writes `path`.png and `path`.svg, without dates, so that the same figure gives the same bytes.

    Raises:
        ValueError: `path` has a suffix that would be doubled.
    """
    if path.suffix in (".png", ".svg"):
        raise ValueError(f"path must be without suffix, got {path}; .png and .svg are added")
    path.parent.mkdir(parents=True, exist_ok=True)
    undated: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    files = []
    for ending, metadata in undated.items():
        content = io.BytesIO()
        figure.savefig(content, format=ending, metadata=metadata)
        files.append(path.with_name(f"{path.name}.{ending}"))
        write_atomically(files[-1], content.getvalue())
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
    """The SVG with fewer bytes: rounded coordinates, short ids, no unused ids, comments, indentation or repeated styles."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_rounded(" ".join(found[1].split()))}"', text)
    text = re.sub(r' [xy]="[^"]*"|translate\([^)]*\)', lambda found: _rounded(found[0]), text)
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^")]+)', text))  # in order: their names depend on rounding errors
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    styles = dict(re.findall(r'<path id="([^"]*)"[^>]*? style="([^"]*)"', text))
    text = re.sub(
        r'(<use [^>]*?href="#([^"]*)"[^>]*?) style="([^"]*)"',
        lambda found: found[1] if styles.get(found[2]) == found[3] else found[0],
        text,
    )
    short = {name: f"i{index}" for index, name in enumerate(used)}
    text = re.sub(r"\n\s*", "\n", text)
    text = re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda found: found[1] + short[found[2]], text)
    return _without_bare_groups(text)


def _rounded(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), numbers)


def _without_bare_groups(text: str) -> str:
    """The SVG without groups that have no attribute, since these have no effect."""
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
