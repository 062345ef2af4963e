"""The report on one page: counts of verdicts, deviations and reasons, seeds and cost.

Two more tables list how the runs were made, and the runs that do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from egalitarian.lab.analysis import (
    ERRATA,
    NOTHING,
    Gathered,
    Platform,
    RunSummary,
    Spent,
    Value,
    Verdict,
    VerdictKind,
    measured,
    more_seeds,
    seed_counts,
    spent_on,
)
from egalitarian.lab.config import Contents, TablePlan
from egalitarian.lab.report.render import Block, Table, markdown

COLUMNS: dict[str, tuple[VerdictKind, ...]] = {
    "inside": ("inside",),
    "outside": ("outside", "known"),
    "undecided": ("undecided", "too few seeds", "unfinished", "incomplete"),
    "not run": ("not run",),
}
"""The kinds of verdicts that each column counts."""
ALL = "all of the paper's"
"""The label of the last row."""
DISTANCE = (
    "Distance: the paper's value minus our median, in interquartile ranges of our seeds; inf if our quartiles are equal "
    'and the median is not the paper\'s. "Never", a quartile that is only a bound, and an open cell have none'
)
"""The note on the column of distances."""
DEVICES = {"cuda": "GPU time", "cpu": "CPU time"}
"""Columns by device."""
PROVENANCE = ("source", "commit", "hardware", "device", "torch", "polar")
"""Columns that are equal for all runs of a row."""


@dataclass(frozen=True)
class Overview:
    """The contents of the page."""

    counts: Table
    cells: Table
    """Every cell that is outside or undecided, with its reason."""
    few: tuple[str, ...]
    """Rows of the paper with fewer seeds than verdicts need."""
    spent: tuple[Spent, ...]

    def markdown(self, title: str, sentence: str) -> str:
        """SUMMARY.md."""
        parts = [f"# {title}, on one page\n", f"{sentence}\n", markdown(self.counts)]
        if self.cells.records:
            parts.append(_link_errata(markdown(self.cells)))
        return "\n".join(parts)


def overview(contents: Contents, gathered: Gathered, verdicts: Sequence[Verdict]) -> Overview:
    """The overview of these verdicts."""
    compared = [verdict for verdict in verdicts if verdict.compared]
    spent = tuple(_spent(_label(plan), plan.experiments, gathered) for plan in contents.tables if plan.runs)
    numbered = {name for plan in contents.tables if plan.runs and plan.number for name in plan.experiments}
    spent += () if gathered.named else (_spent(ALL, numbered, gathered),)
    few = tuple(_few_seeds(contents, gathered.first(contents.paper.seeds)))
    return Overview(_counts_table(contents, gathered, compared, spent, few), _cells_table(compared), few, spent)


def _spent(label: str, experiments: Iterable[str], gathered: Gathered) -> Spent:
    wanted = set(experiments)
    return spent_on(label, [run for run in gathered.runs if run.experiment in wanted])


def _counts_table(
    contents: Contents, gathered: Gathered, verdicts: Sequence[Verdict], spent: Iterable[Spent], few: Sequence[str]
) -> Table:
    costs, least = {each.table: each for each in spent}, contents.paper.seeds
    records = []
    for plan in contents.tables:
        cells, cost = _verdicts_of(plan, verdicts), costs.get(_label(plan))
        if cells or (cost is not None and cost.runs):
            records.append(_count(_label(plan), cells, _seeds(plan, gathered) if plan.runs else "", cost))
    cells = [verdict for verdict in verdicts if not verdict.other_settings]
    records.append(_count(ALL, cells, "", costs.get(ALL)))
    return Table(
        name="summary",
        title="Cells of the paper's tables",
        number="",
        columns=tuple(records[0]),
        blocks=(Block("", tuple(tuple(map(_text, record.values())) for record in records)),),
        notes=(
            f"Inside: the paper's value lies between the smallest and the largest of seeds 0 to {least - 1}. A number "
            f"drawn like ours does in {100 * (least - 1) / (least + 1):.0f} % of cases",
            "Outside: it does not. That includes cells of which docs/errata.md says why",
            "Undecided: it lies above every seed that passed, while others did not pass; or there are too few seeds, or "
            "unfinished ones",
            "Of a final accuracy, the spread is over the last tenth of the epochs of full-length runs",
            "Of an average gain, the spread is the central 95 % of averages made from single seeds. Judged is the paper's "
            "average over the same tasks, from its own cells",
            "Wall-clock cells come from other hardware and are not counted",
            f"Seeds: of the paper's rows, smallest to largest. Fewer than {least}: {'; '.join(few) or 'none'}",
            *more_seeds(gathered, least),
            "Time: while at least one of the table's stored runs was training or being measured, including those that are "
            "not in the paper. Time that several tables share counts for each of them, and once in the total. Several GPUs "
            "or machines at work at the same time count once",
            *(
                f"{each.table}: {each.untimed} of {each.runs} runs have no stored times"
                for each in spent
                if each.untimed and each.table != ALL
            ),
        ),
        records=tuple(records),
    )


def _label(plan: TablePlan) -> str:
    return plan.number or plan.title


def _verdicts_of(plan: TablePlan, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on a table's cells."""
    if plan.number:
        return [verdict for verdict in verdicts if verdict.table == plan.number]
    others = [verdict for verdict in verdicts if verdict.other_settings and plan.runs]
    return [verdict for verdict in others if verdict.experiment in plan.experiments]


def _count(name: str, verdicts: Sequence[Verdict], seeds: str, cost: Spent | None) -> dict[str, Value]:
    kinds = Counter(verdict.kind for verdict in verdicts)
    return {
        "table": name,
        **{column: sum(kinds[kind] for kind in counted) for column, counted in COLUMNS.items()},
        "seeds": seeds,
        **{column: _duration(cost.seconds.get(device)) if cost else "" for device, column in DEVICES.items()},
        "hardware": ", ".join(cost.hardware) if cost else "",
    }


def _text(value: Value) -> str:
    return NOTHING if value in ("", None) else str(value)


def _cells_table(verdicts: Sequence[Verdict]) -> Table:
    shown = [verdict for verdict in verdicts if verdict.kind in (*COLUMNS["outside"], *COLUMNS["undecided"])]
    records: list[dict[str, Value]] = [
        {
            "table": verdict.table.partition(":")[0] + (", other settings" if verdict.other_settings else ""),
            "cell": f"{verdict.experiment}, {verdict.method}: {verdict.measure}",
            "paper": verdict.paper,
            "ours": f"{verdict.ours} ({verdict.spread})"
            if verdict.spread not in ("", verdict.ours)
            else verdict.ours or NOTHING,
            "seeds": verdict.n,
            "distance": verdict.distance,
            "verdict": verdict.verdict,
            "why": _why(verdict),
        }
        for verdict in sorted(shown, key=lambda verdict: (verdict.other_settings, verdict.table))
    ]
    return Table(
        name="outside",
        title="Outside or undecided, and why",
        number="",
        columns=tuple(records[0]) if records else (),
        blocks=(Block("", tuple(tuple(map(_text, record.values())) for record in records)),),
        notes=(DISTANCE,),
        records=tuple(records),
    )


def _why(verdict: Verdict) -> str:
    if verdict.contradicts:
        return f"on record it is {verdict.recorded}"
    return verdict.why or ("not known" if verdict.kind == "outside" else "")


def _seeds(plan: TablePlan, gathered: Gathered) -> str:
    """The smallest and the largest number of seeds in a row."""
    experiments = gathered.named_in(plan.experiments)
    counts = [count for each in experiments for count in seed_counts(gathered, each, plan).values()]
    return "–".join(dict.fromkeys(map(str, (min(counts), max(counts))))) if counts else ""


def _few_seeds(contents: Contents, gathered: Gathered) -> Iterator[str]:
    for plan in contents.tables:
        for experiment in gathered.named_in(plan.experiments) if plan.runs and plan.number else ():
            counts = seed_counts(gathered, experiment, plan)
            few = {method: count for method, count in counts.items() if count < contents.paper.seeds}
            if few and few == counts and len(set(few.values())) == 1:
                yield f"{experiment.name} {next(iter(few.values()))}"
            elif few:
                yield f"{experiment.name} " + ", ".join(f"{method} {count}" for method, count in few.items())


def cost_lines(spent: Iterable[Spent]) -> list[str]:
    """The time of each table that has runs."""
    return [f"{each.table}: {', '.join(_by_device(each))}" for each in spent if each.runs]


def _by_device(spent: Spent) -> list[str]:
    used = [(device, seconds) for device, seconds in sorted(spent.seconds.items()) if seconds]
    timed = [f"{_duration(seconds)} of {DEVICES.get(device, device)}" for device, seconds in used]
    timed = [f"{' and '.join(timed)} for {_runs(spent.runs - spent.untimed)}"] if timed else []
    return timed + ([f"{_runs(spent.untimed)} without stored times"] if spent.untimed else [])


def _duration(seconds: float | None) -> str:
    """In hours, minutes or seconds."""
    if not seconds:
        return ""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{measured(seconds / size)} {unit}"
    return f"{seconds:.2g} s"


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _link_errata(text: str) -> str:
    """Names of errata as links, relative to the folder of the committed results."""
    return re.sub(rf"{re.escape(ERRATA)}#([\w-]+)", r"[errata: \1](../\g<0>)", text)


def provenance_table(gathered: Gathered) -> Table:
    """One row for each combination of source, hardware and versions."""
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for run in gathered.runs:
        if run.platform is not None:
            groups.setdefault(_key(run.platform, run.polar), []).append(run)
    records: list[dict[str, Value]] = [
        {**dict(zip(PROVENANCE, key, strict=True)), "runs": len(runs), "seeds": _seeds_text(runs), "trained": _dates(runs)}
        for key, runs in groups.items()
    ]
    unknown = sum(run.platform is None for run in gathered.runs)
    return Table(
        name="provenance",
        title="How the runs were made",
        number="",
        columns=(*PROVENANCE, "runs", "seeds", "trained"),
        blocks=(Block("", tuple(tuple(map(str, record.values())) for record in records)),),
        notes=(
            "Source: a hash of the package's files as they ran. Equal hashes mean equal code",
            "Commit: only where the checkout had no changes. Where it had, summary.csv names the commit with a +, and only "
            "the source identifies the code",
            "Polar: the tier of the polar factor (docs/lab.md), with the version of an older record. Empty where a method "
            "has none",
            *([f"Of {unknown} more it is not stored how they were made"] if unknown else []),
        ),
        records=tuple(records),
    )


def _key(platform: Platform, polar: str) -> tuple[str, ...]:
    """Without the commit of a checkout with changes, as other code ran."""
    commit = NOTHING if platform.commit.endswith("+") else platform.commit or NOTHING
    return platform.source, commit, platform.hardware, platform.device, platform.torch, polar or NOTHING


def _seeds_text(runs: Iterable[RunSummary]) -> str:
    seeds = sorted({run.seed for run in runs})
    whole = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}–{seeds[-1]}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))


def _dates(runs: Iterable[RunSummary]) -> str:
    days = sorted({run.platform.when[:10] for run in runs if run.platform is not None})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def variants_table(variants: Sequence[RunSummary]) -> Table:
    """Stored runs that do not count, with how they differ."""
    rows = [(run.experiment, run.method, str(run.seed), run.id, _passing(run), run.differs) for run in variants]
    return Table(
        name="variants",
        title="Stored runs of other settings, which count nowhere above",
        number="",
        columns=("experiment", "method", "seed", "id", "epochs to the threshold", "what differs"),
        blocks=(Block("", tuple(rows)),),
        notes=(),
        records=tuple(run.csv_row() for run in variants),
    )


def _passing(run: RunSummary) -> str:
    crossed = run.outcome.crossed
    return f"{crossed}" if crossed is not None else f"> {run.bound}, {run.state}"
