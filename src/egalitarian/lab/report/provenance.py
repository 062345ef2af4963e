"""How the runs of a report were made, and stored runs that do not count, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egalitarian.lab.analysis import NOTHING, Gathered, Platform, RunSummary, Value
from egalitarian.lab.report.render import Block, Table

KEYS = ("source", "commit", "hardware", "device", "torch", "polar")


def provenance_table(gathered: Gathered) -> Table:
    """One row for each combination of source, hardware and versions."""
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for run in gathered.runs:
        if run.platform is not None:
            groups.setdefault(_key(run.platform), []).append(run)
    records: list[dict[str, Value]] = [
        {**dict(zip(KEYS, key, strict=True)), "runs": len(runs), "seeds": _seeds(runs), "trained": _dates(runs)}
        for key, runs in groups.items()
    ]
    unknown = sum(run.platform is None for run in gathered.runs)
    return Table(
        name="provenance",
        title="How the runs were made",
        number="",
        columns=(*KEYS, "runs", "seeds", "trained"),
        blocks=(Block("", tuple(tuple(map(str, record.values())) for record in records)),),
        notes=(
            "Source: a hash of the package's files as they ran. Equal hashes mean equal code",
            "Commit: only where the checkout had no changes. Where it had, summary.csv names the commit with a +, and only "
            "the source identifies the code",
            "Polar: how the polar factor was computed, exact or fast (docs/lab.md). Empty where a method has none, or "
            "where a run is older than this choice",
            *([f"Of {unknown} more it is not stored how they were made"] if unknown else []),
        ),
        records=tuple(records),
    )


def _key(platform: Platform) -> tuple[str, ...]:
    """Without the commit of a checkout with changes, as other code ran."""
    commit = NOTHING if platform.commit.endswith("+") else platform.commit or NOTHING
    return platform.source, commit, platform.hardware, platform.device, platform.torch, platform.polar or NOTHING


def _seeds(runs: Iterable[RunSummary]) -> str:
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
        records=tuple(run.record() for run in variants),
    )


def _passing(run: RunSummary) -> str:
    crossed = run.outcome.crossed
    return f"{crossed}" if crossed is not None else f"> {run.bound}, {run.state}"
