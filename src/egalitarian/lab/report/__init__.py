"""Reports: tables, figures and pages from the numbers of analysis and theory. Nothing here trains.

`write_report` writes the report of a store, `toy_report` that of the toy problem. Other rooms may use the style of
figures (`report.figures`), and `markdown` and `to_csv` for their own tables.
"""

from egalitarian.lab.report.render import Block, Table, markdown, markdown_lines, to_csv
from egalitarian.lab.report.toy import ToyReport, toy_report
from egalitarian.lab.report.write import Report, ReportError, write_report

__all__ = [
    "Block",
    "Report",
    "ReportError",
    "Table",
    "ToyReport",
    "markdown",
    "markdown_lines",
    "to_csv",
    "toy_report",
    "write_report",
]
