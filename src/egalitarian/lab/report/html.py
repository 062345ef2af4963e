"""The report as one HTML file: findings, tables by verdict, figures with their data, errata, environment, commands."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from egalitarian.lab.analysis import Cell, Verdict
from egalitarian.lab.report.charts import Arrays, Detail, chart_json
from egalitarian.lab.report.errata import errata_html, load_errata
from egalitarian.lab.report.findings import Finding
from egalitarian.lab.report.page import Page, Picture
from egalitarian.lab.report.render import Table, render_template

LIMIT = 8_000_000
"""Bytes of a page."""
DETAILS = (Detail(160, 60), Detail(90, 30), Detail(60, 0), Detail(24, 0))
"""The first with which the page is small enough is taken."""
SYMBOLS = {"inside": "✓", "outside": "✗", "known": "✗", "undecided": "?"}
"""Of kinds of verdicts; the others leave a cell open."""
OPEN = "…"


class Marked(NamedTuple):
    """A cell of a table, with the verdict on the number of the paper in it."""

    text: str
    kind: str = ""
    """Empty: none."""
    symbol: str = ""
    word: str = ""
    why: str = ""


@dataclass(frozen=True)
class Extras:
    """What the HTML page has and the Markdown pages do not."""

    top: Picture
    findings: tuple[Finding, ...]
    tuned: tuple[Table, ...]
    """The fair comparison."""
    commands: Mapping[str, str]
    """For each table those that train and write it."""
    report: str
    """The command that writes the report."""
    tune: str
    """The one that trains the fair comparison."""
    missing: tuple[tuple[str, str], ...]
    """Tables of runs that lack some, and the command that trains them."""


def html_page(page: Page, extras: Extras) -> str:
    """The page, smaller than `LIMIT`: with fewer points of each line if need be, then without some pictures."""
    verdicts = {verdict.cell: verdict for verdict in page.verdicts}
    pictures = (extras.top, *page.pictures)
    for detail in DETAILS:
        text = _render(page, extras, pictures, verdicts, detail)
        if _size(text) < LIMIT:
            return text
    while _size(text) >= LIMIT and any(picture.image for picture in pictures):
        heaviest = max(pictures, key=lambda picture: len(picture.image))
        pictures = tuple(picture._replace(image="") if picture is heaviest else picture for picture in pictures)
        text = _render(page, extras, pictures, verdicts, DETAILS[-1])
    return text


def _size(text: str) -> int:
    return len(text.encode())


def _render(
    page: Page, extras: Extras, pictures: Sequence[Picture], verdicts: Mapping[Cell, Verdict], detail: Detail
) -> str:
    def marked(table: Table) -> list[tuple[str, list[list[Marked]]]]:
        return [
            (block.heading, [_marked(row, cells, verdicts) for row, cells in block.with_cells]) for block in table.blocks
        ]

    return render_template(
        "report.html.j2",
        page=page,
        extras=extras,
        top=pictures[0],
        pictures=pictures[1:],
        marked=marked,
        detail=detail,
        errata=errata_html(load_errata()),
        css=_asset("report.css"),
        script=_asset("chart.js") + _asset("page.js"),
        data=_data(pictures, detail),
    )


def _asset(name: str) -> str:
    return (resources.files("egalitarian.lab.report") / "assets" / name).read_text(encoding="utf-8")


def _data(pictures: Sequence[Picture], detail: Detail) -> str:
    """The numbers of all charts as JSON that no script element ends in."""
    pool = Arrays()
    figures: dict[str, Any] = {
        picture.name: chart_json(picture.chart, pool, detail) for picture in pictures if picture.chart is not None
    }
    text = json.dumps({"figures": figures, "arrays": pool.arrays}, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


def _marked(row: Sequence[str], cells: Mapping[int, Cell], verdicts: Mapping[Cell, Verdict]) -> list[Marked]:
    made = []
    for place, text in enumerate(row):
        verdict = verdicts.get(cells[place]) if place in cells else None
        if verdict is None:
            made.append(Marked(text))
        else:
            kind = verdict.kind if verdict.kind in SYMBOLS else "open"
            made.append(Marked(text, kind, SYMBOLS.get(verdict.kind, OPEN), verdict.kind, _why(verdict)))
    return made


def _why(verdict: Verdict) -> str:
    """The paper's number, ours, the verdict, and the reason on record."""
    ours = f"{verdict.ours} ({verdict.spread})" if verdict.spread not in ("", verdict.ours) else verdict.ours
    parts = [f"{verdict.measure}: the paper has {verdict.paper}" + (f", we have {ours}" if ours else ""), verdict.verdict]
    if verdict.distance:
        parts.append(f"distance {verdict.distance} interquartile ranges")
    if verdict.contradicts:
        parts.append(f"on record it is {verdict.recorded}")
    elif verdict.why:
        parts.append(verdict.why)
    return ". ".join(parts) + "."


def embedded(files: Sequence[Path]) -> str:
    """The smallest of these pictures, as an address that holds it."""
    kinds = {".svg": "svg+xml", ".png": "png"}
    small = min(files, key=lambda file: file.stat().st_size)
    return f"data:image/{kinds[small.suffix]};base64,{base64.b64encode(small.read_bytes()).decode()}"
