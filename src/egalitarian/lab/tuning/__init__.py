"""The fair search: learning rate, decay and a third knob of every method, with as many points for each.

Points are chosen on a validation split and measured on fresh seeds. `Job` tunes families in this process, `TuneRequest`
one method in another. Each family has a results file; `rows` and `about` turn it into a table.
"""

from egalitarian.lab.tuning.job import Job, TuneRequest, deadline_after
from egalitarian.lab.tuning.plan import Family, Forecast, chosen, estimate, load_plan, shrunk
from egalitarian.lab.tuning.results import Results, file_suffix, locked, read_results, writable
from egalitarian.lab.tuning.table import TunedRow, about, all_results, compared, headings, rank_forms, rows, unit_of
from egalitarian.lab.tuning.trials import OutOfTime

__all__ = [
    "Family",
    "Forecast",
    "Job",
    "OutOfTime",
    "Results",
    "TuneRequest",
    "TunedRow",
    "about",
    "all_results",
    "chosen",
    "compared",
    "deadline_after",
    "estimate",
    "file_suffix",
    "headings",
    "load_plan",
    "locked",
    "rank_forms",
    "read_results",
    "rows",
    "shrunk",
    "unit_of",
    "writable",
]
