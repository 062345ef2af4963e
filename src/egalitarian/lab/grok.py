"""`egalitarian grok`: a few methods side by side, the slow ones only as long as it takes to see that they are slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from egalitarian.lab import spec
from egalitarian.lab.progress import Interrupted, Listener, Progress, Stop
from egalitarian.lab.spec import Experiment, Method
from egalitarian.lab.store import Store
from egalitarian.lab.sweep import rehearse, sweep

METHODS = ("egd", "egd-after", "row-norm", "sgd", "sgd-lr5")
"""Shown by default, where the experiment has them."""
MULTIPLE = 3
"""Methods that do not equalise get this many times the epochs that EGD needed, or was given in vain."""


@dataclass(frozen=True)
class Shown:
    """One method of the comparison and what became of its seeds."""

    name: str
    stop: Stop
    full_budget: int
    runs: tuple[Progress, ...]

    @property
    def cut_short(self) -> bool:
        """Whether it was stopped early because it is one of the slow ones."""
        return self.stop.epochs < self.full_budget and any(run.crossed is None for run in self.runs)


def order(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """The methods to show, those that equalise first: the others' budget depends on them."""
    chosen = names or [name for name in METHODS if name in experiment.methods]
    return sorted(chosen, key=lambda name: not equalises(experiment.method(name)))


def equalises(method: Method) -> bool:
    return any(isinstance(link, spec.Polar | spec.LowRankPolar | spec.RowNorm) for link in method.transform)


def compare(
    experiment: Experiment,
    names: Sequence[str],
    seeds: Sequence[int],
    store: Store,
    device: torch.device,
    listener: Listener,
    full: bool = False,
) -> Iterator[Shown]:
    """Trains each method in turn; unless `full`, those that do not equalise for `MULTIPLE` times EGD's epochs."""
    shown: list[Shown] = []
    names = order(experiment, names)
    for name in names:
        rehearse(experiment, name, seeds[0])
    for name in names:
        budget = Stop.of(experiment, name)
        stop = budget
        limit = reference(shown)
        if not full and not equalises(experiment.method(name)) and limit is not None:
            stop = replace(budget, epochs=min(budget.epochs, MULTIPLE * limit))
        try:
            runs = sweep(experiment, name, seeds, store, device, stop=stop, listener=listener)
        except Interrupted as interrupted:
            yield Shown(name, stop, budget.epochs, tuple(interrupted.runs))
            raise
        shown.append(Shown(name, stop, budget.epochs, tuple(runs)))
        yield shown[-1]


def reference(shown: Sequence[Shown]) -> int | None:
    """The epochs EGD needed for its slowest seed that passed, or whichever equalising method comes first.

    Where none passed, the epochs they were given; None where there is none.
    """
    ordered = sorted(shown, key=lambda each: each.name != "egd")
    passed = [[run.crossed + 1 for run in each.runs if run.crossed is not None] for each in ordered]
    trained = [[run.next_epoch for run in each.runs] for each in ordered]
    return next((max(epochs) for epochs in (*passed, *trained) if epochs), None)
