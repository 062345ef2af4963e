"""The rows that a table of methods lists, for each experiment the paper's and ours, and what is written from all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from egalitarian.lab.analysis.counts import percent
from egalitarian.lab.analysis.gather import Gathered
from egalitarian.lab.analysis.rows import Row, rows
from egalitarian.lab.config.contents import TablePlan
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.render import Block
from egalitarian.lab.report.tables.cells import Places, pooled


@dataclass(frozen=True)
class Listing:
    """Experiments, and of each its rows: the paper's methods, and ours."""

    experiments: Sequence[Experiment]
    both: Sequence[tuple[list[Row], list[Row]]]

    @staticmethod
    def of(plan: TablePlan, gathered: Gathered) -> Listing:
        experiments = gathered.named_in(plan.experiments)
        return Listing(experiments, [rows(gathered, experiment, plan) for experiment in experiments])

    @cached_property
    def rows(self) -> list[Row]:
        return [row for paper, ours in self.both for row in (*paper, *ours)]

    @cached_property
    def places(self) -> Places:
        return Places(self.rows)

    @property
    def first(self) -> Experiment:
        """Whose threshold and way to end hold for all."""
        return self.experiments[0]

    @property
    def threshold(self) -> str:
        return percent(self.first.measure.threshold)

    def blocks(self, cells: Callable[[Row], tuple[str, ...]]) -> tuple[Block, ...]:
        """For each experiment the paper's methods, and below them ours that were run."""
        made: list[Block] = []
        for experiment, (paper, ours) in zip(self.experiments, self.both, strict=True):
            run = [row for row in ours if row.reached.n]
            if paper:
                made.append(Block(experiment.title, tuple(map(cells, paper))))
            if run:
                heading = f"{experiment.title}: not in the paper, ours" if paper else experiment.title
                made.append(Block(heading, tuple(map(cells, run))))
        return tuple(made)

    def remarks(self) -> list[str]:
        """What is not run of ours, and seeds of one row that took the polar factor in different ways."""
        missing: dict[str, list[str]] = {}
        for experiment, (_, ours) in zip(self.experiments, self.both, strict=True):
            missing.setdefault("; ".join(row.title for row in ours if not row.reached.n), []).append(experiment.title)
        notes = [f"Ours that are not run on {', '.join(where)}: {methods}" for methods, where in missing.items() if methods]
        return notes + pooled(self.rows)
