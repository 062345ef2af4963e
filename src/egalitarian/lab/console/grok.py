"""`egalitarian grok`: a few methods one after another, the slow ones only as long as it takes to see that they are slow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import UnionType

import torch

from egalitarian.lab.config import spec
from egalitarian.lab.config.spec import Experiment, Method
from egalitarian.lab.runs.progress import Interrupted, Listener, Progress, Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.runs.sweep import rehearse, sweep

SHORT = 2000
"""Epochs of a budget that is given whole: within them SGD at lr 5 passes on every modular task."""
MULTIPLE = 5
"""Of a longer budget, methods that do not equalise get this many times the epochs that EGD needed."""


@dataclass(frozen=True)
class Shown:
    """One method of the comparison and what became of its seeds."""

    name: str
    stop: Stop
    full_budget: int
    runs: tuple[Progress, ...]

    @property
    def median(self) -> float:
        """The epoch at which half of the seeds have passed; infinite where half of them have not."""
        return statistics.median(math.inf if run.crossed is None else run.crossed for run in self.runs)

    @property
    def cut_short(self) -> bool:
        """Whether a seed was stopped early because the method is one of the slow ones."""
        spent = (run.crossed is None and not run.diverged and run.next_epoch >= self.stop.epochs for run in self.runs)
        return self.stop.epochs < self.full_budget and any(spent)


def ranked(shown: Iterable[Shown]) -> list[Shown]:
    """Those that pass first come first."""
    return sorted(shown, key=lambda each: each.median)


def order(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """The methods to train, those that equalise first: the others' budget depends on them."""
    names = names or _usual(experiment)
    return sorted(names, key=lambda name: not equalises(experiment.method(name)))


def _usual(experiment: Experiment) -> list[str]:
    """Those that are trained by default; without EGD by a randomized SVD, which is slow on a CPU, if others are left."""
    few = [name for name in experiment.usual if not _holds(experiment.method(name), spec.LowRankPolar)]
    return few if len(few) > 1 else experiment.usual


def equalises(method: Method) -> bool:
    return _holds(method, spec.Polar | spec.LowRankPolar | spec.RowNorm)


def _holds(method: Method, kinds: UnionType | type) -> bool:
    return any(isinstance(link, kinds) for link in method.transform)


def compare(
    experiment: Experiment,
    names: Sequence[str],
    seeds: Sequence[int],
    store: Store,
    device: torch.device,
    listener: Listener,
    full: bool = False,
) -> Iterator[Shown]:
    """Trains each method in turn; unless `full`, those that do not equalise and have a long budget get a part of it."""
    shown: list[Shown] = []
    names = order(experiment, names)
    for name in names:
        rehearse(experiment, name, seeds[0])
    for name in names:
        budget = Stop.of(experiment, name)
        stop = budget
        limit = reference([each for each in shown if equalises(experiment.method(each.name))])
        if not full and not equalises(experiment.method(name)) and budget.epochs > SHORT and limit is not None:
            stop = replace(budget, epochs=min(budget.epochs, limit))
        try:
            runs = sweep(experiment, name, seeds, store, device, stop=stop, listener=listener)
        except Interrupted as interrupted:
            yield Shown(name, stop, budget.epochs, tuple(interrupted.runs))
            raise
        shown.append(Shown(name, stop, budget.epochs, tuple(runs)))
        yield shown[-1]


def reference(shown: Sequence[Shown]) -> int | None:
    """`MULTIPLE` times the epochs of EGD's slowest seed that passed, or of whichever of these methods comes first.

    Where none passed, the epochs that it was given; None where there is no method.
    """
    ordered = sorted(shown, key=lambda each: each.name != "egd")
    passed = [[MULTIPLE * (run.crossed + 1) for run in each.runs if run.crossed is not None] for each in ordered]
    given = [[each.stop.epochs] for each in ordered]
    return next((max(epochs) for epochs in (*passed, *given) if epochs), None)
