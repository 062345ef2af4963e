"""One attached CPU step stays short: few crossings from file to file, few lines of plumbing.

A crossing is a call whose nearest caller inside `src/egalitarian` is in another file. `python tests/contracts/test_walk.py`
prints the walk, the number of crossings, and the lines of the functions that were called outside `kernels/`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import egalitarian

PACKAGE = Path(egalitarian.__file__).parent
MOST_CROSSINGS = 20
MOST_PLUMBING = 550
MATHS = ("kernels", "checks.py")


def file_of(code: CodeType) -> str | None:
    """The file of a function, relative to the package; None outside the package."""
    path = Path(code.co_filename)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


@dataclass
class Walk:
    """The calls of one step, in order."""

    calls: list[tuple[int, str, str, bool]] = field(default_factory=list)
    """Depth, file, function, and whether the call crosses."""
    functions: set[CodeType] = field(default_factory=set)

    @property
    def crossings(self) -> int:
        return sum(crosses for *_, crosses in self.calls)

    @property
    def plumbing(self) -> int:
        """Lines of the outermost functions called outside the kernels, docstrings and signatures included."""
        spans: dict[str, set[int]] = {}
        for code in self.functions:
            where = file_of(code)
            if where is not None and not where.startswith(MATHS):
                lines = [line for _, _, line in code.co_lines() if line is not None]
                spans.setdefault(where, set()).update(range(code.co_firstlineno, max(lines) + 1))
        return sum(map(len, spans.values()))

    def record(self, frame: FrameType, event: str, argument: Any) -> None:
        where = file_of(frame.f_code) if event == "call" else None
        if where is None:
            return
        depth, nearest, above = 0, None, frame.f_back
        while above is not None:
            found = file_of(above.f_code)
            depth += found is not None
            nearest = nearest or found
            above = above.f_back
        self.functions.add(frame.f_code)
        self.calls.append((depth, where, frame.f_code.co_qualname, nearest not in (None, where)))

    def __str__(self) -> str:
        lines = [f"{'>' if crosses else ' '} {'  ' * depth}{where}: {name}" for depth, where, name, crosses in self.calls]
        return "\n".join([*lines, f"{self.crossings} crossings, {self.plumbing} lines of plumbing"])


def walk() -> Walk:
    """The third step of SGD with EGD attached, on a network with one hidden matrix."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egalitarian.attach(optimizer, model)
    found = Walk()
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        sys.setprofile(found.record if step == 2 else None)
        try:
            optimizer.step()
        finally:
            sys.setprofile(None)
    return found


def test_a_step_has_few_crossings_and_little_plumbing() -> None:
    found = walk()
    assert found.crossings <= MOST_CROSSINGS, str(found)
    assert found.plumbing <= MOST_PLUMBING, str(found)
    assert any(where.startswith("kernels/") for _, where, _, _ in found.calls), "the walk ends in a kernel"


if __name__ == "__main__":
    print(walk())
