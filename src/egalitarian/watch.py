"""Looking around at each step: is EGD doing anything, and who called?"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch

from egalitarian.select import Entry


class Watch:
    """Says so when EGD has been doing nothing: matrices that do not get a gradient."""

    PATIENCE = 10

    def __init__(self) -> None:
        self._steps = 0
        self._seen: set[str] = set()

    def look(self, entries: Sequence[Entry]) -> None:
        if self._steps >= self.PATIENCE or all(entry.parameter.grad is None for entry in entries):
            return  # a step without any gradient is nobody's mistake
        self._steps += 1
        taken = [entry for entry in entries if entry.taken]
        self._seen |= {entry.name for entry in taken if entry.parameter.grad is not None}
        if self._steps == 1 and taken and not self._seen:
            self._warn("none of the plan's matrices has a gradient at this step, so EGD does nothing")
        if self._steps == self.PATIENCE:
            absent = [repr(e.name) for e in taken if e.name not in self._seen and e.parameter.requires_grad]
            if absent:
                self._warn(f"no gradient in {self.PATIENCE} steps for {', '.join(absent)}: EGD does not act there")

    @staticmethod
    def _warn(message: str) -> None:
        warnings.warn(f"{message}; is the plan for another model, or are they frozen or unused?", stacklevel=2)


def grad_scaler_is_stepping() -> bool:
    """Whether this step was called by an enabled GradScaler, which leaves no other trace on a plain optimizer."""
    code = torch.amp.GradScaler._maybe_opt_step.__code__
    frame = sys._getframe(1)
    for _ in range(16):
        if frame.f_code is code:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
