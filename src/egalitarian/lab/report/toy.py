"""The toy problem's report: every claim against simulation, as CSV, and the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from egalitarian.lab.report.figures import draw_clouds, draw_equal_curves, draw_plateaus, draw_shift_curves, save
from egalitarian.lab.report.render import to_csv
from egalitarian.lab.theory import (
    ClaimSummary,
    CloudSettings,
    CurveSettings,
    EqualCurveSettings,
    PlateauSettings,
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


def toy_report(eps: Sequence[float] | None = None, out: Path = Path("toy"), quick: bool = False) -> ToyReport:
    """Writes every claim of the toy problem against simulation, as CSV, and the four figures into `out`.

    Args:
        eps: the values of the GD and EGD curves; by default those of toy.toml. The claims have their own grid.
        out: a folder, which is created if it does not exist.
        quick: smaller grids and samples, for seconds instead of a minute.

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
