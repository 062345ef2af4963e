"""Checks at each step: does EGD do anything, and who called the step?"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Literal

import torch
from torch.optim import Optimizer

from egalitarian.select.plan import Entry

_DEPTH = 32
_HOOKED_STEP = Optimizer.profile_hook_step(lambda self: None).__code__  # torch wraps every class's step in this


class Watch:
    """Warns when EGD does nothing: matrices that do not get a gradient."""

    PATIENCE = 10

    def __init__(self) -> None:
        self._steps = self._idle = 0
        self._seen: set[str] = set()

    def look(self, entries: Sequence[Entry]) -> None:
        if self._steps >= self.PATIENCE:
            return
        if all(entry.parameter.grad is None for entry in entries):  # once or twice is nobody's mistake
            self._idle += not self._steps
            if self._idle == self.PATIENCE:
                self._warn(f"no parameter has had a gradient in {self.PATIENCE} steps, so EGD does nothing")
            return
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
        warnings.warn(
            f"{message}; check that the plan is for this model, and that its matrices are neither frozen nor unused",
            stacklevel=2,
        )


@torch._disable_dynamo  # type: ignore[attr-defined]
def who_is_stepping() -> Literal["scaler", "checkpoint"] | None:
    """Whether this step was called by an enabled GradScaler, which leaves no other trace on a plain optimizer, or by
    torch's checkpoint helpers, which take a step with zero gradients to make the optimizer's state appear."""
    scaler = torch.amp.GradScaler._maybe_opt_step.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if frame.f_code is scaler:
            return "scaler"
        if frame.f_code.co_name == "_init_optim_state" and "checkpoint" in frame.f_code.co_filename:
            return "checkpoint"
        frame = frame.f_back
    return None


def is_inner_step(optimizer: Optimizer) -> bool:
    """Whether an optimizer's step has called that of its base class, for which torch runs the hooks once more."""
    hooked = [kind for kind in type(optimizer).__mro__ if getattr(vars(kind).get("step"), "hooked", False)]
    if len(hooked) < 2:
        return False
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    for _ in range(_DEPTH):
        if frame is None:
            break
        steps += frame.f_code is _HOOKED_STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps > 1
