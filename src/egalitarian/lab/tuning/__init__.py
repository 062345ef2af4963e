"""Fair tuning: learning rate and decay of every method, on grids of one size.

Points are chosen on a validation split and measured on fresh seeds. `Job` tunes families in this process, `TuneRequest`
one method in another. Each family has a results file; `rows` and `about` turn it into a table.
"""

from egalitarian.lab.tuning.job import Job, TuneRequest, deadline_after
from egalitarian.lab.tuning.plan import Family, Forecast, chosen, estimate, load_plan, shrunk
from egalitarian.lab.tuning.results import Results, file_suffix, locked, read_results, writable
from egalitarian.lab.tuning.table import COLUMNS, about, all_results, rows
from egalitarian.lab.tuning.trials import OutOfTime

__all__ = [
    "COLUMNS",
    "Family",
    "Forecast",
    "Job",
    "OutOfTime",
    "Results",
    "TuneRequest",
    "about",
    "all_results",
    "chosen",
    "deadline_after",
    "estimate",
    "file_suffix",
    "load_plan",
    "locked",
    "read_results",
    "rows",
    "shrunk",
    "writable",
]
