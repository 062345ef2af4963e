"""A whole experiment: addition modulo 97 trained until every seed is past the threshold, and nothing besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from egalitarian.lab.analysis.statistics import median_and_range
from egalitarian.lab.bench.loop import STEPS, MakeSteps, Trained, now, train_to, with_polar
from egalitarian.lab.bench.theme import Column, Row, Setup, Theme, figures, text, times
from egalitarian.lab.bench.timing import said
from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment, Method
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.stepper import Stepper

EXPERIMENT = "addition-97"
QUICK = ("task.modulus=7", "model.width=16", "training.batch=8", "task.train_fraction=0.9", "measure.threshold=0.05")
QUICK_EPOCHS = 10
BASELINE = "SGD, lr 5"
RUNS, ENOUGH = 3, 15.0
"""Runs of which the median is taken, and seconds after which no other is begun."""


def rows(setup: Setup) -> Iterator[Row]:
    experiment = catalog.load(EXPERIMENT, QUICK if setup.quick else ())
    for seeds in setup.seeds or ((1, 2) if setup.quick else (1, 8)):
        group = f"{seeds} seed{'s' if seeds > 1 else ''}"
        for name, method in methods(experiment):
            for way, make_steps in STEPS.items():
                yield row(group, f"{name}, {way}" if way else name, experiment, method, seeds, make_steps, setup)


def methods(experiment: Experiment) -> list[tuple[str, Method]]:
    egd, after = experiment.method("egd"), experiment.method("egd-after")
    return [
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        ("EGD, decay after", with_polar(after, "exact")),
        ("EGD, decay after, fast", with_polar(after, "fast")),
        ("row norm", experiment.method("row-norm")),
        (BASELINE, experiment.method("sgd-lr5")),
    ]


def row(
    group: str, name: str, experiment: Experiment, method: Method, seeds: int, make_steps: MakeSteps, setup: Setup
) -> Row:
    """Training is run once in vain for an epoch: libraries load, memory is taken."""
    budget = QUICK_EPOCHS if setup.quick else method.epochs
    done: list[tuple[float, Trained]] = []
    try:
        _run(experiment, method, seeds, make_steps, 1, setup, f"{group}: {name}, warming up")
        while not done or (len(done) < RUNS and not setup.quick and sum(one.seconds for _, one in done) < ENOUGH):
            done.append(_run(experiment, method, seeds, make_steps, budget, setup, f"{group}: {name}"))
    except RuntimeError as error:
        return Row(group, name, note=f"failed: {said(error)}")
    numbers = _numbers(seeds, done)
    return Row(group, name, len(done), numbers, "" if numbers["passed"] == seeds else "not all passed")


def _run(
    experiment: Experiment, method: Method, seeds: int, make_steps: MakeSteps, budget: int, setup: Setup, doing: str
) -> tuple[float, Trained]:
    """(seconds to build data and networks, what the training came to)."""
    setup.tell(doing)
    start = now(setup.device)
    ensemble = Ensemble(experiment, range(seeds), setup.device)
    stepper = Stepper(method, ensemble.parameters)
    built = now(setup.device) - start

    def tell(state: str) -> None:
        setup.tell(f"{doing}, {state}")

    return built, train_to(experiment.measure.threshold, ensemble, stepper, make_steps, budget, tell)


def _numbers(seeds: int, done: list[tuple[float, Trained]]) -> dict[str, Any]:
    """The run of median time; where there are several, the same seeds with the same rounding, or nearly."""
    built, run = sorted(done, key=lambda each: each[1].seconds)[(len(done) - 1) // 2]
    return {
        "seeds": seeds,
        "passed": sum(epoch is not None for epoch in run.crossed),
        "epoch": median_and_range([(epoch, run.epochs) for epoch in run.crossed]),
        "half": median_and_range([(epoch, run.epochs) for epoch in run.half]),
        "seconds": run.seconds,
        "setup_seconds": built,
        "epochs": run.epochs,
        "ms_per_epoch": 1e3 * run.seconds / run.epochs,
        "crossed": run.crossed,
        "all_seconds": sorted(one.seconds for _, one in done),
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
        Column("seconds", "s", figures),
        Column("ratio", "ratio", times),
        Column("ms_per_epoch", "ms per epoch", figures),
        Column("epochs", "epochs", text),
        Column("setup_seconds", "build s", figures),
        Column("n", "n", text),
    ),
    number="seconds",
    graph="",
    baseline=BASELINE,
    faster=True,
    rows=rows,
)
