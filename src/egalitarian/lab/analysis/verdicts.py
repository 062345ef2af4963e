"""The paper against our runs: a verdict for each cell of its tables, and the verdict on record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from egalitarian.lab.analysis.counts import Count, Value, in_percent, measured, times
from egalitarian.lab.analysis.gains import average_gain
from egalitarian.lab.analysis.gathered import Gathered, gather
from egalitarian.lab.analysis.judging import (
    Cell,
    Finding,
    Judged,
    Quantity,
    VerdictKind,
    VerdictRecord,
    as_toml,
    distance,
    excuse,
    judge_accuracy,
    judge_gain,
    judge_reached,
    load_record,
)
from egalitarian.lab.analysis.reading import RunSummary
from egalitarian.lab.analysis.rows import reached
from egalitarian.lab.analysis.statistics import (
    Accuracy,
    Estimate,
    cost_of,
    estimate,
    final_accuracy,
    mean_train_accuracy,
    seconds_to_threshold,
)
from egalitarian.lab.config import Claim, Contents, Experiment, Paper, TablePlan, load_contents
from egalitarian.lab.runs import Source

FINDINGS: dict[VerdictKind, Finding] = {
    "inside": "inside",
    "outside": "outside",
    "known": "outside",
    "undecided": "undecided",
}
"""Kinds of verdicts that settle a cell. The others leave it open."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one cell of the paper's tables."""

    table: str
    experiment: str
    method: str
    measure: Quantity
    paper: str
    ours: str
    """Our median."""
    spread: str
    """min–max over seeds; of average gains, the central 95 % of averages from single seeds."""
    n: int
    passed: int
    """Seeds that passed; for accuracies, runs that count."""
    kind: VerdictKind
    verdict: str
    other_settings: bool
    """Whether the experiment is not the one of the paper's number: its text taken literally, or a user's own."""
    distance: str = ""
    """The paper's value minus our median, in interquartile ranges of our seeds; empty if the cell is open or has none."""
    recorded: Finding | None = None
    """The finding in the committed record, paper/_verdicts.toml."""
    why: str = ""
    """The reason in the committed record."""

    @property
    def cell(self) -> Cell:
        return Cell(self.experiment, self.method, self.measure)

    @property
    def compared(self) -> bool:
        """Whether the cell can be judged. Times on other hardware cannot."""
        return self.kind != "other hardware"

    @property
    def finding(self) -> Finding | None:
        """None if the cell is open."""
        return FINDINGS.get(self.kind)

    @property
    def contradicts(self) -> bool:
        """Whether the finding differs from that on record."""
        return self.finding is not None and self.recorded is not None and self.finding != self.recorded

    def csv_row(self) -> dict[str, Value]:
        """One row of verdicts.csv, whose column `aside` is `other_settings`."""
        return {"aside" if name == "other_settings" else name: value for name, value in asdict(self).items()}


class ClaimRow(NamedTuple):
    """The row of a cell: table, experiment and method."""

    table: str
    experiment: str
    method: str
    other_settings: bool


class Checked(NamedTuple):
    """All verdicts, with warnings and remarks."""

    verdicts: list[Verdict]
    warnings: tuple[str, ...]
    """Runs that could not be read."""
    remarks: tuple[str, ...]
    """Runs that count nowhere, and experiments without claims of the paper."""

    @property
    def contradictions(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.contradicts]

    @property
    def open(self) -> list[Verdict]:
        """Cells without a finding, or without one on record."""
        return [each for each in self.verdicts if each.compared and (each.finding is None or each.recorded is None)]

    def is_consistent(self, *, strict: bool = False) -> bool:
        """Whether everything could be read and agrees with the record; with `strict`, also whether no cell is open."""
        return not self.warnings and not self.contradictions and not (strict and self.open)


def check(store: Source, experiments: Sequence[str] = (), record: VerdictRecord | None = None) -> Checked:
    """Reads a store and gives a verdict for every cell of the paper's tables on the named experiments, or on all.

    `egalitarian check` calls this. A report has read the store already, and calls `judge`.

    The claims of some experiments are not in the paper's own tables, as they take its text literally. These are judged if
    they were run or named.

    Args:
        record: the verdicts on record; by default the lab's own file.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
    """
    gathered = gather(store, experiments)
    contents = load_contents().of([experiment.name for experiment in gathered.experiments])
    verdicts = judge(contents, gathered, record)
    variants = f"{len(gathered.variants)} stored runs of other settings count nowhere here; `egalitarian report` lists them"
    remarks = (*_without_claims(gathered), *gathered.remarks, *more_seeds(gathered, contents.paper.seeds))
    return Checked(verdicts, gathered.warnings, (*remarks, *([variants] if gathered.variants else [])))


def _without_claims(gathered: Gathered) -> Iterator[str]:
    for experiment in gathered.experiments:
        if gathered.named and not experiment.claims:
            yield (
                f"{experiment.name} ({experiment.title}) has no claims of the paper, so there is nothing to check; "
                f"`egalitarian report` with the same name or file shows its runs"
            )


def more_seeds(gathered: Gathered, seeds: int) -> list[str]:
    """A remark on stored seeds of the paper's methods that verdicts do not read."""
    claimed = {(each.name, method) for each in gathered.experiments for method in each.claims}
    more = Counter((run.experiment, run.method) for run in gathered.runs if run.seed >= seeds)
    listed = [f"{experiment} {method} ({more[experiment, method]})" for experiment, method in more.keys() & claimed]
    return [f"Seeds from {seeds} on, which verdicts do not read: {', '.join(sorted(listed))}"] if listed else []


def judge(contents: Contents, gathered: Gathered, record: VerdictRecord | None = None) -> list[Verdict]:
    """A verdict for every cell of these contents, from the first seeds of what was read before."""
    gathered = gathered.first(contents.paper.seeds)
    run = {summary.experiment for summary in gathered.runs}
    record = load_record() if record is None else record
    cells: list[Verdict] = []
    for experiment in gathered.experiments:
        if gathered.named or experiment.name in run or contents.has(experiment.name, numbered=True):
            for method, claim in experiment.claims.items():
                cells += _judge_claim(gathered, experiment, method, claim, contents)
    for table in contents.tables:
        cells += _judge_gains(gathered, table, contents.paper)
    return [_with_record(verdict, record) for verdict in cells]


def _with_record(verdict: Verdict, record: VerdictRecord) -> Verdict:
    entry = record.of(verdict.cell)
    return verdict if entry is None else Verdict(**{**asdict(verdict), "recorded": entry.verdict, "why": entry.why})


def _judge_claim(
    gathered: Gathered, experiment: Experiment, method: str, claim: Claim, contents: Contents
) -> Iterator[Verdict]:
    """One verdict for each number of a claim."""
    seeds, least = gathered.of(experiment.name, method), contents.paper.seeds
    other = not contents.has(experiment.name, numbered=True)
    row = ClaimRow(f"{claim.table}: {experiment.title}" if other else claim.table, experiment.name, method, other)
    verdict = partial(_verdict, row, claim.erratum)
    if claim.epochs is not None:
        found = reached(experiment, seeds, "epochs")
        yield verdict("epochs", claim.epochs, found, judge_reached(claim.epochs, found, least))
    if claim.steps is not None:
        found = reached(experiment, seeds, "steps")
        yield verdict("steps", claim.steps, found, judge_reached(claim.steps, found, least, "steps"))
    if claim.final_accuracy is not None:
        final, paper = final_accuracy(seeds), claim.final_accuracy
        yield verdict("final accuracy", paper, final, judge_accuracy(paper, final, least))
    if claim.mean_train_accuracy is not None:
        mean, paper = mean_train_accuracy(seeds), claim.mean_train_accuracy
        yield verdict("mean accuracy", paper, mean, judge_accuracy(paper, mean, least))
    yield from _list_times(row, experiment, claim, seeds, contents.paper.hardware)


def _verdict(
    row: ClaimRow, erratum: str, measure: Quantity, paper: float | str, found: Estimate | Accuracy, judged: Judged
) -> Verdict:
    if isinstance(found, Accuracy):
        ours, counts = "" if found.median is None else in_percent(found.median), (found.n + found.diverged, found.n)
    else:
        ours, counts = "" if found.median is None else str(found.median), (found.n, found.passed)
    printed = in_percent(float(paper)) if isinstance(found, Accuracy) else str(paper)
    kind, text = excuse(judged, erratum)
    off = distance(paper, found.quartiles) if kind in FINDINGS else ""
    return Verdict(*row[:3], measure, printed, ours, found.spread, *counts, kind, text, row.other_settings, off)


def _list_times(
    row: ClaimRow, experiment: Experiment, claim: Claim, seeds: Sequence[RunSummary], hardware: str
) -> Iterator[Verdict]:
    """Times on other hardware, which are listed and not judged."""
    found, cost, steps = estimate(seeds), cost_of(seeds), experiment.steps_per_epoch
    text = f"other hardware: {hardware}; ours {cost.platform if cost else 'not run'}"
    epoch = None if cost is None else cost.ms_per_epoch
    listed: list[tuple[Quantity, float | None, Count | float | None]] = [
        ("seconds", claim.seconds, seconds_to_threshold(found, cost)),
        ("ms per epoch", claim.ms_per_epoch, epoch),
        ("ms per step", claim.ms_per_step, epoch / steps if epoch is not None and steps else None),
    ]
    for measure, paper, ours in listed:
        if paper is not None:
            ours_text, counts = "" if ours is None else measured(ours), (found.n, found.passed)
            yield Verdict(*row[:3], measure, str(paper), ours_text, "", *counts, "other hardware", text, row.other_settings)


def _judge_gains(gathered: Gathered, table: TablePlan, paper: Paper) -> Iterator[Verdict]:
    """The average gains of a table."""
    for plan in table.gains:
        gain = average_gain(gathered, plan, table.experiments)
        spread = "–".join(f"{end:.1f}" for end in gain.spread) if gain.spread else ""
        row, counts = (table.number, "average", plan.name), (gain.n, len(gain.counted))
        if plan.epochs is not None:
            ours = times(gain.epochs) if gain.epochs else ""
            kind, judged = judge_gain(gain, paper.seeds)
            off = distance(gain.paper, gain.quartiles) if kind in FINDINGS else ""
            yield Verdict(*row, "gain in epochs", times(plan.epochs), ours, spread, *counts, kind, judged, False, off)
        if plan.seconds is not None:
            ours = times(gain.seconds) if gain.seconds else ""
            timed = f"ours of {', '.join(gain.timed)}" if gain.timed else "ours not run on one platform"
            text = f"other hardware: {paper.hardware}; {timed}"
            yield Verdict(*row, "gain in seconds", times(plan.seconds), ours, "", *counts, "other hardware", text, False)


def record_to_toml(verdicts: Sequence[Verdict], record: VerdictRecord) -> str:
    """The text of a new record. An open cell keeps its entry, and a reason stays as long as its finding does."""
    found = {(entry.measure, name): (entry.verdict, entry.why) for entry in record.verdicts for name in entry.cells}
    for each in verdicts:
        if each.finding is not None:
            found[each.measure, each.cell.name] = (each.finding, each.why if each.finding == each.recorded else "")
    return as_toml(found)


def tally(verdicts: Sequence[Verdict], *, other_settings: bool = False) -> dict[str, int]:
    """How many verdicts there are of each kind, of cells that can be compared."""
    counted = [verdict for verdict in verdicts if verdict.compared and verdict.other_settings == other_settings]
    kinds = Counter(verdict.kind for verdict in counted)
    return dict(sorted(kinds.items()))


def in_words(verdicts: Sequence[Verdict]) -> str:
    """53 inside, 6 outside, ...; then cells on other settings than the paper's own, and times."""

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())

    parts = [listed(tally(verdicts)) or "none asked for"]
    other = tally(verdicts, other_settings=True)
    clocks = sum(not verdict.compared for verdict in verdicts)
    parts += [f"on other settings than its own (its text read literally, or one's own): {listed(other)}"] if other else []
    parts += [f"{clocks} wall-clock cells are of other hardware"] if clocks else []
    return "; ".join(parts)
