"""Whole experiments, trained until every seed is past the threshold: addition modulo 97, and six of the paper's tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from egalitarian.lab.analysis import median_and_range
from egalitarian.lab.bench.steps import with_polar
from egalitarian.lab.bench.theme import BenchRow, Column, Setup, Theme, message, now, text, three_digits, times
from egalitarian.lab.config import Experiment, Method, load, names
from egalitarian.lab.runs import Outcome
from egalitarian.lab.training import AccuracyMeter, Ensemble, MakeSteps, Stepper, steps_for, train

EXPERIMENT = "addition-97"
QUICK = ("task.modulus=7", "model.width=16", "training.batch=8", "task.train_fraction=0.9", "measure.threshold=0.05")
QUICK_EPOCHS = 10
BASELINE = "SGD, lr 5"
CLOCK_BASELINE = "SGD"
CLOCK_SEEDS = 8
CLOCK_RANDOMIZED = "addition-97"
"""The task on which the randomized methods are trained, too: their steps take so long that one task must do."""
HALF = 0.5
"""The accuracy whose epoch depends least on rounding."""
RUNS, ENOUGH = 3, 15.0
"""Runs of which the median is taken, and seconds after which no other begins."""
STEPS: dict[str, MakeSteps] = {"": steps_for}
"""How a training step runs, by the words after a method's name: the lab's own, and others to compare with it."""


class Trained(NamedTuple):
    """Seeds that were trained as one batch."""

    outcomes: list[Outcome]
    halves: list[Outcome]
    """The same with one half as the threshold."""
    setup_seconds: float
    """For data and networks."""
    seconds: float
    """For the steps, the batches and one test accuracy per epoch, without the bookkeeping between epochs."""

    @property
    def epochs(self) -> int:
        return self.outcomes[0].epochs


def rows(setup: Setup) -> Iterator[BenchRow]:
    experiment = load(EXPERIMENT, QUICK if setup.quick else ())
    for seeds in setup.seeds or ((1, 2) if setup.quick else (1, 8)):
        for name, method in methods(experiment):
            for suffix, make_steps in STEPS.items():
                title = f"{name}, {suffix}" if suffix else name
                yield row(_count(seeds), title, experiment, method, seeds, make_steps, setup)


def methods(experiment: Experiment) -> list[tuple[str, Method]]:
    egd, after = experiment.method("egd"), experiment.method("egd-after")
    return [
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        ("EGD coarse", with_polar(egd, "coarse")),
        ("EGD, decay after", with_polar(after, "exact")),
        ("EGD, decay after, fast", with_polar(after, "fast")),
        ("EGD, decay after, coarse", with_polar(after, "coarse")),
        ("row norm", experiment.method("row-norm")),
        (BASELINE, experiment.method("sgd-lr5")),
    ]


def clock_rows(setup: Setup) -> Iterator[BenchRow]:
    for task in [name for name in names() if name.rpartition("-")[0] in ("addition", "multiplication")]:
        experiment = load(task, QUICK if setup.quick else ())
        for seeds in setup.seeds or (2 if setup.quick else CLOCK_SEEDS,):
            base: BenchRow | None = None
            for title, method in clock_methods(experiment, randomized=task == CLOCK_RANDOMIZED and not setup.quick):
                done = row(f"{task}, {_count(seeds)}", title, experiment, method, seeds, steps_for, setup)
                base = base or done
                yield BenchRow(done.group, done.method, done.n, {**done.numbers, **shares(done, base)}, done.note)


def clock_methods(experiment: Experiment, *, randomized: bool) -> list[tuple[str, Method]]:
    """The paper's methods, the randomized ones last, and EGD in both precisions."""
    egd = experiment.method("egd")
    named = [
        (CLOCK_BASELINE, experiment.method("sgd")),
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        ("row norm", experiment.method("row-norm")),
    ]
    ranks = [(method.title, method) for name, method in experiment.methods.items() if name.startswith("egd-rsvd")]
    return named + (ranks if randomized else [])


def shares(done: BenchRow, base: BenchRow) -> dict[str, float | None]:
    """How many times fewer epochs than the baseline until the last seed has passed, and the share of that in seconds."""
    if not done.numbers or not base.numbers or done.numbers["passed"] < done.numbers["seeds"]:
        return {"gain": None, "share": None}
    gain = base.numbers["epochs"] / done.numbers["epochs"]
    return {"gain": gain, "share": base.numbers["seconds"] / done.numbers["seconds"] / gain}


def _count(seeds: int) -> str:
    return f"{seeds} seed{'s' if seeds > 1 else ''}"


def row(
    group: str, name: str, experiment: Experiment, method: Method, seeds: int, make_steps: MakeSteps, setup: Setup
) -> BenchRow:
    """The median of a few runs, after a warm-up of one epoch: libraries load, and memory is allocated."""
    budget = QUICK_EPOCHS if setup.quick else method.epochs
    done: list[Trained] = []
    try:
        train_until_passed(experiment, method, seeds, make_steps, 1, setup, f"{group}: {name}, warming up")
        while not done or (len(done) < RUNS and not setup.quick and sum(one.seconds for one in done) < ENOUGH):
            done.append(train_until_passed(experiment, method, seeds, make_steps, budget, setup, f"{group}: {name}"))
    except RuntimeError as error:
        return BenchRow(group, name, note=f"failed: {message(error)}")
    numbers = _numbers(done)
    return BenchRow(group, name, len(done), numbers, "" if numbers["passed"] == seeds else "not all passed")


def train_until_passed(
    experiment: Experiment, method: Method, seeds: int, make_steps: MakeSteps, budget: int, setup: Setup, doing: str
) -> Trained:
    """Trains until every seed is past the threshold, or the budget is spent; all seeds stay until the end."""
    setup.report(doing)
    start = now(setup.device)
    ensemble = Ensemble(experiment, range(seeds), setup.device)
    stepper = Stepper(method, ensemble.parameters)
    built, paused = now(setup.device), 0.0
    outcomes, halves = ([Outcome(level)] * seeds for level in (experiment.measure.threshold, HALF))
    for epoch in islice(train(ensemble, stepper, meter=AccuracyMeter(ensemble), make_steps=make_steps), budget):
        ended = time.perf_counter()
        records = [own[0] for own in epoch.records]
        outcomes = [outcome.after(record) for outcome, record in zip(outcomes, records, strict=True)]
        halves = [outcome.after(record) for outcome, record in zip(halves, records, strict=True)]
        if all(outcome.crossed is not None for outcome in outcomes):
            break
        median = sorted(record["test_accuracy"] for record in records)[(seeds - 1) // 2]
        setup.report(f"{doing}, epoch {epoch.number}, test accuracy {median:.1%}")
        paused += time.perf_counter() - ended
    return Trained(outcomes, halves, built - start, now(setup.device) - built - paused)


def _numbers(done: list[Trained]) -> dict[str, Any]:
    """Of the run of median time. Several runs train the same seeds, up to rounding."""
    run = sorted(done, key=lambda each: each.seconds)[(len(done) - 1) // 2]
    crossed, half = ([outcome.crossed for outcome in outcomes] for outcomes in (run.outcomes, run.halves))
    return {
        "seeds": len(crossed),
        "passed": sum(epoch is not None for epoch in crossed),
        "epoch": median_and_range([(epoch, run.epochs) for epoch in crossed]),
        "half": median_and_range([(epoch, run.epochs) for epoch in half]),
        "seconds": run.seconds,
        "setup_seconds": run.setup_seconds,
        "epochs": run.epochs,
        "ms_per_epoch": 1e3 * run.seconds / run.epochs,
        "crossed": crossed,
        "all_seconds": sorted(one.seconds for one in done),
    }


THEME = Theme(
    name="experiment",
    title="Addition modulo 97, trained to 95 % test accuracy",
    about=(
        "All seeds are one batch, until the last has passed the threshold or the method's budget is spent. Test "
        "accuracy is measured once an epoch, and nothing else is measured or stored.\n"
        "epoch: the first, from 0, whose test accuracy is past the threshold; at 50 %: past one half. Both are "
        "medians over the seeds (smallest-largest).\n"
        "s: seconds of all seeds together, evaluation included, of the run of median time.\n"
        "build s: seconds for data and networks, not in s.\n"
        f"ratio: how many times faster than `{BASELINE}`.\n"
        "n: runs."
    ),
    groups="together",
    columns=(
        Column("passed", "passed", text),
        Column("epoch", "epoch", text),
        Column("half", "at 50 %", text),
        Column("seconds", "s", three_digits),
        Column("ratio", "ratio", times),
        Column("ms_per_epoch", "ms per epoch", three_digits),
        Column("epochs", "epochs", text),
        Column("setup_seconds", "build s", three_digits),
        Column("n", "n", text),
    ),
    number="seconds",
    graph_key="",
    baseline=BASELINE,
    ratio_is_speedup=True,
    rows=rows,
)
CLOCK = Theme(
    name="clock",
    title="Epochs and the clock: the paper's modular tasks",
    about=(
        "All seeds are one batch, until the last has passed 95 % test accuracy. Test accuracy is measured once an "
        "epoch, and nothing else is measured or stored.\n"
        f"gain: how many times fewer epochs than `{CLOCK_BASELINE}`, until the last seed has passed.\n"
        "ratio: how many times faster.\n"
        "share: ratio over gain, 1 where an epoch costs as much as one of SGD.\n"
        "epoch: median (smallest-largest) over seeds, from 0."
    ),
    groups="task",
    columns=(
        Column("passed", "passed", text),
        Column("epoch", "epoch", text),
        Column("gain", "gain", times),
        Column("seconds", "s", three_digits),
        Column("ratio", "ratio", times),
        Column("share", "share", three_digits),
        Column("ms_per_epoch", "ms per epoch", three_digits),
        Column("n", "n", text),
    ),
    number="seconds",
    graph_key="",
    baseline=CLOCK_BASELINE,
    ratio_is_speedup=True,
    rows=clock_rows,
)
