"""Whether a value of the paper lies within what our seeds give; and the verdicts on record, with their reasons."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Literal, NamedTuple

from egalitarian.lab.analysis.counts import Count, in_percent, measured, number, times
from egalitarian.lab.analysis.gains import AverageGain
from egalitarian.lab.analysis.statistics import Accuracy, Estimate, Quartiles
from egalitarian.lab.config import Settings, SpecError, read

VerdictKind = Literal[
    "inside", "outside", "undecided", "known", "too few seeds", "unfinished", "incomplete", "not run", "other hardware"
]
"""`known`: outside, and docs/errata.md explains why. The last five kinds leave a cell without a verdict."""
Judged = tuple[VerdictKind, str]
"""The kind of a verdict, and its text."""
Quantity = Literal[
    "epochs", "steps", "final accuracy", "mean accuracy", "gain in epochs",
    "seconds", "ms per epoch", "ms per step", "gain in seconds",
]  # fmt: skip
"""Mean accuracy is that of training, over all epochs. The last four are times on other hardware, and have no verdict."""
Finding = Literal["inside", "outside", "undecided"]
"""A verdict as the record has it; a known one is outside."""

ERRATA = "docs/errata.md"
DIGIT = 0.001
"""The last digit that the paper prints of an accuracy."""
FEW = 3
"""From so many missing tasks on, a verdict gives their number instead of their names."""
HEAD = """\
# What our stored runs say of each cell of the paper, cells as experiment/method. `egalitarian check` ends with 1 where they
# no longer say so. Outside and known cells are both "outside" here: a known one's reason is its claim's erratum.
# Written by `egalitarian check --record FILE`, which keeps each `why` with its cells.
"""


def judge_reached(
    paper: int | Literal["never"], found: Estimate, seeds: int, unit: Literal["epochs", "steps"] = "epochs"
) -> Judged:
    """Whether the paper's epochs or steps lie between the smallest and the largest seed that passed.

    A value above all of these is undecided if another seed did not pass. A claim of "never" is inside if half of the seeds
    or more do not pass.

    Args:
        seeds: how many there must be.
    """
    if not found.n:
        return "not run", "not run"
    if found.unfinished:
        return "unfinished", f"unfinished: {found.unfinished} of {found.n} seeds"
    if found.n < seeds:
        return _too_few(found.n, seeds)
    return _judge_never(found) if paper == "never" else _judge_number(float(paper), found, unit)


def _judge_never(found: Estimate) -> Judged:
    if 2 * found.failed < found.n:
        return "outside", f"outside: {found.passed} of {found.n} seeds pass"
    return "inside", "inside the spread" + (f", though {found.passed} of {found.n} seeds pass" if found.passed else "")


def _judge_number(paper: float, found: Estimate, unit: str) -> Judged:
    if found.low is None or found.high is None or found.slowest is None:
        kind: VerdictKind = "undecided" if paper > (found.bound or 0) else "outside"
        return kind, f"{kind}: none of {found.n} seeds passes within {number(found.bound or 0)} {unit}"
    if found.failed and paper > found.slowest:
        short = f"{found.failed} of {found.n} did not pass within {number(found.bound or 0)} {unit}"
        return "undecided", f"undecided: above every seed that passed (at most {number(found.slowest)}), and {short}"
    return compare(paper, found.low, found.high)


def compare(paper: float, low: Count, high: Count) -> Judged:
    """Whether a value lies within a spread, and by what percentage it is off."""
    ends = f"[{low}, {high}]"
    if paper < low.value:
        return "outside", f"outside: {float(f'{100 * (1 - paper / low.value):.2g}'):g} % below the spread {ends}"
    if paper > high.value:
        above = f"{measured(100 * (paper / high.value - 1))} % " if high.value else ""
        return "outside", f"outside: {above}above the spread {ends}"
    return "inside", "inside the spread"


def judge_accuracy(paper: float, found: Accuracy, seeds: int) -> Judged:
    """Whether an accuracy lies within the spread of full-length runs, with half a digit to spare: the paper's is rounded.

    A run that diverged counts as one of the seeds.
    """
    ended = found.n + found.diverged
    if not ended + found.others:
        return "not run", "not run"
    if ended < seeds:
        return _too_few(ended, seeds, " of full length")
    lost = f"; {found.diverged} of {ended} seeds diverged" if found.diverged else ""
    if found.low is None or found.high is None:
        return "outside", f"outside: all {found.diverged} seeds diverged"
    ends = f"[{in_percent(found.low)}, {in_percent(found.high)}]"
    below, above = found.low - paper, paper - found.high
    if max(below, above) > DIGIT / 2:
        side = "below" if below > 0 else "above"
        return "outside", f"outside: {in_percent(max(below, above))} points {side} the spread {ends}{lost}"
    return "inside", f"inside the spread{lost}"


def judge_gain(gain: AverageGain, seeds: int) -> Judged:
    """Whether the paper's average over our tasks lies within the central 95 % of averages from single seeds."""
    missing = [name for name, reason in gain.left_out.items() if reason == "not run"]
    if not gain.n:
        return "not run", "not run"
    if missing:
        tasks = ", ".join(missing) if len(missing) < FEW else f"{len(missing)} tasks"
        return "incomplete", f"incomplete: not run on {tasks}"
    if gain.unfinished:
        return "unfinished", "unfinished"
    if gain.n < seeds:
        return _too_few(gain.n, seeds, " in the smallest cell")
    if gain.paper is None or gain.spread is None:
        return "undecided", "undecided: on no task do baseline and method pass, both here and in the paper"
    kind, text = compare(gain.paper, *(Count(float(f"{end:.1f}")) for end in gain.spread))
    left_out = [f"{name} ({reason})" for name, reason in gain.left_out.items() if reason != "by definition"]
    same = f"; without {', '.join(left_out)}: over the same tasks the paper has {times(gain.paper)}" if left_out else ""
    return kind, text + same


def _too_few(found: int, seeds: int, what: str = "") -> Judged:
    return "too few seeds", f"too few seeds: {found} of the first {seeds}{what}"


def distance(paper: float | str | None, ours: Quartiles | None) -> str:
    """How far the paper's value is above our median, in interquartile ranges of our seeds: `+0.4`, `-2.0`, `+inf`.

    The range from smallest to largest is no such unit. One slow seed would make every distance small, and one that does
    not pass would leave none. Of eight seeds from a normal distribution, half of that range is about as large as this unit.

    Infinite if our quartiles are equal, and the median is not the paper's. Empty if one of the two is not a number.
    """
    if paper is None or isinstance(paper, str) or ours is None:
        return ""
    off, unit = paper - ours.median, ours.upper - ours.lower
    value = off / unit if unit else math.copysign(math.inf, off) if off else 0.0
    return f"{round(value, 1) + 0.0:+.{1 if abs(value) < 100 else 0}f}"  # no -0.0


def excuse(judged: Judged, erratum: str) -> Judged:
    """A verdict of outside becomes known if an erratum explains it."""
    kind, text = judged
    return judged if kind != "outside" or not erratum else ("known", f"known: see {ERRATA}#{anchor(erratum)} ({text})")


def anchor(heading: str) -> str:
    """The anchor by which Markdown pages link to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


class Cell(NamedTuple):
    """One number of the paper."""

    experiment: str
    method: str
    measure: Quantity

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.method}"


@dataclass(frozen=True, kw_only=True)
class RecordedVerdict(Settings):
    """One finding for several cells, with its reason."""

    measure: Quantity
    verdict: Finding
    why: str = ""
    """Given if the cells are not inside and no erratum explains it."""
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VerdictRecord(Settings):
    """All verdicts on record."""

    verdicts: tuple[RecordedVerdict, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [(entry.measure, name) for entry in self.verdicts for name in entry.cells]
        for cell in named:
            if named.count(cell) > 1:
                raise SpecError(f"verdicts must name a cell once, got {cell[1]} ({cell[0]}) again; take one out")

    @cached_property
    def _by_cell(self) -> Mapping[tuple[str, str], RecordedVerdict]:
        return {(entry.measure, name): entry for entry in self.verdicts for name in entry.cells}

    def of(self, cell: Cell) -> RecordedVerdict | None:
        """The verdict on a cell; None if there is none on record."""
        return self._by_cell.get((cell.measure, cell.name))


def load_record() -> VerdictRecord:
    """The lab's own record."""
    text = (resources.files("egalitarian.lab") / "paper" / "_verdicts.toml").read_text(encoding="utf-8")
    return read(VerdictRecord, tomllib.loads(text))


def as_toml(found: Mapping[tuple[Quantity, str], tuple[Finding, str]]) -> str:
    """The text of a record, from measure and cell to finding and reason."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (measure, cell), (finding, why) in found.items():
        grouped.setdefault((measure, finding, why), []).append(cell)
    return "\n".join([HEAD, *(_entry(*key, cells) for key, cells in grouped.items())])


def _entry(measure: str, finding: str, why: str, cells: Sequence[str]) -> str:
    lines = ["[[verdicts]]", f"measure = {json.dumps(measure)}", f"verdict = {json.dumps(finding)}"]
    lines += [f"why = {json.dumps(why, ensure_ascii=False)}"] if why else []
    return "\n".join([*lines, "cells = [", *(f"    {json.dumps(name)}," for name in cells), "]"]) + "\n"
