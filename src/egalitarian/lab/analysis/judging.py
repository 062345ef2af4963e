"""Whether one value of the paper lies within what our seeds give, and in words how far off it is."""

from __future__ import annotations

import re
from typing import Literal

from egalitarian.lab.analysis.accuracies import Accuracy, in_percent
from egalitarian.lab.analysis.counts import Count, measured, number
from egalitarian.lab.analysis.gains import FEWEST, AverageGain
from egalitarian.lab.analysis.statistics import Estimate

Kind = Literal[
    "inside", "outside", "undecided", "known", "too few seeds", "unfinished", "incomplete", "not run", "other hardware"
]
Judged = tuple[Kind, str]
ERRATA = "docs/errata.md"
DIGIT = 0.001
"""The last that the paper prints of an accuracy."""
FEW = 3
"""Tasks from which on they are counted, not named."""


def judge_reached(paper: int | Literal["never"], found: Estimate, unit: Literal["epochs", "steps"] = "epochs") -> Judged:
    """Whether the paper's epochs or steps lie within the smallest to largest of the seeds that passed.

    Above all of these, it is undecided as long as a seed did not pass. A claim of "never" is inside when half of the seeds
    or more do not pass either.
    """
    if not found.n:
        return "not run", "not run"
    if found.unfinished:
        return "unfinished", f"unfinished: {found.unfinished} of {found.n} seeds"
    if found.n < FEWEST:
        return too_few(found.n)
    return _never(found) if paper == "never" else _placed(float(paper), found, unit)


def _never(found: Estimate) -> Judged:
    if 2 * found.failed < found.n:
        return "outside", f"outside: {found.passed} of {found.n} seeds pass"
    return "inside", "inside the spread" + (f", though {found.passed} of {found.n} seeds pass" if found.passed else "")


def _placed(paper: float, found: Estimate, unit: str) -> Judged:
    """Of a number, where some seeds or all may not have passed."""
    if found.low is None or found.high is None or found.slowest is None:
        beyond = paper > (found.bound or 0)
        kind: Kind = "undecided" if beyond else "outside"
        return kind, f"{kind}: none of {found.n} seeds passes within {number(found.bound or 0)} {unit}"
    if found.failed and paper > found.slowest:
        short = f"{found.failed} of {found.n} did not pass within {number(found.bound or 0)} {unit}"
        return "undecided", f"undecided: above every seed that passed (at most {number(found.slowest)}), and {short}"
    return place(paper, found.low, found.high)


def place(paper: float, low: Count, high: Count) -> Judged:
    """Of a value beside a spread, in words, too."""
    ends = f"[{low}, {high}]"
    if paper < low.value:
        return "outside", f"outside: {float(f'{100 * (1 - paper / low.value):.2g}'):g} % below the spread {ends}"
    if paper > high.value:
        above = f"{measured(100 * (paper / high.value - 1))} % " if high.value else ""
        return "outside", f"outside: {above}above the spread {ends}"
    return "inside", "inside the spread"


def judge_mean(paper: float, found: Accuracy) -> Judged:
    """Of a mean over epochs: within the smallest to largest of the seeds."""
    if found.others:
        return "unfinished", f"unfinished: {found.others} of {found.n + found.diverged + found.others} seeds"
    if not found.n + found.diverged:
        return "not run", "not run"
    if found.n + found.diverged < FEWEST:
        return too_few(found.n + found.diverged)
    return _between(paper, found)


def judge_final(paper: float, found: Accuracy) -> Judged:
    """Of an accuracy at a run's end: one full-length run can agree with the paper, and is too little to contradict it."""
    if not found.n and (found.others or not found.diverged):
        return "not run", "not run: none that was taken to the end"
    kind, told = _between(paper, found)
    if kind == "outside" and (found.n or found.diverged) < FEWEST:
        return "too few seeds", f"too few seeds: {found.n} of full length; {told.removeprefix('outside: ')}"
    return kind, told


def _between(paper: float, found: Accuracy) -> Judged:
    """With half a digit to spare, as the paper's value is rounded."""
    lost = f"; {found.diverged} of {found.n + found.diverged} seeds diverged" if found.diverged else ""
    if found.low is None or found.high is None:
        return "outside", f"outside: all {found.diverged} seeds diverged"
    ends = f"[{in_percent(found.low)}, {in_percent(found.high)}]"
    below, above = found.low - paper, paper - found.high
    if max(below, above) > DIGIT / 2:
        side = "below" if below > 0 else "above"
        return "outside", f"outside: {in_percent(max(below, above))} points {side} the spread {ends}{lost}"
    return "inside", f"inside the spread{lost}"


def judge_gain(paper: float, gain: AverageGain) -> Judged:
    """Of an average over tasks: within the central 95 % of those made from single seeds."""
    missing = [name for name, reason in gain.left_out.items() if reason == "not run"]
    if not gain.n:
        return "not run", "not run"
    if missing:
        return (
            "incomplete",
            f"incomplete: not run on {', '.join(missing) if len(missing) < FEW else f'{len(missing)} tasks'}",
        )
    if gain.unfinished:
        return "unfinished", "unfinished"
    if gain.spread is None:
        return too_few(gain.n, " in every cell")
    low, high = (Count(float(f"{end:.1f}")) for end in gain.spread)
    kind, told = place(paper, low, high)
    left_out = [f"{name} ({reason})" for name, reason in gain.left_out.items() if reason != "by definition"]
    return kind, told + (f"; without {', '.join(left_out)}" if left_out else "")


def too_few(seeds: int, where: str = "") -> Judged:
    return "too few seeds", f"too few seeds: {seeds}, at least {FEWEST} are needed{where}"


def excused(judged: Judged, erratum: str) -> Judged:
    """Outside for a reason that the errata tell is known."""
    kind, told = judged
    return judged if kind != "outside" or not erratum else ("known", f"known: see {ERRATA}#{anchor(erratum)} ({told})")


def anchor(heading: str) -> str:
    """A heading as Markdown pages link to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
