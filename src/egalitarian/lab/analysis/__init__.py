"""Numbers from stored runs, without layout: summaries of runs, statistics over seeds, gains, verdicts, curves.

`gather(store)` reads a store once; everything else starts from what it returns. Nothing here trains or draws.
"""

from egalitarian.lab.analysis.costs import (
    AHEAD,
    BEHIND,
    LEVEL,
    FreshCost,
    MethodCost,
    Side,
    fastest_stock,
    ratios_to_stock,
)
from egalitarian.lab.analysis.counts import NOTHING, Count, Value, in_percent, measured, percent, quantile, ratio, times
from egalitarian.lab.analysis.curves import (
    CHANCE,
    FEWEST_POINTS,
    Array,
    Band,
    band,
    common_seed,
    early_rows,
    fan,
    plane_of,
    rest_of_full_run,
)
from egalitarian.lab.analysis.gains import AverageGain, average_gain
from egalitarian.lab.analysis.gathered import Gathered, gather
from egalitarian.lab.analysis.judging import ERRATA, VerdictKind, VerdictRecord, load_record
from egalitarian.lab.analysis.reading import Platform, Reading, RunSummary
from egalitarian.lab.analysis.rows import (
    AccuracyRow,
    MethodRow,
    MethodSummary,
    accuracy_rows,
    method_rows,
    seed_counts,
    summarize_method,
)
from egalitarian.lab.analysis.statistics import (
    Accuracy,
    Estimate,
    Spent,
    epochs_to_threshold,
    estimate,
    median_and_range,
    spent_on,
)
from egalitarian.lab.analysis.verdicts import Checked, Verdict, check, in_words, judge, more_seeds, record_to_toml, tally

__all__ = [
    "AHEAD",
    "BEHIND",
    "CHANCE",
    "ERRATA",
    "FEWEST_POINTS",
    "LEVEL",
    "NOTHING",
    "Accuracy",
    "AccuracyRow",
    "Array",
    "AverageGain",
    "Band",
    "Checked",
    "Count",
    "Estimate",
    "FreshCost",
    "Gathered",
    "MethodCost",
    "MethodRow",
    "MethodSummary",
    "Platform",
    "Reading",
    "RunSummary",
    "Side",
    "Spent",
    "Value",
    "Verdict",
    "VerdictKind",
    "VerdictRecord",
    "accuracy_rows",
    "average_gain",
    "band",
    "check",
    "common_seed",
    "early_rows",
    "epochs_to_threshold",
    "estimate",
    "fan",
    "fastest_stock",
    "gather",
    "in_percent",
    "in_words",
    "judge",
    "load_record",
    "measured",
    "median_and_range",
    "method_rows",
    "more_seeds",
    "percent",
    "plane_of",
    "quantile",
    "ratio",
    "ratios_to_stock",
    "record_to_toml",
    "rest_of_full_run",
    "seed_counts",
    "spent_on",
    "summarize_method",
    "tally",
    "times",
]
