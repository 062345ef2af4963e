"""Warns of updates that bypass EGD: weights that change without a step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from egalitarian.optimizers.engine import STEPS_BEFORE_WARNING
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Entry


class UnseenUpdates:
    """Warns of weights that change from one backward pass to the next although no step has passed EGD.

    It looks at one matrix. It stops at the first step that EGD sees, or once the optimizer is no longer in use.
    """

    def __init__(self, optimizer: Optimizer, entries: Iterable[Entry]) -> None:
        self._host, self._changes = type(optimizer).__name__, 0
        self._optimizer = weakref.ref(optimizer)
        self._last: Tensor | None = None
        found = (entry for entry in entries if entry.taken and entry.parameter.requires_grad and entry.parameter.is_leaf)
        entry = next(found, None)
        self._name = "" if entry is None else entry.name
        self._handle: RemovableHandle | None = None
        if entry is not None:
            self._handle = entry.parameter.register_post_accumulate_grad_hook(self._look)  # type: ignore[no-untyped-call]

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _look(self, parameter: Tensor) -> None:
        last, now = self._last, copied(parameter)
        self._last = now
        if last is not None and now is not None and (last.device, last.dtype) == (now.device, now.dtype):  # no move or cast
            self._changes += not torch.equal(last, now)
        if self._changes < STEPS_BEFORE_WARNING:
            return
        gc.collect()  # an optimizer and its attachment hold each other
        self.remove()
        if self._optimizer() is not None:
            warn_user(
                f"{self._name!r} has changed {self._changes} times without a step of {self._host} that EGD could see, so "
                f"this attachment has done nothing so far; if it is no longer used, call its remove(); else call "
                f"optimizer.step(), or attach to the optimizer whose step() is called"
            )

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._last = None


def capturing() -> bool:
    """Whether the user is capturing a CUDA graph. Values cannot be compared then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def copied(parameter: Tensor | None) -> Tensor | None:
    """A copy of its first entries, of which an update changes nearly all. None where values cannot be compared."""
    if parameter is None or parameter.is_meta or capturing():
        return None
    return parameter.detach().reshape(-1)[:1024].clone()
