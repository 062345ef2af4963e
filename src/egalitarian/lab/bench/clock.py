"""Epochs and the clock: on the paper's modular tasks, what of the gain in epochs is left in seconds."""

from __future__ import annotations

from collections.abc import Iterator

from egalitarian.lab.bench.experiments import QUICK, row
from egalitarian.lab.bench.loop import with_polar
from egalitarian.lab.bench.theme import Column, Row, Setup, Theme, figures, text, times
from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment, Method
from egalitarian.lab.training.capture import steps_for

BASELINE = "SGD"
SEEDS = 8
RANDOMIZED = "addition-97"
"""The task on which the randomized ways are trained, too: their step takes so long that one will do."""


def rows(setup: Setup) -> Iterator[Row]:
    for name in [name for name in catalog.names() if name.rpartition("-")[0] in ("addition", "multiplication")]:
        experiment = catalog.load(name, QUICK if setup.quick else ())
        for seeds in setup.seeds or (2 if setup.quick else SEEDS,):
            group = f"{name}, {seeds} seed{'s' if seeds > 1 else ''}"
            base: Row | None = None
            for title, method in methods(experiment, randomized=name == RANDOMIZED and not setup.quick):
                done = row(group, title, experiment, method, seeds, steps_for, setup)
                base = base or done
                yield Row(done.group, done.method, done.n, {**done.numbers, **shares(done, base)}, done.note)


def methods(experiment: Experiment, *, randomized: bool) -> list[tuple[str, Method]]:
    """The paper's, the randomized ones last, and EGD in both precisions."""
    egd = experiment.method("egd")
    named = [
        (BASELINE, experiment.method("sgd")),
        ("EGD exact", with_polar(egd, "exact")),
        ("EGD fast", with_polar(egd, "fast")),
        ("row norm", experiment.method("row-norm")),
    ]
    ranks = [(method.title, method) for name, method in experiment.methods.items() if name.startswith("egd-rsvd")]
    return named + (ranks if randomized else [])


def shares(done: Row, base: Row) -> dict[str, float | None]:
    """How many times fewer epochs than the baseline until the last seed has passed, and the share of that in seconds."""
    if not done.numbers or not base.numbers or done.numbers["passed"] < done.numbers["seeds"]:
        return {"gain": None, "share": None}
    gain = base.numbers["epochs"] / done.numbers["epochs"]
    return {"gain": gain, "share": base.numbers["seconds"] / done.numbers["seconds"] / gain}


THEME = Theme(
    name="clock",
    title="Epochs and the clock: the paper's modular tasks",
    about=(
        "All seeds are one batch, until the last has passed 95 % test accuracy. Test accuracy is measured once an "
        "epoch, and nothing else is measured or stored.\n"
        f"gain: how many times fewer epochs than `{BASELINE}`, until the last seed has passed.\n"
        "ratio: how many times faster.\n"
        "share: ratio over gain, 1 where an epoch costs as much as one of SGD.\n"
        "epoch: median (smallest-largest) over seeds, from 0."
    ),
    groups="task",
    columns=(
        Column("passed", "passed", text),
        Column("epoch", "epoch", text),
        Column("gain", "gain", times),
        Column("seconds", "s", figures),
        Column("ratio", "ratio", times),
        Column("share", "share", figures),
        Column("ms_per_epoch", "ms per epoch", figures),
        Column("n", "n", text),
    ),
    number="seconds",
    graph="",
    baseline=BASELINE,
    faster=True,
    rows=rows,
)
