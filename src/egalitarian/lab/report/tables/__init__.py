"""Tables: rows of numbers from analysis in, a `Table` of texts and notes out. One file for each kind."""

from egalitarian.lab.analysis import Gathered
from egalitarian.lab.config import Contents, TablePlan
from egalitarian.lab.report.render import Table
from egalitarian.lab.report.tables.accuracies import finals_table, means_table
from egalitarian.lab.report.tables.epochs import epochs_table, steps_table
from egalitarian.lab.report.tables.overview import early_table, gains_table, methods_table, settings_table

TABLES = {
    "settings": settings_table,
    "methods": methods_table,
    "epochs": epochs_table,
    "steps": steps_table,
    "means": means_table,
    "finals": finals_table,
    "gains": gains_table,
    "early": early_table,
}
"""The function of each kind of table."""

__all__ = ["TABLES", "build_table"]


def build_table(plan: TablePlan, contents: Contents, gathered: Gathered) -> Table:
    """The table of a plan."""
    return TABLES[plan.kind](plan, contents, gathered)
