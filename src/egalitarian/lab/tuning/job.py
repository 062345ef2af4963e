"""A command's work: the families asked for, one after another, each with its files and its table on the screen."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.console.display import telling
from egalitarian.lab.console.tuning import Aloud, finish
from egalitarian.lab.runs.environment import BESIDE, environment
from egalitarian.lab.runs.store import Store
from egalitarian.lab.tuning.files import alone
from egalitarian.lab.tuning.plan import QUICK_EPOCHS, Family
from egalitarian.lab.tuning.results import Results
from egalitarian.lab.tuning.trials import OutOfTime, Workshop
from egalitarian.lab.tuning.work import prepare, tune


@dataclass(frozen=True)
class Job:
    """What is to be tuned, where it is kept, and by which rules."""

    families: Sequence[Family]
    methods: tuple[str, ...]
    """Of each; none is all."""
    changes: tuple[str, ...]
    runs: Path
    out: Path
    device: torch.device
    minutes: float | None = None
    quick: bool = False
    replace: bool = False
    order: Sequence[str] = ()
    """Of the families in the table of all."""

    @property
    def settings(self) -> tuple[str, ...]:
        return (*self.changes, f"epochs={QUICK_EPOCHS}") if self.quick else self.changes

    def commands(self, begun: Sequence[Results], threads: int, size: int | None, plan: Path | None) -> dict[str, list[str]]:
        """Of every method of every family that is not whole, by name: the command that tunes it alone."""
        said = [f"--device={self.device}", f"--threads={threads}", f"--runs={self.runs}", f"--out={self.out}"]
        said += [f"--set={change}" for change in self.changes] + (["--quick"] if self.quick else [])
        options = {"--size": size, "--plan": plan}
        said += [f"{option}={value}" for option, value in options.items() if value is not None]
        both = zip(self.families, begun, strict=True)
        pairs = [(family.name, method) for family, results in both for method in _left(family, results, self)]
        return {f"{family}: {method}": ["tune", family, f"--method={method}", *said] for family, method in pairs}


def begin(job: Job) -> list[Results]:
    """Every family's file. What cannot work is told before anything is trained."""
    every = [
        Results(job.out, family, _experiment(family, job), job.quick, job.replace, job.methods) for family in job.families
    ]
    with alone(job.out):
        pass  # it can be made, and written to
    for family, results in zip(job.families, every, strict=True):
        prepare(family, _left(family, results, job), job.settings, Workshop(Store(job.runs), job.device))
    return every


def show(job: Job, console: Console) -> None:
    """What the files say of every family."""
    for family in job.families:
        results = Results(job.out, family, _experiment(family, job), job.quick, methods=job.methods)
        finish(console, job.out, results, job.order)


def carry_out(job: Job, console: Console) -> bool:
    """False where the time was over before everything was done."""
    deadline = None if job.minutes is None else time.monotonic() + 60 * job.minutes
    for family, results in zip(job.families, begin(job), strict=True):
        try:
            with telling(console, family.name) as tell:
                aloud = Aloud(tell)
                workshop = Workshop(Store(job.runs), job.device, aloud, deadline)
                methods = family.only(job.methods)
                tune(family, methods, job.settings, workshop, results, environment(job.device), aloud.doing)
        except OutOfTime:
            return False
        finally:
            finish(Console(quiet=True) if BESIDE in os.environ else console, job.out, results, job.order)
    return True


def _left(family: Family, results: Results, job: Job) -> list[str]:
    """The methods asked for that the file does not have whole."""
    return [method for method in family.only(job.methods) if not results.whole(method)]


def _experiment(family: Family, job: Job) -> Experiment:
    return catalog.load(family.experiment, job.changes, added=family.added)
