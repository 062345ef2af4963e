"""The verdicts on record, in `paper/_verdicts.toml`: a finding of earlier runs for each cell of the paper."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Literal, NamedTuple

from egalitarian.lab.config import Settings, SpecError, read

Quantity = Literal[
    "epochs", "steps", "final accuracy", "mean accuracy", "gain in epochs",
    "seconds", "ms per epoch", "ms per step", "gain in seconds",
]  # fmt: skip
"""Mean accuracy is that of training, over all epochs. The last four are times on other hardware, and have no verdict."""
Finding = Literal["inside", "outside", "undecided"]
HEAD = """\
# What our stored runs say of each cell of the paper, cells as experiment/method. `egalitarian check` ends with 1 where they
# no longer say so. Outside and known cells are both "outside" here: a known one's reason is its claim's erratum.
# Written by `egalitarian check --record FILE`, which keeps each `why` with its cells.
"""


class Cell(NamedTuple):
    """One number of the paper."""

    experiment: str
    method: str
    measure: Quantity

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.method}"


@dataclass(frozen=True, kw_only=True)
class RecordedVerdict(Settings):
    """One finding for several cells, with its reason."""

    measure: Quantity
    verdict: Finding
    why: str = ""
    """Given if the cells are not inside and no erratum explains it."""
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class VerdictRecord(Settings):
    """All verdicts on record."""

    verdicts: tuple[RecordedVerdict, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [(entry.measure, name) for entry in self.verdicts for name in entry.cells]
        for cell in named:
            if named.count(cell) > 1:
                raise SpecError(f"verdicts must name a cell once, got {cell[1]} ({cell[0]}) again; take one out")

    @cached_property
    def _by_cell(self) -> Mapping[tuple[str, str], RecordedVerdict]:
        return {(entry.measure, name): entry for entry in self.verdicts for name in entry.cells}

    def of(self, cell: Cell) -> RecordedVerdict | None:
        """The verdict on a cell; None if there is none on record."""
        return self._by_cell.get((cell.measure, cell.name))


def load_record() -> VerdictRecord:
    """The lab's own record."""
    text = (resources.files("egalitarian.lab") / "paper" / "_verdicts.toml").read_text(encoding="utf-8")
    return read(VerdictRecord, tomllib.loads(text))


def as_toml(found: Mapping[tuple[Quantity, str], tuple[Finding, str]]) -> str:
    """The text of a record, from measure and cell to finding and reason."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (measure, cell), (finding, why) in found.items():
        grouped.setdefault((measure, finding, why), []).append(cell)
    return "\n".join([HEAD, *(_entry(*key, cells) for key, cells in grouped.items())])


def _entry(measure: str, finding: str, why: str, cells: Sequence[str]) -> str:
    lines = ["[[verdicts]]", f"measure = {json.dumps(measure)}", f"verdict = {json.dumps(finding)}"]
    lines += [f"why = {json.dumps(why, ensure_ascii=False)}"] if why else []
    return "\n".join([*lines, "cells = [", *(f"    {json.dumps(name)}," for name in cells), "]"]) + "\n"
