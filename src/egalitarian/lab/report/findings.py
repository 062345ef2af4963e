"""The three findings on top of a report's page: sentences from the numbers of the runs at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from egalitarian.lab.analysis import AverageGain, Count, Gathered, TaskSpeed, Verdict, average_gain, tally, times, wins
from egalitarian.lab.config import Contents

MOST = 3
"""Methods or tasks that a sentence names."""


class Finding(NamedTuple):
    """A sentence, and the command that would complete it; empty if nothing is missing."""

    title: str
    text: str
    command: str = ""


def findings(
    contents: Contents, gathered: Gathered, verdicts: Sequence[Verdict], speeds: Sequence[TaskSpeed], train: str
) -> tuple[Finding, Finding, Finding]:
    """On the paper's cells, on the fastest method of each task, on the gain by EGD.

    Args:
        train: the command that trains what is missing.
    """
    return _on_cells(verdicts, train), _on_fastest(speeds, train), _on_gain(contents, gathered, speeds, train)


def _on_cells(verdicts: Sequence[Verdict], train: str) -> Finding:
    title = "The paper's numbers"
    counts = tally(verdicts)
    if not counts:
        return Finding(title, "The paper has no numbers on these experiments, so there is nothing to compare.")
    total, inside = sum(counts.values()), counts.get("inside", 0)
    outside = counts.get("outside", 0) + counts.get("known", 0)
    undecided, missing = counts.get("undecided", 0), counts.get("not run", 0)
    unsettled = total - inside - outside - undecided - missing
    rest = {"undecided": undecided, "with too few or unfinished seeds": unsettled, "not run": missing}
    parts = [f"{count} {what}" for what, count in rest.items() if count]
    text = f"Of {total} numbers that can be compared, {inside} lie within the range of our seeds and {outside} outside."
    text += f" The rest: {', '.join(parts)}." if parts else ""
    known = counts.get("known", 0)
    text += f" The errata explain {known} of those outside." if known else ""
    return Finding(title, text, train if missing or unsettled else "")


def _on_fastest(speeds: Sequence[TaskSpeed], train: str) -> Finding:
    title = "The fastest method"
    compared = [speed for speed in speeds if len(speed.medians) > 1 and speed.fastest]
    if not compared:
        text = "No task has runs of two methods of which one passes the threshold, so none is the fastest."
        return Finding(title, text, train)
    if len(compared) == 1:
        (speed,) = compared
        names = _listed(speed.experiment.method(method).title for method in speed.fastest)
        least = speed.medians[speed.fastest[0]]
        text = f"On {speed.experiment.title}, {names} passes first, after {least} epochs, of {len(speed.medians)} methods."
    else:
        first = [f"“{name}” on {count}" for name, count in wins(compared).most_common(MOST)]
        others = len(wins(compared)) - len(first)
        rest = f", and {others} other method{'s' * (others > 1)} on the rest" * (others > 0)
        text = f"The fewest epochs, of {len(compared)} tasks: {_listed(first)}{rest}. These are medians of the seeds."
    return Finding(title, f"{text} Settings are the experiments' own, not searched alike.")


def _on_gain(contents: Contents, gathered: Gathered, speeds: Sequence[TaskSpeed], train: str) -> Finding:
    title = "The gain by EGD"
    for plan in contents.tables:
        for asked in plan.gains:
            gain = average_gain(gathered.first(contents.paper.seeds), asked, plan.experiments)
            if gain.epochs is not None and asked.epochs is not None:
                return Finding(title, _average(gain), train if "not run" in gain.left_out.values() else "")
    ratios = {speed.experiment.title: speed.gain for speed in speeds if speed.gain is not None}
    if not ratios:
        return Finding(title, "No task has both: a baseline that passes, and a method with EGD that does.", train)
    if len(ratios) == 1:
        (speed,) = [speed for speed in speeds if speed.gain is not None]
        ((task, gain_here),) = ratios.items()
        return Finding(title, f"On {task}, {_against(speed)}: a gain of {times(gain_here)}, as a ratio of medians.")
    low, high = min(ratios.values(), key=_value), max(ratios.values(), key=_value)
    text = (
        f"On {len(ratios)} tasks, the baseline needs between {times(low)} and {times(high)} the epochs of EGD's best form."
    )
    return Finding(title, text)


def _value(count: Count) -> float:
    return count.value


def _average(gain: AverageGain) -> str:
    tasks = f"{len(gain.counted)} task{'s' * (len(gain.counted) != 1)}"
    text = f"On average over {tasks}, the paper's SGD needs {times(gain.epochs or 0)} the epochs of {gain.plan.title}"
    if gain.spread:
        low, high = gain.spread
        text += f"; averages from single seeds lie between {low:.1f}× and {high:.1f}×"
    text += f". The paper has {times(gain.paper)} on the same tasks." if gain.paper else "."
    return text


def _against(speed: TaskSpeed) -> str:
    best, baseline = speed.equalised or "", speed.baseline or ""
    titles = [speed.experiment.method(method).title for method in (best, baseline)]
    return f"{titles[0]} passes after {speed.medians[best]} epochs and {titles[1]} after {speed.medians[baseline]}"


def _listed(parts: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = list(parts)
    return f"{', '.join(first)} and {last}" if first else last
