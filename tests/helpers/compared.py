"""Methods of `egalitarian grok` whose seeds pass at known epochs, without training; and options that make it small."""

from __future__ import annotations

from egalitarian.lab.config import Experiment, Run, load
from egalitarian.lab.console.grok import MethodRuns
from egalitarian.lab.runs import Outcome, Progress, Stop

ADDITION = load("addition-97")
SMALL = ["--set", "task.modulus=7", "--set", "model.width=16", "--set", "training.batch=8"]


def known(name: str, *epochs: int | None, experiment: Experiment = ADDITION, budget: int = 100) -> MethodRuns:
    """A method whose seeds pass at these epochs, or do not within the budget."""
    runs = []
    for seed, crossed in enumerate(epochs):
        outcome = Outcome(0.95, epochs=budget if crossed is None else crossed + 1, crossed=crossed)
        runs.append(Progress(Run(experiment, name, seed, "cpu"), outcome, last={}, curve=[0.5]))
    return MethodRuns(name, Stop(0.95, budget, 5), experiment.method(name).epochs, tuple(runs))
