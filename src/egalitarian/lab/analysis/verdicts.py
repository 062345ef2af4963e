"""The paper against our runs, cell by cell: its value, our median, the spread over seeds, a verdict, and that on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from egalitarian.lab.analysis.accuracies import Accuracy, final_accuracy, in_percent, mean_train_accuracy
from egalitarian.lab.analysis.counts import Count, measured, times
from egalitarian.lab.analysis.gains import average_gain
from egalitarian.lab.analysis.gather import Gathered, Summary, gather
from egalitarian.lab.analysis.judging import Judged, Kind, excused, judge_final, judge_gain, judge_mean, judge_reached
from egalitarian.lab.analysis.recorded import Cell, Measure, Record, Says, as_toml, load_record
from egalitarian.lab.analysis.rows import cost_of, reached, seconds_of
from egalitarian.lab.analysis.statistics import Estimate, estimate
from egalitarian.lab.config.contents import Contents, TablePlan, load_contents
from egalitarian.lab.config.spec import Claim, Experiment
from egalitarian.lab.report.render import Value
from egalitarian.lab.runs.store import Store

SAYS: dict[Kind, Says] = {"inside": "inside", "outside": "outside", "known": "outside", "undecided": "undecided"}
"""What a kind of verdict comes to; the others say nothing yet."""


@dataclass(frozen=True)
class Verdict:
    """One cell of the paper's tables."""

    table: str
    experiment: str
    method: str
    measure: Measure
    paper: str
    ours: str
    """Our median."""
    spread: str
    """min–max over seeds; of average gains, the central 95 % of those made from single seeds."""
    n: int
    passed: int
    """Of accuracies, the runs that count."""
    kind: Kind
    verdict: str
    aside: bool
    """Whether the experiment is not the one the paper's number is of: its text read literally, or a user's own."""
    recorded: Says | None = None
    """The verdict on record."""
    why: str = ""
    """The reason on record."""

    @property
    def cell(self) -> Cell:
        return Cell(self.experiment, self.method, self.measure)

    @property
    def compared(self) -> bool:
        """Whether there is anything to judge: not of a wall-clock time."""
        return self.kind != "other hardware"

    @property
    def says(self) -> Says | None:
        return SAYS.get(self.kind)

    @property
    def contradicts(self) -> bool:
        """Whether the runs say something else than the record."""
        return self.says is not None and self.recorded is not None and self.says != self.recorded

    def record(self) -> dict[str, Value]:
        """As plain values, for a file."""
        return asdict(self)


class Where(NamedTuple):
    """The row that a cell is in."""

    table: str
    experiment: str
    method: str
    aside: bool


class Checked(NamedTuple):
    """The verdicts, what could not be read, and what else there is to say."""

    verdicts: list[Verdict]
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]
    """What is stored and counts nowhere, and experiments that the paper says nothing of."""

    @property
    def contradictions(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.contradicts]

    @property
    def open(self) -> list[Verdict]:
        """Cells that say nothing yet, or have no verdict on record."""
        return [each for each in self.verdicts if each.compared and (each.says is None or each.recorded is None)]

    def ends_well(self, *, strict: bool = False) -> bool:
        """That all could be read and agrees with the record; if strict, that nothing is open."""
        return not self.warnings and not self.contradictions and not (strict and self.open)


def check(store: Store, experiments: Sequence[str] = (), record: Record | None = None) -> Checked:
    """A verdict for every cell of the paper's tables on the named experiments, or on all.

    Experiments with claims outside the paper's own tables (its text read literally) are judged if they were run or named.

    Args:
        record: what is on record; by default the lab's own file.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
    """
    gathered = gather(store, experiments)
    contents = load_contents().of([experiment.name for experiment in gathered.experiments])
    verdicts = judge(contents, gathered, record)
    apart = f"{len(gathered.variants)} stored runs of other settings count nowhere here; `egalitarian report` lists them"
    remarks = (*_without_claims(gathered), *gathered.remarks, *([apart] if gathered.variants else []))
    return Checked(verdicts, gathered.warnings, remarks)


def _without_claims(gathered: Gathered) -> Iterator[str]:
    for experiment in gathered.experiments:
        if gathered.named and not experiment.claims:
            yield (
                f"{experiment.name} ({experiment.title}) has no claims of the paper, so there is nothing to check; "
                f"`egalitarian report` with the same name or file shows its runs"
            )


def judge(contents: Contents, gathered: Gathered, record: Record | None = None) -> list[Verdict]:
    """The same, from runs that are gathered already."""
    run = {summary.experiment for summary in gathered.runs}
    record = load_record() if record is None else record
    cells: list[Verdict] = []
    for experiment in gathered.experiments:
        if gathered.named or experiment.name in run or contents.has(experiment.name, numbered=True):
            for method, claim in experiment.claims.items():
                cells += _cells(gathered, experiment, method, claim, contents)
    for table in contents.tables:
        cells += _gain_cells(gathered, table, contents.paper.hardware)
    return [_with_record(verdict, record) for verdict in cells]


def _with_record(verdict: Verdict, record: Record) -> Verdict:
    entry = record.of(verdict.cell)
    return verdict if entry is None else Verdict(**{**asdict(verdict), "recorded": entry.verdict, "why": entry.why})


def _cells(gathered: Gathered, experiment: Experiment, method: str, claim: Claim, contents: Contents) -> Iterator[Verdict]:
    seeds = gathered.of(experiment.name, method)
    aside = not contents.has(experiment.name, numbered=True)
    where = Where(f"{claim.table}: {experiment.title}" if aside else claim.table, experiment.name, method, aside)
    cell = partial(_cell, where, claim.erratum)
    if claim.epochs is not None:
        found = reached(experiment, seeds, "epochs")
        yield cell("epochs", str(claim.epochs), found, judge_reached(claim.epochs, found))
    if claim.steps is not None:
        found = reached(experiment, seeds, "steps")
        yield cell("steps", str(claim.steps), found, judge_reached(claim.steps, found, "steps"))
    if claim.final_accuracy is not None:
        final = final_accuracy(seeds)
        yield cell("final accuracy", in_percent(claim.final_accuracy), final, judge_final(claim.final_accuracy, final))
    if claim.mean_train_accuracy is not None:
        mean, said = mean_train_accuracy(seeds), claim.mean_train_accuracy
        yield cell("mean accuracy", in_percent(said), mean, judge_mean(said, mean))
    yield from _clock_cells(where, experiment, claim, seeds, contents.paper.hardware)


def _cell(where: Where, erratum: str, measure: Measure, paper: str, found: Estimate | Accuracy, judged: Judged) -> Verdict:
    if isinstance(found, Accuracy):
        ours, counts = "" if found.median is None else in_percent(found.median), (found.n + found.diverged, found.n)
    else:
        ours, counts = "" if found.median is None else str(found.median), (found.n, found.passed)
    kind, verdict = excused(judged, erratum)
    return Verdict(*where[:3], measure, paper, ours, found.spread, *counts, kind, verdict, where.aside)


def _clock_cells(
    where: Where, experiment: Experiment, claim: Claim, seeds: Sequence[Summary], hardware: str
) -> Iterator[Verdict]:
    """Times, which are of other hardware, without a verdict."""
    found, cost, steps = estimate(seeds), cost_of(seeds), experiment.steps_per_epoch
    told = f"other hardware: {hardware}; ours {cost.place if cost else 'not run'}"
    epoch = None if cost is None else cost.ms_per_epoch
    clocks: list[tuple[Measure, float | None, Count | float | None]] = [
        ("seconds", claim.seconds, seconds_of(found, cost)),
        ("ms per epoch", claim.ms_per_epoch, epoch),
        ("ms per step", claim.ms_per_step, epoch / steps if epoch is not None and steps else None),
    ]
    for measure, paper, ours in clocks:
        if paper is not None:
            said, counts = "" if ours is None else measured(ours), (found.n, found.passed)
            yield Verdict(*where[:3], measure, str(paper), said, "", *counts, "other hardware", told, where.aside)


def _gain_cells(gathered: Gathered, table: TablePlan, hardware: str) -> Iterator[Verdict]:
    for plan in table.gains:
        gain = average_gain(gathered, plan, table.experiments)
        spread = "–".join(f"{end:.1f}" for end in gain.spread) if gain.spread else ""
        where, counts = (table.number, "average", plan.name), (gain.n, len(gain.counted))
        if plan.epochs is not None:
            ours = times(gain.epochs) if gain.epochs else ""
            judged = judge_gain(plan.epochs, gain)
            yield Verdict(*where, "gain in epochs", times(plan.epochs), ours, spread, *counts, *judged, False)
        if plan.seconds is not None:
            ours = times(gain.seconds) if gain.seconds else ""
            where_timed = f"ours of {', '.join(gain.timed)}" if gain.timed else "ours not run on one platform"
            verdict = f"other hardware: {hardware}; {where_timed}"
            paper = times(plan.seconds)
            yield Verdict(*where, "gain in seconds", paper, ours, "", *counts, "other hardware", verdict, False)


def to_record(verdicts: Sequence[Verdict], record: Record) -> str:
    """The file of verdicts as the runs have them now; where they say nothing, as it was. A reason goes with its verdict."""
    found = {(entry.measure, name): (entry.verdict, entry.why) for entry in record.verdicts for name in entry.cells}
    for each in verdicts:
        if each.says is not None:
            found[each.measure, each.cell.name] = (each.says, each.why if each.says == each.recorded else "")
    return as_toml(found)


def tally(verdicts: Sequence[Verdict], *, aside: bool = False) -> dict[str, int]:
    """How many verdicts there are of each kind, of cells that can be compared."""
    kinds = [verdict.kind for verdict in verdicts if verdict.compared and verdict.aside == aside]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def in_words(verdicts: Sequence[Verdict]) -> str:
    """53 inside, 6 outside, ...; wall-clock cells apart, and those that are not of the paper's own settings."""

    def said(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    parts = [said(tally(verdicts)) or "none asked for"]
    aside = tally(verdicts, aside=True)
    clocks = sum(not verdict.compared for verdict in verdicts)
    parts += [f"on other settings than its own (its text read literally, or one's own): {said(aside)}"] if aside else []
    parts += [f"{clocks} wall-clock cells are of other hardware"] if clocks else []
    return "; ".join(parts)
