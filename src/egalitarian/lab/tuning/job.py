"""What `egalitarian tune` is asked for, as values: families to tune in this process, or one method in another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from egalitarian.lab.config import SpecError
from egalitarian.lab.executors import TIME_OVER, Lines
from egalitarian.lab.runs import Store, choose_device, configure_process, environment
from egalitarian.lab.tuning.plan import Family, chosen, load_plan, shrunk
from egalitarian.lab.tuning.points import Grid, Position, load_family
from egalitarian.lab.tuning.results import Results, locked
from egalitarian.lab.tuning.trials import POINTS, OutOfTime, PointMessages, Session, prepare, tune


@dataclass(frozen=True)
class Job:
    """Families to tune and the folders for it."""

    families: Sequence[Family]
    methods: tuple[str, ...]
    """Of each family; all of them if none is named."""
    changes: tuple[str, ...]
    runs: Path
    out: Path
    device: torch.device
    quick: bool = False
    replace: bool = False
    searches_only: bool = False
    """Whether fresh seeds are left to a later job. Their seconds count, so no other process may train meanwhile."""

    def prepare(self) -> list[Results]:
        """Opens every family's file. An error of any method comes up here, before anything is trained."""
        every = [self.results(family) for family in self.families]
        with locked(self.out):
            pass  # the folder exists and is writable
        for family, results in zip(self.families, every, strict=True):
            missing = self.missing(family, results)
            for method in missing:
                results.refuse_other_runs(method, self.device.type)
            prepare([self.grid(family, method) for method in missing])
        return every

    def results(self, family: Family, *, replace: bool | None = None) -> Results:
        """A family's file; `replace` instead of the job's own."""
        experiment = load_family(family, self.changes)
        replace = self.replace if replace is None else replace
        return Results(self.out, family, experiment, self.quick, replace, self.methods, self.searches_only)

    def grid(self, family: Family, method: str) -> Grid:
        return Grid(family, method, self.changes)

    def check_settings(self) -> None:
        """Loads the first point of every method, which raises an error of the plan without training anything."""
        for family in self.families:
            load_family(family, self.changes)
            for method in family.only(self.methods):
                self.grid(family, method).experiment(Position(0, 0), validation=True)

    def missing(self, family: Family, results: Results) -> list[str]:
        """The methods that the file does not have yet by the present rules."""
        return [method for method in family.only(self.methods) if not results.up_to_date(method)]

    def requests(self, threads: int, plan: Path | None, data: Path | None) -> list[TuneRequest]:
        """One for each missing method, all prepared here. The plan is that which the families come from."""
        device = str(self.device)
        return [
            TuneRequest(family.name, method, self.runs, self.out, device, threads, self.changes, plan, self.quick, data)
            for family, results in zip(self.families, self.prepare(), strict=True)
            for method in self.missing(family, results)
        ]

    def tune(self, family: Family, results: Results, show: Callable[[str, str], object], deadline: float | None) -> None:
        """Tunes the methods of a family one after another.

        Args:
            family: one of the job's.
            results: its file, from `prepare`.
            show: takes a method's name and a message about it.
            deadline: by the monotonic clock; past it, `OutOfTime` is raised.
        """
        about = environment(self.device)
        root = self.runs / POINTS if self.quick else self.runs  # what means nothing is no run of the experiment
        for method in family.only(self.methods):
            messages = PointMessages(partial(show, method))
            session = Session(Store(root), self.device, messages, deadline, messages.begin)
            tune(self.grid(family, method), session, results, about)


@dataclass(frozen=True)
class TuneRequest:
    """The search of one method of one family, in another process."""

    kind: ClassVar[str] = "tune"
    family: str
    method: str
    runs: Path
    out: Path
    device: str
    threads: int = 1
    changes: tuple[str, ...] = ()
    plan: Path | None = None
    """A user's file, or the name of a plan; None is the fair comparison's."""
    quick: bool = False
    data: Path | None = None
    """The folder of the data sets; None is the default one."""
    minutes: float | None = None
    """No point begins after so many minutes."""

    @property
    def name(self) -> str:
        return f"{self.family}: {self.method}"

    def to_json(self) -> dict[str, Any]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        paths = {key: Path(values[key]) for key in ("runs", "out", "plan", "data") if values[key] is not None}
        return cls(**{**values, **paths, "changes": tuple(values["changes"])})

    def carry_out(self, lines: Lines) -> int:
        deadline = deadline_after(self.minutes)
        configure_process(self.threads, self.data)
        planned, *others = chosen(load_plan(self.plan), self.family)
        if others:
            raise SpecError(f"family must be one family of the plan in a request, got {self.family!r}; name it")
        family, device = shrunk(planned, self.quick), choose_device(self.device)
        where = (self.runs, self.out, device)
        job = Job([family], (self.method,), self.changes, *where, self.quick, searches_only=True)
        (results,) = job.prepare()
        try:
            job.tune(family, results, lambda method, text: lines.status(text), deadline)
        except OutOfTime:
            return TIME_OVER
        return 0


def deadline_after(minutes: float | None) -> float | None:
    """By the monotonic clock; None is no limit."""
    return None if minutes is None else time.monotonic() + 60 * minutes
