"""The toy problem's report: claims against simulation, and the figures. `toy_report` is what `egalitarian toy` calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from egalitarian.lab.report.figures.style import save
from egalitarian.lab.report.figures.toy import draw_clouds, draw_curves, draw_equal_curves, draw_plateaus
from egalitarian.lab.report.render import to_csv
from egalitarian.lab.theory.claims import Summary, ToyClaim, summarize, toy_claims
from egalitarian.lab.theory.curves import (
    clouds,
    equal_curves,
    plateaus_over_eps,
    plateaus_over_zeta,
    shift_curves,
)
from egalitarian.lab.theory.problem import check_eps
from egalitarian.lab.theory.settings import CloudSettings, CurveSettings, EqualCurveSettings, PlateauSettings, load

MOST_EPS = 6
"""Rows of curves that still fit on a page."""


@dataclass(frozen=True)
class ToyReport:
    """What `toy_report` found and drew: every row, the rows gathered by claim, the files."""

    claims: list[ToyClaim]
    summary: list[Summary]
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


def draw_all(out: Path, quick: bool, eps: Sequence[float] | None = None) -> list[Path]:
    """Simulates and writes toy-clouds, toy-curves, toy-equal and toy-plateaus, each as PNG and SVG, into `out`."""
    curves = load(CurveSettings, quick=quick)
    rows = [shift_curves(curves, one) for one in check_grid(curves.eps if eps is None else eps)]
    equal = load(EqualCurveSettings, quick=quick)
    lengths = load(PlateauSettings, quick=quick)
    figures = {
        "toy-clouds": draw_clouds(clouds(load(CloudSettings, quick=quick))),
        "toy-curves": draw_curves(rows, curves),
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


def toy_report(eps: Sequence[float] | None = None, out: Path = Path("toy"), quick: bool = False) -> ToyReport:
    """Every claim of the toy problem against simulation, as CSV, and the four figures, written into `out`.

    Args:
        eps: the values the GD and EGD curves are drawn for; by default those of toy.toml. The claims have their own grid.
        out: a folder; made if it is not there.
        quick: smaller grids and samples, seconds instead of a minute.

    Raises:
        ValueError: an eps outside (0, 1], none, or more than six; `out` is a file.
    """
    if eps is not None:
        check_grid(eps)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}; name another")
    figures = draw_all(out, quick, eps)
    claims = toy_claims(quick=quick)
    table = out / "toy-claims.csv"
    table.write_text(to_csv([{**asdict(row), "verdict": row.verdict} for row in claims]), encoding="utf-8")
    return ToyReport(claims, summarize(claims), figures, table)
