"""What `egalitarian run` was asked for, as values: carried out here, one method after another, or said as commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from egalitarian.lab.runs.progress import Listener, Progress, Stop
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.runs.store import Store, StoreError
from egalitarian.lab.runs.sweep import all_stored, rehearse, sweep


@dataclass(frozen=True)
class Plan:
    """One method of one experiment."""

    typed: str
    """The experiment as the user named it."""
    experiment: Experiment
    method: str
    final: bool
    """Whether the first seed goes on through its whole budget."""

    @property
    def name(self) -> str:
        return f"{self.experiment.name} {self.method}"


@dataclass(frozen=True)
class Order:
    """Some plans, and what holds for all of them."""

    plans: Sequence[Plan]
    seeds: Sequence[int]
    device: torch.device
    threads: int
    runs: Path
    epochs: int | None = None
    """Instead of a method's budget."""
    past: int | None = None
    """Epochs after the threshold, instead of the experiment's."""

    def left(self, *, patient: bool = False) -> Order:
        """The same of the plans that are not wholly stored; patient: with those that cannot be read, for others to tell."""
        return replace(self, plans=[plan for plan in self.plans if not self._is_stored(plan, patient)])

    def rehearse(self) -> None:
        """One step of every plan: what cannot work is told before anything is trained."""
        for plan in self.plans:
            rehearse(plan.experiment, plan.method, self.seeds[0])

    def carry_out(self, listener: Listener) -> list[list[Progress]]:
        """Trains what is not stored; what is known of every plan's seeds."""
        store = Store(self.runs)

        def train(plan: Plan, seeds: Sequence[int], stop: Stop) -> list[Progress]:
            return sweep(plan.experiment, plan.method, seeds, store, self.device, stop=stop, listener=listener)

        done = [train(plan, *self._parts(plan)[0]) for plan in self.plans]
        for plan, known in zip(self.plans, done, strict=True):
            for part in self._parts(plan)[1:]:
                known[:1] = train(plan, *part)
        return done

    def _parts(self, plan: Plan) -> list[tuple[Sequence[int], Stop]]:
        """What is to be stored: first every seed until its stop, then where it is final the first through its budget."""
        budget = plan.experiment.method(plan.method).epochs if self.epochs is None else self.epochs
        whole = Stop.of(plan.experiment, plan.method, budget, past=budget)
        parts = [(self.seeds, Stop.of(plan.experiment, plan.method, self.epochs, self.past))]
        return [*parts, (self.seeds[:1], whole)] if plan.final else parts

    def _is_stored(self, plan: Plan, patient: bool) -> bool:
        store = Store(self.runs)
        try:
            return all(all_stored(plan.experiment, plan.method, *part, store) for part in self._parts(plan))
        except StoreError:
            if patient:
                return False
            raise

    def commands(self) -> dict[str, list[str]]:
        """Of every plan, by its name: the command that carries it out alone."""
        said = [
            f"--seeds={spelled(self.seeds)}",
            f"--device={self.device}",
            f"--threads={self.threads}",
            f"--runs={self.runs}",
        ]
        said += [] if self.epochs is None else [f"--epochs={self.epochs}"]
        said += [] if self.past is None else [f"--past={self.past}"]
        made: dict[str, list[str]] = {}
        for plan in self.plans:
            name = plan.name if plan.name not in made else f"{plan.typed} {plan.method}"  # two files of one name
            own = [f"--method={plan.method}", *(f"--set={change}" for change in plan.experiment.changes)]
            made[name] = ["run", *said, *own, *(["--final"] if plan.final else []), "--", plan.typed]
        return made


def spelled(seeds: Sequence[int]) -> str:
    """As a user would: `0-7,12`."""
    parts: list[tuple[int, int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], seed)
        else:
            parts.append((seed, seed))
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in parts)
