"""How the runs of a report were made: on what, with what, when, from which source; and every run as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from egalitarian.lab.analysis.counts import NOTHING
from egalitarian.lab.analysis.gather import Gathered, Summary
from egalitarian.lab.analysis.reading import Platform
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.report.render import Block, Table, Value


def provenance(gathered: Gathered) -> Table:
    """One row per kind of machine, versions and source."""
    groups: dict[tuple[str, ...], list[Summary]] = {}
    for run in gathered.runs:
        if run.platform is not None:
            about = run.platform
            key = (about.source, _commit(about), about.hardware, about.device, about.torch, about.polar or NOTHING)
            groups.setdefault(key, []).append(run)
    keys = ("source", "commit", "hardware", "device", "torch", "polar")
    records: list[dict[str, Value]] = [
        {**dict(zip(keys, key, strict=True)), "runs": len(runs), "seeds": _seeds(runs), "trained": _dates(runs)}
        for key, runs in groups.items()
    ]
    untold = sum(run.platform is None for run in gathered.runs)
    return Table(
        name="provenance",
        title="How the runs were made",
        number="",
        columns=(*keys, "runs", "seeds", "trained"),
        blocks=(Block("", tuple(tuple(map(str, record.values())) for record in records)),),
        notes=(
            "Source: a hash of the package's files as they ran. Equal hashes mean equal code",
            "Commit: only where the checkout had no changes. Where it had, summary.csv names the commit with a +, and only "
            "the source identifies the code",
            "Polar: how the polar factor was computed, exact or fast (docs/lab.md). Empty where a method has none, or "
            "where a run is older than this choice",
            *([f"Of {untold} more it is not stored how they were made"] if untold else []),
        ),
        records=tuple(records),
    )


def _commit(about: Platform) -> str:
    """That of the code which ran; none where the checkout had changes."""
    return NOTHING if about.commit.endswith("+") else about.commit or NOTHING


def _seeds(runs: Iterable[Summary]) -> str:
    seeds = sorted({run.seed for run in runs})
    whole = seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]}–{seeds[-1]}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))


def _dates(runs: Iterable[Summary]) -> str:
    days = sorted({run.platform.when[:10] for run in runs if run.platform is not None})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def run_record(run: Summary) -> dict[str, Value]:
    """One run, for summary.csv."""
    about = run.platform
    return {
        "experiment": run.experiment,
        "method": run.method,
        "seed": run.seed,
        "id": run.id,
        "counts": "no" if run.differs else "yes",
        "state": run.state,
        "crossed": run.crossed,
        "epochs": run.epochs,
        "train_accuracy": run.train_accuracy,
        "test_accuracy": run.test_accuracy,
        "best_test_accuracy": run.best_test_accuracy,
        "full_length": "yes" if run.full else "no",
        "mean_train_accuracy": run.mean_train_accuracy,
        "seconds": run.seconds,
        "ms_per_epoch": about and about.ms_per_epoch,
        "measuring_ms_per_epoch": about and about.measuring_ms_per_epoch,
        "hardware": about and about.hardware,
        "device": about and about.device,
        "threads": about and about.threads,
        "seeds_side_by_side": about and about.together,
        "torch": about and about.torch,
        "polar": about and about.polar,
        "source": about and about.source,
        "commit": about and about.commit,
        "when": about and about.when,
        "differs": run.differs,
    }


def estimates(gathered: Gathered) -> dict[str, dict[str, dict[str, Value]]]:
    """What the seeds of each experiment and method come to, for summary.json."""
    found: dict[str, dict[str, dict[str, Value]]] = {}
    for experiment, method in dict.fromkeys((run.experiment, run.method) for run in gathered.runs):
        numbers = estimate(gathered.of(experiment, method))
        ends = {"median": numbers.median, "min": numbers.low, "max": numbers.high}
        quartiles = {"lower_quartile": numbers.lower_quartile, "upper_quartile": numbers.upper_quartile}
        counts = {"n": numbers.n, "passed": numbers.passed, "diverged": numbers.diverged, "unfinished": numbers.unfinished}
        plain = {key: None if count is None else count.plain for key, count in {**ends, **quartiles}.items()}
        found.setdefault(experiment, {})[method] = {**counts, **plain}
    return found


def variants_table(variants: Sequence[Summary]) -> Table:
    """Runs that are stored and do not count, with what differs."""
    rows = [(run.experiment, run.method, str(run.seed), run.id, _outcome(run), run.differs) for run in variants]
    return Table(
        name="variants",
        title="Stored runs of other settings, which count nowhere above",
        number="",
        columns=("experiment", "method", "seed", "id", "epochs to the threshold", "what differs"),
        blocks=(Block("", tuple(rows)),),
        notes=(),
        records=tuple(run_record(run) for run in variants),
    )


def _outcome(run: Summary) -> str:
    return f"{run.crossed}" if run.crossed is not None else f"> {run.bound}, {run.state}"
