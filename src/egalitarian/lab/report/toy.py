"""The toy problem's report: every claim against simulation, as CSV, and the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from egalitarian.lab.config import load_looks
from egalitarian.lab.report.figures import CYCLE, OKABE_ITO, WIDTH, save, styled
from egalitarian.lab.report.render import to_csv
from egalitarian.lab.runs import OTHER_FOLDER, writable, write_atomically
from egalitarian.lab.theory import (
    ClaimSummary,
    Cloud,
    CloudSettings,
    Curve,
    CurveSettings,
    EqualCurveSettings,
    PlateauCurve,
    PlateauSettings,
    ShiftedProblem,
    ToyClaim,
    check_eps,
    clouds,
    equal_curves,
    load_settings,
    plateaus_over_eps,
    plateaus_over_zeta,
    shift_curves,
    summarize,
    toy_claims,
)

LINE: dict[str, Any] = {"color": "0.25", "linewidth": 1.4}
MARK: dict[str, Any] = {"color": "0.25", "marker": "o", "linestyle": "none", "markerfacecolor": "none"}
METHODS = ("GD", "EGD")
"""In Section 3: one column of panels each."""
MOST_EPS = 6
"""Rows of curves that fit on a page."""


@dataclass(frozen=True)
class ToyReport:
    """Every row of the claims, a summary of each claim, and the files."""

    claims: list[ToyClaim]
    summary: list[ClaimSummary]
    figures: list[Path]
    table: Path
    """Every row, as CSV."""

    @property
    def files(self) -> list[Path]:
        return [*self.figures, self.table]

    @property
    def printed(self) -> Counter[str]:
        """Claims by whether they hold as printed: at all points of their grid, `in part`, or at none (`fail`)."""
        held: dict[str, list[bool]] = {}
        for row in self.claims:
            held.setdefault(row.claim, []).append(row.verdict == "holds")
        return Counter("hold" if all(each) else "in part" if any(each) else "fail" for each in held.values())

    @property
    def corrected(self) -> int:
        """Claims that hold as corrected, at all points of their grid."""
        return len(
            {row.claim for row in self.summary} - {row.claim for row in self.summary if row.corrected_holds < row.points}
        )


def toy_report(eps: Sequence[float] | None = None, out: Path = Path("toy"), quick: bool = False) -> ToyReport:
    """Writes every claim of the toy problem against simulation, as CSV, and the four figures into `out`.

    Args:
        eps: the values of the GD and EGD curves; by default those of toy.toml. The claims have their own grid.
        out: a folder, which is created if it does not exist.
        quick: smaller grids and samples, for seconds instead of a minute.

    Raises:
        ValueError: an eps outside (0, 1], none, or more than six; `out` is a file.
        StoreError: `out` cannot be written.
    """
    if eps is not None:
        check_grid(eps)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}; name another")
    table = out / "toy-claims.csv"
    with writable(out, OTHER_FOLDER):
        out.mkdir(parents=True, exist_ok=True)  # before the simulation, which takes a minute
        figures = draw_all(out, quick, eps)
        claims = toy_claims(quick=quick)
        write_atomically(table, to_csv([{**asdict(row), "verdict": row.verdict} for row in claims]))
    return ToyReport(claims, summarize(claims), figures, table)


def draw_all(out: Path, quick: bool, eps: Sequence[float] | None = None) -> list[Path]:
    """Simulates and writes toy-clouds, toy-curves, toy-equal and toy-plateaus, each as PNG and SVG, into `out`."""
    curves = load_settings(CurveSettings, quick=quick)
    rows = [shift_curves(curves, one) for one in check_grid(curves.eps if eps is None else eps)]
    equal = load_settings(EqualCurveSettings, quick=quick)
    lengths = load_settings(PlateauSettings, quick=quick)
    figures = {
        "toy-clouds": draw_clouds(clouds(load_settings(CloudSettings, quick=quick))),
        "toy-curves": draw_shift_curves(rows, curves),
        "toy-equal": draw_equal_curves([equal_curves(equal, one) for one in equal.eps], equal),
        "toy-plateaus": draw_plateaus(plateaus_over_eps(lengths), plateaus_over_zeta(lengths), lengths),
    }
    return [file for name, figure in figures.items() for file in save(figure, out / name)]


def check_grid(eps: Sequence[float]) -> tuple[float, ...]:
    """One to six different values in (0, 1], largest first."""
    values = tuple(eps)
    for value in values:
        check_eps(value)
    if not 1 <= len(values) <= MOST_EPS or len(set(values)) < len(values):
        shown = ", ".join(f"{value:g}" for value in values) or "none"
        raise ValueError(f"eps must be 1 to {MOST_EPS} different values, got {shown}; each is one row of the figure")
    return tuple(sorted(values, reverse=True))


@styled
def draw_clouds(pair: Sequence[Cloud]) -> Figure:
    """Left Section 3's points, right the appendix's: training as circles, test as stars, colour by label."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("Section 3: training and test laws differ", "Appendix: one law")
    for axis, cloud, title in zip(axes, pair, titles, strict=True):
        _cloud(axis, cloud)
        axis.set_title(title)
    axes[0].set_ylabel(r"slow feature $x^{(2)}$")
    handles = [
        Line2D([], [], marker="o", linestyle="none", markerfacecolor="none", color="0.3", label="training"),
        Line2D([], [], marker="*", linestyle="none", markersize=6, color="0.3", label="test"),
        Line2D([], [], marker="s", linestyle="none", color=OKABE_ITO["blue"], label="$y=+1$"),
        Line2D([], [], marker="s", linestyle="none", color=OKABE_ITO["vermillion"], label="$y=-1$"),
        Line2D([], [], color="0.2", linewidth=1.2, label="true boundary"),
        Line2D([], [], color="0.2", linewidth=0.8, linestyle="--", label=r"margin $\pm s$"),
        Line2D([], [], color=OKABE_ITO["green"], linewidth=1.0, label=r"$x^\top v=0$"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, columnspacing=1.0, handletextpad=0.4)
    return figure


def _cloud(axis: Axes, cloud: Cloud) -> None:
    problem, extent = cloud.problem, 3.3
    for points, marker, size, hollow in ((cloud.train, "o", 9, True), (cloud.test, "*", 14, False)):
        colours = [OKABE_ITO["blue" if x >= 0 else "vermillion"] for x in points[:, 0]]
        face = "none" if hollow else colours
        axis.scatter(points[:, 0], points[:, 1], s=size, marker=marker, facecolors=face, edgecolors=colours, linewidths=0.5)
    axis.axvline(0, color="0.2", linewidth=1.2)
    if isinstance(problem, ShiftedProblem):
        for side in (-problem.s, problem.s):
            axis.axvline(side, color="0.2", linewidth=0.8, linestyle="--")
    across = np.array([-1.0, 1.0]) * 1.2
    axis.plot(across, -across / math.tan(problem.theta), color=OKABE_ITO["green"], linewidth=1.0)
    axis.set(xlim=(-extent, extent), ylim=(-1.25, 1.25), xlabel=r"fast feature $x^{(1)}$")
    axis.grid(visible=False)
    margin = f", $s$ = {problem.s:g}" if isinstance(problem, ShiftedProblem) else ""
    corner = rf"$\varepsilon$ = {problem.eps:g}, {_angle(problem.theta)}{margin}"
    axis.text(0.98, 0.97, corner, transform=axis.transAxes, ha="right", va="top", fontsize=7)


def _angle(theta: float) -> str:
    return rf"$\theta$ = {theta / math.pi:g}$\,\pi$"


def _made_with(settings: EqualCurveSettings | PlateauSettings) -> str:
    """The settings that all panels of a figure share, for its title."""
    margin = f", $s$ = {settings.s:g}" if isinstance(settings, CurveSettings | PlateauSettings) else ""
    start = settings.start if isinstance(settings, EqualCurveSettings) else math.pi / 2
    where = r"$w(0) = \zeta e_2$" if start == math.pi / 2 else rf"$w(0)$ of size $\zeta$ at {start / math.pi:g}$\,\pi$"
    size = f"{settings.samples:,}".replace(",", r"\,")
    return rf"{_angle(settings.theta)}{margin}, $\eta$ = {settings.eta:g}, {where}; $n$ = ${size}$, {settings.seeds} seeds"


@styled
def draw_shift_curves(rows: Sequence[Sequence[Curve]], settings: CurveSettings) -> Figure:
    """Test error of GD (left) and EGD (right) against the step, one row per eps, one colour per zeta."""
    figure = Figure(figsize=(WIDTH, 0.9 + 2.0 * len(rows)), layout="constrained")
    figure.suptitle(_made_with(settings), fontsize=8)
    axes = figure.subplots(len(rows), 2, sharex="row", sharey=True, squeeze=False)
    for line, curves in zip(axes, rows, strict=True):
        colours = _colours(curves)
        for curve in curves:
            axis = line[list(METHODS).index(curve.method)]
            if curve.train is not None:
                axis.plot(curve.steps, curve.train, color=colours[curve.zeta], linewidth=0.9, linestyle=":")
            _curve(axis, curve, colours[curve.zeta])
        for axis, name in zip(line, METHODS, strict=True):
            axis.set_title(rf"{load_looks().toy[name].title}, $\varepsilon$ = {curves[0].eps:g}")
        line[0].set_ylabel("error")
    for axis in axes[-1]:
        axis.set_xlabel("step $k$")
    handles = [
        *_zetas(rows[0]),
        *_kinds("test, theory", "test, simulation"),
        Line2D([], [], color="0.25", linewidth=0.9, linestyle=":", label="training, theory"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.0, handlelength=1.6)
    return figure


@styled
def draw_equal_curves(rows: Sequence[Sequence[Curve]], settings: EqualCurveSettings) -> Figure:
    """The appendix: simulation, the corrected theory and the theory as printed, one panel per eps."""
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    figure.suptitle(_made_with(settings), fontsize=8)
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axis, curves in zip(axes, rows, strict=True):
        colours = _colours(curves)
        for curve in curves:
            if curve.printed is not None:
                axis.plot(curve.steps, curve.printed, color=colours[curve.zeta], linewidth=1.0, linestyle="--")
            _curve(axis, curve, colours[curve.zeta])
        axis.set_title(rf"{load_looks().toy['appendix'].title}, $\varepsilon$ = {curves[0].eps:g}")
        axis.set_xlabel("step $k$")
    axes[0].set_ylabel("test error")
    printed = Line2D([], [], color="0.25", linewidth=1.0, linestyle="--", label="as printed")
    handles = [*_zetas(rows[0]), *_kinds("theory, corrected", "simulation"), printed]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.0, handlelength=1.8)
    return figure


def _curve(axis: Axes, curve: Curve, colour: str) -> None:
    low, high = curve.simulated.min(axis=0), curve.simulated.max(axis=0)
    axis.fill_between(curve.marks, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(curve.steps, curve.theory, color=colour)
    axis.plot(curve.marks, curve.simulated.mean(axis=0), color=colour, **{k: v for k, v in MARK.items() if k != "color"})
    axis.set(xscale="log", ylim=(-0.04, 1.06))


def _colours(curves: Sequence[Curve]) -> dict[float, str]:
    zetas = sorted({curve.zeta for curve in curves})
    return {zeta: CYCLE[i % len(CYCLE)] for i, zeta in enumerate(zetas)}


def _zetas(curves: Sequence[Curve]) -> list[Line2D]:
    return [Line2D([], [], color=c, linewidth=3, label=rf"$\zeta$ = {zeta:g}") for zeta, c in _colours(curves).items()]


def _kinds(theory: str, simulation: str) -> list[Line2D]:
    return [Line2D([], [], **LINE, label=theory), Line2D([], [], **MARK, label=f"{simulation} (band: seeds)")]


@styled
def draw_plateaus(over_eps: Sequence[PlateauCurve], over_zeta: Sequence[PlateauCurve], settings: PlateauSettings) -> Figure:
    """Plateau length against 1/eps and against zeta: Section 3 above, the appendix below."""
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    figure.suptitle(_made_with(settings), fontsize=8)
    axes = figure.subplots(2, 2, sharex="col")
    series = load_looks().toy
    for column, curves in enumerate((over_eps, over_zeta)):
        for curve in curves:
            _plateau_curve(axes[int(curve.name == "appendix"), column], curve, series[curve.name].colour)
    _guide(axes[0, 0], over_eps[0], 1.0, r"$\propto 1/\varepsilon$")
    _guide(axes[1, 0], over_eps[2], 0.5, r"$\propto 1/\sqrt{\varepsilon}$")
    for line, name in zip(axes, ("Section 3", "Appendix (one law, no $s$)"), strict=True):
        line[0].set_title(rf"{name}, $\zeta$ = {settings.fixed_zeta:g}")
        line[1].set_title(rf"{name}, $\varepsilon$ = {settings.fixed_eps:g}")
    for line in axes:
        line[0].set_ylabel(r"plateau length $k_*$, steps")
    axes[1, 0].set_xlabel(r"$1/\varepsilon$")
    axes[1, 1].set_xlabel(r"size of the start $\zeta$")
    handles = [Line2D([], [], color=each.colour, linewidth=3, label=each.title) for each in series.values()]
    handles += [
        Line2D([], [], **LINE, label="theory, corrected"),
        Line2D([], [], **LINE | {"linestyle": "--", "linewidth": 1.0}, label="as printed"),
        Line2D([], [], **MARK, label="simulation (bars: seeds)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.0, handlelength=1.8)
    return figure


def _plateau_curve(axis: Axes, curve: PlateauCurve, colour: str) -> None:
    if curve.printed is not None:
        axis.plot(curve.x, curve.printed, color=colour, linewidth=1.0, linestyle="--")
    axis.plot(curve.x, curve.theory, color=colour)
    mean = curve.simulated.mean(axis=0)
    bars = np.stack([mean - curve.simulated.min(axis=0), curve.simulated.max(axis=0) - mean])
    axis.errorbar(curve.x, mean, yerr=bars, fmt="o", color=colour, markerfacecolor="none", capsize=2, elinewidth=0.8)
    axis.set(xscale="log", yscale="log")


def _guide(axis: Axes, curve: PlateauCurve, exponent: float, label: str) -> None:
    """A grey line of the given slope above the last points, for comparison."""
    x = curve.x[-3:]
    y = 2.5 * curve.theory[-1] * (x / x[-1]) ** exponent
    axis.plot(x, y, color="0.5", linewidth=0.9)
    axis.annotate(label, (x[0], y[0]), xytext=(-2, 2), textcoords="offset points", ha="right", fontsize=7, color="0.35")
