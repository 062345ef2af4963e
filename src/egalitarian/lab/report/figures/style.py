"""The style of every figure: palette, one set of rc values, a look for each method, small files with the same bytes."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from PIL import Image

from egalitarian.lab.analysis import Array, Band, Gathered, estimate
from egalitarian.lab.config import Experiment, Look, load_looks
from egalitarian.lab.runs import write_atomically

P = ParamSpec("P")
R = TypeVar("R")

OKABE_ITO = load_looks().palette
"""Colour-blind-safe, by name."""
CYCLE = load_looks().cycle
"""For series without a colour of their own, in this order."""
MORE_COLOURS = tuple(to_hex(colormaps["tab20"](index)) for index in (*range(0, 20, 2), *range(1, 20, 2)))
"""Ten colours, and ten paler ones, for figures with more methods than the palette has colours."""
APART = 0.2
"""The distance in RGB above which two colours can be distinguished."""
WIDTH = 6.5
"""Inches: the text width of a page."""
PNG_COLOURS = 256
"""Figures have few colours, and shades of them at the edges of lines."""
SPARSE = 25
"""Points per decade on the edges of a band: the SVG writer simplifies lines, but not bands."""
LETTER, KEY = 0.05, 0.5
"""Inches: an average letter of a legend, and the line before a label."""
TALL = 8
"""Labels of a legend in one column; with more of them, the figure is widened."""

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
        stored = load_looks().methods.get(name)
        if stored is not None and stored.colour not in {other.colour for other in known.values()}:
            known[name] = stored
    if method in known:
        return known[method]
    others = [name for name in methods if name not in known]
    taken = {other.colour for other in known.values()}
    colours = [colour for colour in CYCLE if colour not in taken]
    if len(colours) < len(others):
        colours = [colour for colour in MORE_COLOURS if all(_distance(colour, other) > APART for other in taken)]
    if len(colours) < len(others):
        colours = [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.12, 0.92, len(others)))]
    index, markers = others.index(method), load_looks().markers
    return Look(colour=colours[index], marker=markers[index % len(markers)])


def _distance(colour: str, other: str) -> float:
    """In RGB."""
    return float(np.linalg.norm(np.subtract(to_rgb(colour), to_rgb(other))))


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


def titles_of(gathered: Gathered, experiments: Sequence[Experiment], methods: Sequence[str]) -> dict[str, str]:
    """The methods that have runs of any of the experiments, with their titles in the first of these."""
    run = {
        method: literal(experiment.methods[method].title)
        for experiment in reversed(experiments)
        for method in gathered.methods_run(experiment.name, methods)
    }
    return {method: run[method] for method in methods if method in run}


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


def mark(axis: Axes, x: float | Array, y: float | Array, drawn: Look) -> None:
    """A method's marker, where it passes the threshold or its line ends."""
    axis.plot(x, y, drawn.marker, color=drawn.colour, markeredgecolor="white", markersize=5.5, zorder=5)


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
    for method, title in titles.items() if experiment.measure.has_threshold else ():
        found = estimate(gathered.of(experiment.name, method))
        if found.failed:
            share = f"{found.passed} of {found.n} pass".replace(" ", "\N{NO-BREAK SPACE}")
            alike.setdefault(f"{share}{', unfinished' if found.unfinished else ''}", []).append(title)
    for share, names in alike.items():
        yield f"{names[0]}: {share}" if len(names) == 1 else f"{share}: {'; '.join(names)}"


def add_remarks(axes: Sequence[Axes], remarks: Sequence[Sequence[str]], panels: int | None = None) -> None:
    """Remarks on each panel, below the label of its axis. The figure grows by their height.

    Args:
        panels: in one row of the figure, if these are not all of `axes`.
    """
    width = round(1.2 * _letters(panels or len(axes)))  # their letters are smaller than those of a title
    lines = [[line for remark in of_panel for line in textwrap.wrap(remark, width)] for of_panel in remarks]
    for axis, of_panel in zip(axes, lines, strict=True):
        axis.set_xlabel("\n".join([axis.get_xlabel(), *of_panel]))
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


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """Writes path.png and path.svg without dates, so that the same figure gives the same bytes. `path` has no suffix.

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
