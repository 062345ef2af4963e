"""The paper against our runs, cell by cell: its value, our median, the spread over seeds, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from egalitarian.lab.report.contents import Contents, TablePlan, load_contents
from egalitarian.lab.report.counts import Count, measured, number, times
from egalitarian.lab.report.gains import FEWEST, AverageGain, average_gain
from egalitarian.lab.report.gather import Gathered, gather
from egalitarian.lab.report.render import Value
from egalitarian.lab.report.rows import cost_of, seconds_of
from egalitarian.lab.report.statistics import Estimate, estimate
from egalitarian.lab.spec import Claim, Experiment
from egalitarian.lab.store import Store

Kind = Literal[
    "inside", "outside", "undecided", "known", "too few seeds", "unfinished", "incomplete", "not run", "other hardware"
]
ERRATA = "docs/errata.md"


@dataclass(frozen=True)
class Verdict:
    """One cell of the paper's tables."""

    table: str
    experiment: str
    method: str
    measure: Literal["epochs", "seconds", "ms per epoch", "gain in epochs", "gain in seconds"]
    paper: str
    ours: str
    """Our median."""
    spread: str
    """min–max over seeds; of average gains, the central 95 % of those made from single seeds."""
    n: int
    passed: int
    kind: Kind
    verdict: str
    aside: bool
    """Whether the experiment is not the one the paper's number is of: its text read literally, or a user's own."""

    def record(self) -> dict[str, Value]:
        """As plain values, for a file."""
        return asdict(self)


class Checked(NamedTuple):
    """The verdicts, what could not be read, and what else there is to say."""

    verdicts: list[Verdict]
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    """What is stored and counts nowhere, and experiments that the paper says nothing of."""


def check(store: Store, experiments: Sequence[str] = ()) -> Checked:
    """A verdict for every cell of the paper's tables on the named experiments, or on all.

    Experiments with claims outside the paper's own tables (its text read literally) are judged if they were run or named.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
    """
    gathered = gather(store, experiments)
    contents = load_contents().of([experiment.name for experiment in gathered.experiments])
    return Checked(judge(contents, gathered), gathered.warnings, (*_without_claims(gathered), *gathered.remarks))


def _without_claims(gathered: Gathered) -> Iterator[str]:
    for experiment in gathered.experiments:
        if not experiment.claims:
            yield (
                f"{experiment.name} ({experiment.title}) has no claims of the paper, so there is nothing to check; "
                f"`egalitarian report` with the same name or file shows its runs"
            )


def judge(contents: Contents, gathered: Gathered) -> list[Verdict]:
    """The same, from runs that are gathered already."""
    run = {summary.experiment for summary in gathered.runs}
    cells: list[Verdict] = []
    for experiment in gathered.experiments:
        if gathered.named or experiment.name in run or contents.has(experiment.name, numbered=True):
            for method, claim in experiment.claims.items():
                cells += _cells(gathered, experiment, method, claim, contents)
    for table in contents.tables:
        cells += _gain_cells(gathered, table, contents.paper.hardware)
    return cells


def _cells(gathered: Gathered, experiment: Experiment, method: str, claim: Claim, contents: Contents) -> Iterator[Verdict]:
    seeds = gathered.of(experiment.name, method)
    found, cost = estimate(seeds), cost_of(seeds)
    aside = not contents.has(experiment.name, numbered=True)
    where = (f"{claim.table}: {experiment.title}" if aside else claim.table, experiment.name, method)
    counts = (found.n, found.passed)
    if claim.epochs is not None:
        kind, verdict = judge_epochs(claim, found)
        median = "" if found.median is None else str(found.median)
        yield Verdict(*where, "epochs", str(claim.epochs), median, found.spread, *counts, kind, verdict, aside)
    elsewhere = f"other hardware: {contents.paper.hardware}; ours {cost.place if cost else 'not run'}"
    if claim.seconds is not None:
        seconds = seconds_of(found, cost)
        ours = "" if seconds is None else measured(seconds)
        yield Verdict(*where, "seconds", str(claim.seconds), ours, "", *counts, "other hardware", elsewhere, aside)
    if claim.ms_per_epoch is not None:
        ours = "" if cost is None else measured(cost.ms_per_epoch)
        milliseconds = str(claim.ms_per_epoch)
        yield Verdict(*where, "ms per epoch", milliseconds, ours, "", *counts, "other hardware", elsewhere, aside)


def judge_epochs(claim: Claim, found: Estimate) -> tuple[Kind, str]:
    """Whether the paper's epochs lie within the smallest to largest of the seeds that passed.

    Above all of these, it is undecided as long as a seed did not pass. A claim of "never" is inside when half of the seeds
    or more do not pass either.
    """
    if not found.n:
        return "not run", "not run"
    if found.unfinished:
        return "unfinished", f"unfinished: {found.unfinished} of {found.n} seeds"
    if found.n < FEWEST:
        return "too few seeds", f"too few seeds: {found.n}, at least {FEWEST} are needed"
    kind, told = _never(found) if claim.epochs == "never" else _placed(float(claim.epochs or 0), found)
    if kind != "outside" or not claim.erratum:
        return kind, told
    return "known", f"known: see {ERRATA}#{anchor(claim.erratum)} ({told})"


def _never(found: Estimate) -> tuple[Kind, str]:
    if 2 * found.failed < found.n:
        return "outside", f"outside: {found.passed} of {found.n} seeds pass"
    return "inside", "inside the spread" + (f", though {found.passed} of {found.n} seeds pass" if found.passed else "")


def _placed(paper: float, found: Estimate) -> tuple[Kind, str]:
    """Of a number of epochs, where some seeds or all may not have passed."""
    if found.low is None or found.high is None or found.slowest is None:
        beyond = paper > (found.bound or 0)
        kind: Kind = "undecided" if beyond else "outside"
        return kind, f"{kind}: none of {found.n} seeds passes within {number(found.bound or 0)} epochs"
    if found.failed and paper > found.slowest:
        short = f"{found.failed} of {found.n} did not pass within {number(found.bound or 0)} epochs"
        return "undecided", f"undecided: above every seed that passed (at most {number(found.slowest)}), and {short}"
    return place(paper, found.low, found.high)


def place(paper: float, low: Count, high: Count) -> tuple[Kind, str]:
    """Of a value beside a spread, in words, too."""
    ends = f"[{low}, {high}]"
    if paper < low.value:
        return "outside", f"outside: {100 * (1 - paper / low.value):.2g} % below the spread {ends}"
    if paper > high.value:
        above = f"{100 * (paper / high.value - 1):.3g} % " if high.value else ""
        return "outside", f"outside: {above}above the spread {ends}"
    return "inside", "inside the spread"


def _gain_cells(gathered: Gathered, table: TablePlan, hardware: str) -> Iterator[Verdict]:
    for plan in table.gains:
        gain = average_gain(gathered, plan, table.experiments)
        spread = "–".join(f"{end:.1f}" for end in gain.spread) if gain.spread else ""
        where, counts = (table.number, "average", plan.name), (gain.n, len(gain.counted))
        if plan.epochs is not None:
            ours = times(gain.epochs) if gain.epochs else ""
            kind, verdict = _judge_gain(plan.epochs, gain)
            yield Verdict(*where, "gain in epochs", times(plan.epochs), ours, spread, *counts, kind, verdict, False)
        if plan.seconds is not None:
            ours = times(gain.seconds) if gain.seconds else ""
            where_timed = f"ours of {', '.join(gain.timed)}" if gain.timed else "ours not run on one platform"
            verdict = f"other hardware: {hardware}; {where_timed}"
            paper = times(plan.seconds)
            yield Verdict(*where, "gain in seconds", paper, ours, "", *counts, "other hardware", verdict, False)


def _judge_gain(paper: float, gain: AverageGain) -> tuple[Kind, str]:
    missing = [name for name, reason in gain.left_out.items() if reason == "not run"]
    if not gain.n:
        return "not run", "not run"
    if missing:
        return "incomplete", f"incomplete: not run on {', '.join(missing)}"
    if gain.unfinished:
        return "unfinished", "unfinished"
    if gain.spread is None:
        return "too few seeds", f"too few seeds: {gain.n}, at least {FEWEST} are needed in every cell"
    low, high = (Count(float(f"{end:.1f}")) for end in gain.spread)
    kind, told = place(paper, low, high)
    left_out = [f"{name} ({reason})" for name, reason in gain.left_out.items() if reason != "by definition"]
    return kind, told + (f"; without {', '.join(left_out)}" if left_out else "")


def anchor(heading: str) -> str:
    """A heading as Markdown pages link to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def tally(verdicts: Sequence[Verdict], *, aside: bool = False) -> dict[str, int]:
    """How many verdicts there are of each kind, of cells that can be compared."""
    compared = [verdict for verdict in verdicts if verdict.measure in ("epochs", "gain in epochs")]
    kinds = [verdict.kind for verdict in compared if verdict.aside == aside]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def in_words(verdicts: Sequence[Verdict]) -> str:
    """53 inside, 6 outside, ...; wall-clock cells apart, and those that are not of the paper's own settings."""

    def said(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    parts = [said(tally(verdicts)) or "none asked for"]
    aside = tally(verdicts, aside=True)
    clocks = sum(verdict.kind == "other hardware" for verdict in verdicts)
    parts += [f"on other settings than its own (its text read literally, or one's own): {said(aside)}"] if aside else []
    parts += [f"{clocks} wall-clock cells are of other hardware"] if clocks else []
    return "; ".join(parts)
