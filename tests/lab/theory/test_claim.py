"""One row of the claims: its verdict, and the summary of several."""

from __future__ import annotations

import math
from dataclasses import replace

from egalitarian.lab.theory.claim import ToyClaim, summarize


def row(printed: float, measured: float, **more: object) -> ToyClaim:
    plain = ToyClaim("key", "where", "claim", "setting", printed, 2.0, measured, standard_error=0.1, sigmas=4.0)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_a_verdict_allows_noise_and_slack() -> None:
    assert row(1.0, 1.39).verdict == "holds"
    assert row(1.0, 1.41).verdict == "fails as printed"
    assert row(1.0, 1.41, slack=0.1).verdict == "holds"
    assert row(1.0, 0.2, relation="<").verdict == row(1.0, 1.8, relation=">").verdict == "holds"
    assert row(1.0, 1.8, relation="<").verdict == row(1.0, 0.2, relation=">").verdict == "fails as printed"
    assert row(math.nan, 1.0).verdict == row(math.inf, 1.0).verdict == "fails as printed"
    assert row(1.0, 2.3).corrected_holds
    assert not row(1.0, 2.5).corrected_holds


def test_a_summary_counts_and_names_the_worst() -> None:
    (summary,) = summarize([row(1.0, 1.1), row(1.0, 2.0), row(math.nan, 2.0), row(1.0, 1.2)])
    assert (summary.points, summary.printed_holds, summary.corrected_holds) == (4, 2, 2)
    assert summary.verdict == "fails as printed"
    assert math.isnan(summary.worst.printed)
