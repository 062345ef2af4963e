"""A table as Markdown, CSV and LaTeX. Knows how a table is written, not what stands in it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | None


@dataclass(frozen=True)
class Block:
    """Rows under a heading."""

    heading: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table for people (`columns`, `blocks`, `notes`), and the same as plain numbers (`records`)."""

    name: str
    """Of its files."""
    title: str
    number: str
    """In the paper; empty: ours."""
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    records: tuple[Mapping[str, Value], ...]
    """One per row, the same keys in each."""

    @property
    def heading(self) -> str:
        return f"{self.number}. {self.title}" if self.number else self.title


def markdown(table: Table, heading: str = "##") -> str:
    """A heading, one table with a bold line for each block, and the notes as a list."""
    lines = [f"{heading} {' '.join(table.heading.split())}", ""]
    lines += [_markdown_row(table.columns), _markdown_row(["---"] * len(table.columns))]
    for block in table.blocks:
        if block.heading:
            lines.append(_markdown_row([f"**{block.heading}**", *[""] * (len(table.columns) - 1)]))
        lines += [_markdown_row(row) for row in block.rows]
    if table.notes:
        lines += ["", *[f"- {note}" for note in table.notes]]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def to_csv(records: Sequence[Mapping[str, Value]]) -> str:
    """One line per record under the keys of the first; nothing where there is no value."""
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
    """A `table` environment for booktabs; notes follow the caption."""
    width = len(table.columns)
    caption = f"{table.title} (the paper's {table.number})" if table.number else table.title
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        "\\footnotesize",
        f"\\caption{{{escaped(caption)}.}}",
    ]
    lines += [
        "\\setlength{\\tabcolsep}{4pt}",
        f"\\label{{tab:{table.name}}}",
        f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}",
        "\\toprule",
    ]
    lines += [" & ".join(map(_latex_heading, table.columns)) + " \\\\", "\\midrule"]
    for place, block in enumerate(table.blocks):
        if place:
            lines.append("\\midrule")
        if block.heading:
            lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textit{{{escaped(block.heading)}}}}} \\\\")
        lines += [_latex_row(row) for row in block.rows]
    lines += ["\\bottomrule", "\\end{tabular}"]
    if table.notes:
        lines.append("\\par\\smallskip\\begin{minipage}{\\linewidth}\\footnotesize")
        lines += [f"{escaped(note)}.\\par" for note in table.notes]
        lines.append("\\end{minipage}")
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    """A bracket or a star right after the end of the row before would be taken for that one's."""
    row = " & ".join(map(escaped, cells)) + " \\\\"
    return "{}" + row if row.startswith(("[", "*")) else row


def _latex_heading(text: str) -> str:
    """In several lines where it has several parts."""
    parts = [escaped(part) for part in re.split("[,:] ", text)]
    return parts[0] if len(parts) == 1 else "\\shortstack[r]{" + " \\\\ ".join(parts) + "}"


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


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(ESCAPES.get(sign, sign) for sign in text)
