"""The table of rank correlations between early gradient spectra and the epoch that passed."""

from __future__ import annotations

from egalitarian.lab.analysis import CHANCE, FEWEST_POINTS, Gathered, early_rows
from egalitarian.lab.config import Contents, TablePlan
from egalitarian.lab.report.render import Block, Table

MEASURES = {"condition": "condition number", "effective_rank": "effective rank"}
NOTES = (
    "Spearman's rank correlation with the epoch at which test accuracy passes the threshold. Only runs that passed later "
    "than the epoch of the spectrum count.",
    "Each entry is the median over groups (smallest to largest), and how many groups are beyond chance "
    f"(p < {CHANCE:g}, each by itself).",
    "A group is the seeds of one method on one task, or the methods of one task, each by the medians of its seeds. It has "
    f"{FEWEST_POINTS} members or more.",
    "Methods differ in much else, so the last column says nothing about a cause.",
)


def early_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """One row for each measure and epoch."""
    rows = early_rows(gathered, plan.experiments)
    cells = [(MEASURES[row.measure], f"{row.epoch}", f"{row.runs}", str(row.seeds), str(row.methods)) for row in rows]
    return Table(
        name=plan.name,
        title=plan.title,
        number=plan.number,
        columns=(
            "of the first batch's gradient",
            "epoch",
            "runs",
            "between seeds of a method",
            "between methods of a task",
        ),
        blocks=(Block("", tuple(cells)),),
        notes=NOTES,
        records=tuple(row.record() for row in rows),
    )
