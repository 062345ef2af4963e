"""A table as Markdown, CSV and LaTeX, and the templates of report/templates. Nothing here knows what is in a table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from egalitarian.lab.analysis import Cell, Value
from egalitarian.lab.report.errata import prose

LATEX_DELIMITERS = {
    "variable_start_string": "<<", "variable_end_string": ">>",
    "block_start_string": "<%", "block_end_string": "%>",
    "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip
"""Delimiters of .tex.j2 templates: LaTeX uses the usual ones itself."""
ESCAPES = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "×": r"$\times$",
    "≠": r"$\neq$",
    "–": "--",
    "…": r"\ldots{}",
    "σ": r"$\sigma$",
}
"""Characters that LaTeX cannot print as they are."""


@dataclass(frozen=True)
class Block:
    """Rows under a heading."""

    heading: str
    rows: tuple[tuple[str, ...], ...]
    cells: tuple[Mapping[int, Cell], ...] = ()
    """For each row, from columns to the number of the paper that is compared there; empty: none is."""

    @property
    def with_cells(self) -> list[tuple[tuple[str, ...], Mapping[int, Cell]]]:
        """Every row with its compared columns."""
        return [(row, self.cells[place] if self.cells else {}) for place, row in enumerate(self.rows)]


@dataclass(frozen=True)
class Table:
    """A table for readers (`columns`, `blocks`, `notes`), and the same as plain values (`records`)."""

    name: str
    """File name without suffix."""
    title: str
    number: str
    """Number in the paper; empty if not in it."""
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    records: tuple[Mapping[str, Value], ...]
    """One per row, the same keys in each."""

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}" if self.number else self.title


def markdown(table: Table, heading: str = "##") -> str:
    """A heading, the table with a bold line for each block, and the notes as a list."""
    lines = [f"{heading} {' '.join(table.heading.split())}", "", *markdown_lines(table.columns, table.blocks)]
    if table.notes:
        lines += ["", *[f"- {note}" for note in table.notes]]
    return "\n".join(lines) + "\n"


def markdown_lines(columns: Sequence[str], blocks: Sequence[Block], align: str = "") -> list[str]:
    """The lines of a Markdown table. `align` has an l or an r for each column; without it the reader's default counts."""
    rule = _markdown_row(["---"] * len(columns))
    if align:
        rule = "".join("|---:" if side == "r" else "|---" for side in align) + "|"
    lines = [_markdown_row(columns), rule]
    for block in blocks:
        if block.heading:
            lines.append(_markdown_row([f"**{block.heading}**", *[""] * (len(columns) - 1)]))
        lines += [_markdown_row(row) for row in block.rows]
    return lines


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def to_csv(records: Sequence[Mapping[str, Value]]) -> str:
    """One line per record under the keys of the first; an empty cell for None."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]) if records else ["nothing"], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: _csv_cell(value) for key, value in record.items()})
    return out.getvalue()


def _csv_cell(value: Value) -> str | int:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def latex(table: Table) -> str:
    """A `table` environment for booktabs, with the notes below it."""
    caption = f"{table.title} (the paper's {table.number})" if table.number else table.title
    return render_template("table.tex.j2", table=table, caption=caption)


def _latex_row(cells: Sequence[str]) -> str:
    """LaTeX takes a bracket or a star at the start of a row for an argument of the row before."""
    row = " & ".join(map(escape_latex, cells))
    return "{}" + row if row.startswith(("[", "*")) else row


def _latex_heading(text: str) -> str:
    """One line for each part of a column's name."""
    parts = [escape_latex(part) for part in re.split("[,:] ", text)]
    return parts[0] if len(parts) == 1 else "\\shortstack[r]{" + " \\\\ ".join(parts) + "}"


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(ESCAPES.get(sign, sign) for sign in text)


def render_template(template: str, **values: Any) -> str:
    """A template of report/templates with these values. HTML is escaped; LaTeX has its own delimiters and filters."""
    return _environment(template.removesuffix(".j2").rpartition(".")[2]).get_template(template).render(values)


@cache
def _environment(language: str) -> Environment:
    environment = Environment(
        loader=PackageLoader("egalitarian.lab.report", "templates"),
        autoescape=language == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **(LATEX_DELIMITERS if language == "tex" else {}),  # type: ignore[arg-type]
    )
    environment.filters |= {"latex": escape_latex, "latex_heading": _latex_heading, "latex_row": _latex_row}
    environment.filters |= {"prose": prose}
    return environment
