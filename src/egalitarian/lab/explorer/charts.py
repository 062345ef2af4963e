"""What the page's charts show, as options of ECharts: plain values, made of runs and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from egalitarian.lab.analysis import Plane
from egalitarian.lab.config import load_looks
from egalitarian.lab.explorer.toy import ToyLines
from egalitarian.lab.explorer.watched import Watched

Options = dict[str, Any]
CONTRAST = 4.5
"""Between a line and what is behind it; letters need as much."""


class Ink(NamedTuple):
    """Colours of a chart's own parts."""

    text: str
    grid: str
    paper: str


LIGHT = Ink("#333333", "#d9d9d9", "#ffffff")
DARK = Ink("#dddddd", "#4a4a4a", "#1b1d21")


def colours_of(runs: Sequence[Watched], ink: Ink) -> list[str]:
    """The colour of each run's method, as in figures. A method that is there twice gets another of its family."""
    looks, found = load_looks(), list[str]()
    for run in runs:
        method = run.request.loaded.method(run.request.method)
        own = looks.methods.get(run.request.method)
        family = looks.families[looks.family_of(method)].colours
        candidates = [*([own.colour] if own else []), *family, *looks.cycle]
        found.append(next((each for each in candidates if each not in found), candidates[0]))
    return [readable(colour, ink.paper) for colour in found]


def readable(colour: str, paper: str) -> str:
    """The colour, moved towards white or black until it stands out from the paper."""
    parts = _parts(colour)
    end = 255.0 if _luminance(_parts(paper)) < 0.2 else 0.0
    for step in range(21):
        mixed = [part + (end - part) * step / 20 for part in parts]
        if contrast(mixed, _parts(paper)) >= CONTRAST:
            break
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """As the accessibility guidelines define it, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _parts(colour: str) -> list[float]:
    return [float(int(colour[at : at + 2], 16)) for at in (1, 3, 5)]


def _luminance(parts: Sequence[float]) -> float:
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _chart(ink: Ink, what: str, x: Options, y: Options, series: Sequence[Options], **more: Any) -> Options:
    """A chart without animation, with a legend above, and with a description for screen readers."""
    return {
        "animation": False,
        "textStyle": {"color": ink.text, "fontFamily": "inherit"},
        "grid": {"left": 62, "right": 24, "top": 48, "bottom": 52},
        "legend": {"type": "scroll", "top": 4, "textStyle": {"color": ink.text}, "inactiveColor": ink.grid},
        "aria": {"enabled": True, "label": {"description": what}},
        "xAxis": _axis(ink, x) | {"nameGap": 30},
        "yAxis": _axis(ink, y) | {"nameGap": 46},
        "series": list(series) or [_line("none", "", ink.text, [])],  # without any, ECharts shows no axes
        **more,
    }


def _axis(ink: Ink, own: Options) -> Options:
    return {
        "type": "value",
        "nameLocation": "middle",
        "nameTextStyle": {"color": ink.text},
        "axisLabel": {"color": ink.text, "hideOverlap": True},
        "axisLine": {"onZero": False, "lineStyle": {"color": ink.text}},
        "splitLine": {"lineStyle": {"color": ink.grid}},
        "minorSplitLine": {"show": False},
        **own,
    }


def _line(key: str, name: str, colour: str, data: Sequence[Any], kind: str = "solid", **more: Any) -> Options:
    style = {"color": colour, "width": 2, "type": kind}
    return {
        "id": key,
        "name": name,
        "type": "line",
        "showSymbol": False,
        "itemStyle": {"color": colour},
        "lineStyle": style,
        "emphasis": {"disabled": True},
        "data": data,
        **more,
    }


def _points(key: str, name: str, colour: str, data: Sequence[Any]) -> Options:
    return {**_line(key, name, colour, data), "type": "scatter", "symbolSize": 6}


def _mark(ink: Ink, marks: Sequence[Options], colour: str) -> Options:
    """Dashed lines across a chart, each with a label."""
    return {
        "silent": True,
        "symbol": "none",
        "animation": False,
        "data": list(marks),
        "label": {"color": ink.text},
        "lineStyle": {"color": colour, "type": "dashed", "width": 1},
    }


class Drawn(NamedTuple):
    """A run, and how it is drawn in every chart of the page."""

    run: Watched
    name: str
    """The title, with what tells runs of the same title apart."""
    colour: str

    @property
    def key(self) -> str:
        return str(self.run.key)


def drawn(runs: Sequence[Watched], ink: Ink) -> list[Drawn]:
    titles, colours, found = [run.title for run in runs], colours_of(runs, ink), list[Drawn]()
    for index, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        number = f" {titles[: index + 1].count(run.title)}" if titles.count(run.title) > 1 else ""
        found.append(Drawn(run, f"{run.title}{number}{' (recording)' if run.recording else ''}", colour))
    return found


# accuracy


def accuracy(runs: Sequence[Watched], ink: Ink, *, logarithmic: bool) -> Options:
    """Train accuracy dotted, test accuracy solid, over epochs trained."""
    series = [line for each in drawn(runs, ink) for line in _accuracy_lines(each, ink)]
    x: Options = {"name": "epochs trained", "min": 1 if logarithmic else 0, "type": "log" if logarithmic else "value"}
    y: Options = {"name": "accuracy in %", "min": 0, "max": 100}
    tooltip = {"trigger": "axis", ":valueFormatter": "value => value == null ? '' : Number(value).toFixed(1) + ' %'"}
    what = "Train and test accuracy by epochs trained. The list of runs below has the newest numbers."
    return _chart(ink, what, x, y, series, tooltip=tooltip)


def _accuracy_lines(each: Drawn, ink: Ink) -> list[Options]:
    """The two lines of one run. A line across marks the threshold, lines upwards the changes of settings."""
    run = each.run
    marks: list[Options] = [
        {"xAxis": epoch + 1, "label": {"formatter": change_text(values), "distance": 4 + 14 * (index % 2)}}
        for index, (epoch, values) in enumerate(run.changes)
    ]
    if run.threshold < 1:
        marks.append({"yAxis": 100 * run.threshold, "label": {"formatter": "passed", "position": "insideStartTop"}})
    test, train = newest(run)
    return [
        _line(test["id"], f"{each.name}, test", each.colour, test["data"], markLine=_mark(ink, marks, ink.text)),
        _line(train["id"], f"{each.name}, train", each.colour, train["data"], "dotted"),
    ]


def newest(run: Watched) -> list[Options]:
    """What of a run's two lines changes while it trains: test accuracy, then train accuracy, in per cent."""
    return [
        {
            "id": f"{run.key} {part}",
            "data": [
                [point[0] + 1, None if point[at] is None else round(100 * point[at], 2)] for point in run.curve.points
            ],
        }
        for part, at in (("test", 2), ("train", 1))
    ]


def change_text(values: Mapping[str, Any]) -> str:
    """What changed, in a few words."""
    words = [] if "transform" not in values else ["EGD on" if values["transform"] else "EGD off"]
    numbers = {key.rpartition(".")[2].replace("_", " "): value for key, value in values.items() if "." in key}
    return ", ".join([*words, *(f"{name} {value:g}" for name, value in numbers.items())])


# measures of the moment


def spectrum(runs: Sequence[Watched], ink: Ink) -> Options:
    """Singular values of the gradient, the largest first."""
    lines = [
        _line(each.key, each.name, each.colour, [[at, value] for at, value in each.run.singular_values if value])
        for each in drawn(runs, ink)
    ]
    x: Options = {"name": "direction, the strongest first", "min": 1}
    y: Options = {"name": "singular value", "type": "log", "axisLabel": {"color": ink.text, ":formatter": POWERS}}
    return _chart(ink, "Singular values of the gradient, the largest first.", x, y, lines)


POWERS = "value => value >= 0.01 && value < 1000 ? String(value) : value.toExponential(0)"


def fourier(runs: Sequence[Watched], ink: Ink) -> Options:
    """The share of each frequency in the weights that read the numbers."""
    bars: list[Options] = [
        {
            "id": each.key,
            "name": each.name,
            "type": "bar",
            "itemStyle": {"color": each.colour},
            "data": [None if share is None else round(100 * share, 2) for share in each.run.fourier],
        }
        for each in drawn(runs, ink)
        if each.run.fourier
    ]
    count = max((len(bar["data"]) for bar in bars), default=1)
    x: Options = {"name": "frequency", "type": "category", "data": [str(number) for number in range(1, count + 1)]}
    y: Options = {"name": "share of the power in %", "min": 0}
    return _chart(ink, "Fourier power of the weights by frequency, in per cent.", x, y, bars)


def path(found: tuple[Sequence[Watched], Plane] | None, runs: Sequence[Watched], ink: Ink) -> Options:
    """The weights' way from the start, in the plane in which the runs move the most."""
    shown, plane = found or ((), None)
    trajectories = {} if plane is None else {run.key: plane.trajectories[str(run.key)].points for run in shown}
    largest = max((float(abs(points).max()) for points in trajectories.values()), default=0.0)
    lines = []
    for each in drawn(runs, ink):
        if each.run.key in trajectories:
            rows = trajectories[each.run.key].tolist()
            points = [[_rounded(x, largest), _rounded(rest[0] if rest else 0.0, largest)] for x, *rest in rows]
            now = {"value": points[-1], "symbol": "circle", "symbolSize": 10}
            line = _line(each.key, each.name, each.colour, [*points[:-1], now])
            lines.append({**line, "showSymbol": True, "symbol": "circle", "symbolSize": 3})
    shares = [] if plane is None else plane.shares.tolist()
    texts = [f" ({share:.0%} of the movement)" for share in shares] + ["", ""]
    axes = [
        {"name": f"{name} direction{text}", "scale": True} for name, text in zip(("main", "second"), texts, strict=False)
    ]
    what = "The path of the weights from their start. The large dot is where they are now."
    return _chart(ink, what, axes[0], axes[1], lines)


def _rounded(value: float, largest: float) -> float:
    """To five digits of the largest: a picture shows no more, and what is left is noise."""
    return round(value, 4 - math.floor(math.log10(largest))) if largest else value


# the toy problem


def toy_errors(lines: Mapping[str, ToyLines], colours: Mapping[str, str], ink: Ink) -> Options:
    """Test error by step of each method: theory as a line, simulation as dots, the plateau's end as a line upwards."""
    series: list[Options] = []
    for name, own in lines.items():
        colour = readable(colours[name], ink.paper)
        end = {"xAxis": max(own.plateau, 1.0), "label": {"formatter": f"{name}: {own.plateau:.0f}"}}
        mark = _mark(ink, [end], colour)
        series.append(_line(f"{name} theory", f"{name}, theorem", colour, own.theory, markLine=mark))
        series.append(_points(f"{name} dots", f"{name}, simulation", colour, own.simulation))
    x: Options = {"name": "step", "type": "log", "min": 1}
    y: Options = {"name": "test error", "min": 0, "max": 1}
    return _chart(ink, "Test error of the toy problem by step.", x, y, series)


def data_alone(options: Options) -> Options:
    """The part of a chart that follows its numbers."""
    parts = ("id", "data", "markLine")
    return {"series": [{key: each[key] for key in parts if key in each} for each in options["series"]]}
