"""The commands that make a report and its parts again, as a page shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from egalitarian.lab.analysis import Gathered
from egalitarian.lab.config import Contents, TablePlan


class Commands(NamedTuple):
    """Commands in the words of the user: experiments by the name or path that was asked for."""

    arguments: Mapping[str, str]
    """Of the experiments that were named."""
    html: bool

    @property
    def report(self) -> str:
        """Writes the whole report."""
        return " ".join(["egalitarian report", *map(shlex.quote, self.arguments.values()), *["--html"] * self.html])

    def train(self, experiments: Sequence[str], methods: Sequence[str] = ()) -> str:
        """Trains these experiments; without any, those that the user named, or all of the paper's."""
        asked = [self.arguments.get(name, name) for name in experiments] or list(self.arguments.values())
        named = list(map(shlex.quote, asked)) or ["--all"]
        return " ".join(["egalitarian run", *named, *(["-m", shlex.quote(",".join(methods))] if methods else [])])

    def figure(self, experiments: Sequence[str], methods: Sequence[str]) -> str:
        """Trains and draws a figure."""
        return f"{self.train(experiments, methods)}\n{self.report}"

    def table(self, plan: TablePlan) -> str:
        """Trains and writes a table. Tables of settings need no runs."""
        return self.report if plan.kind in ("settings", "methods") else f"{self.train(plan.experiments)}\n{self.report}"

    @staticmethod
    def missing(contents: Contents, gathered: Gathered) -> list[tuple[str, list[str]]]:
        """For each table of runs, its experiments without any."""
        run = {summary.experiment for summary in gathered.runs}
        plans = [plan for plan in contents.tables if plan.runs]
        absent = [(plan.heading, [name for name in plan.experiments if name not in run]) for plan in plans]
        return [(heading, names) for heading, names in absent if names]
