"""EGD's hooks on a step, with closures. Warns of updates that bypass them.

A hook alone would run before a closure has computed the gradients, so the closure is wrapped.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from egalitarian.distributed import local
from egalitarian.optimizers.engine import STEPS_BEFORE_WARNING
from egalitarian.optimizers.host import Caller, caller_of_step, stepping
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Entry

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a step, by position and by name."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WAY_OUT = "compute the gradients before the step, and call step() without a closure"


class StepHooks:
    """Runs EGD at every step of an optimizer.

    Args:
        optimizer: the attachment's.
        entries: those of the parameters in its param groups. The first matrix shows whether weights change.
        begin: called once, before the first step.
        transform: transforms the gradients, given the caller of the step.
    """

    def __init__(
        self, optimizer: Optimizer, entries: Iterable[Entry], begin: Callable[[], None], transform: Callable[[Caller], None]
    ) -> None:
        sample = next((entry.parameter for entry in entries if entry.taken), None)
        self._begin, self._transform, self._begun = begin, transform, False
        self.stepping = stepping(optimizer)
        """The optimizer that makes the update, on which the hooks are."""
        self._closures = Closures(type(optimizer).__name__, type(self.stepping).step, sample)
        self._handles = [
            self.stepping.register_step_pre_hook(self._before_step),
            self.stepping.register_step_post_hook(self._after_step),
        ]

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        caller = caller_of_step(optimizer)
        if caller.nested:
            return None
        if not self._begun and caller.name != "checkpoint":
            self._begun = True
            self._begin()
        transform = partial(self._transform, caller)
        wrapped = self._closures.wrapped(args, kwargs, transform)
        if wrapped is None:
            transform()
        return wrapped

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closures = [value for value in (*args, *kwargs.values()) if isinstance(value, ClosureThenEGD)]
        if closures and not caller_of_step(optimizer).nested:
            self._closures.judge(closures[0])

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


class ClosureThenEGD:
    """A closure followed by EGD, since the gradients exist only after the closure has run."""

    def __init__(self, closure: Callable[..., Any], transform: Callable[[], None], sample: Tensor | None) -> None:
        self._closure, self._transform, self.sample = closure, transform, sample
        self.before = _copied(sample)
        self.between: Tensor | None = None
        self.ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            loss = self._closure(*args, **kwargs)
        if not self.ran:
            self.ran, self.between = True, _copied(self.sample)
        self._transform()
        return loss


class Closures:
    """Wraps the closure of each step. Warns once if the optimizer ignores its closure, or updates before calling it."""

    def __init__(self, host: str, step: Callable[..., Any], sample: Tensor | None) -> None:
        self._host, self._sample, self._ignored = host, sample, False
        parameters = _parameters(step)
        known = {each.name: each.default for each in parameters}
        self._others = {name for name, value in known.items() if value is not None and not callable(value)}
        """Arguments that are no closure by their default, as `use_closure=False`."""
        self._names = known.keys() - self._others
        self._positional = [each.name for each in parameters if each.kind in _POSITIONAL]

    def wrapped(self, args: tuple[Any, ...], kwargs: dict[str, Any], transform: Callable[[], None]) -> Call | None:
        """The arguments of a step with their closure wrapped; None without a closure."""
        place = self._place(args, kwargs)
        if isinstance(place, str):
            return args, {**kwargs, place: ClosureThenEGD(kwargs[place], transform, self._sample)}
        if place is None:
            return None
        return (*args[:place], ClosureThenEGD(args[place], transform, self._sample), *args[place + 1 :]), kwargs

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str | None:
        """Where the closure is: the argument of that name. A step without such an argument has it as its only callable."""
        given: list[tuple[int | str, str, Any]] = [(name, name, value) for name, value in kwargs.items()]
        for place, value in enumerate(args):
            given.append((place, self._positional[place] if place < len(self._positional) else "", value))
        names = self._names | (kwargs.keys() - self._others)
        if "closure" in names:
            found = [place for place, name, value in given if name == "closure" and callable(value)]
        elif any("closure" in name for name in names):
            found = [place for place, name, value in given if "closure" in name and callable(value)]
        else:
            found = [place for place, _, value in given if callable(value) and not isinstance(value, Optimizer | nn.Module)]
        if len(found) > 1:
            raise TypeError(
                f"{self._host} must have one closure, in an argument of that name or as its only callable, got "
                f"{len(found)} callables; {_WAY_OUT}"
            )
        return found[0] if found else None

    def judge(self, closure: ClosureThenEGD) -> None:
        """Warns, after a step, if it did not use its closure. Unchanged weights, as with lr 0, prove nothing."""
        if not closure.ran and not self._ignored:
            self._ignored = True
            warn_user(f"{self._host} did not call its closure, so EGD did nothing at this step; {_WAY_OUT}")
        before, between, after = closure.before, closure.between, _copied(closure.sample)
        if before is None or between is None or after is None or torch.equal(before, after):
            return
        self._sample = None
        if torch.equal(between, after):
            warn_user(f"{self._host} updates before it calls its closure, so EGD comes too late for that; {_WAY_OUT}")


def _parameters(step: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):  # a step in C
        return []


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
        last, now = self._last, _copied(parameter)
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


def _copied(parameter: Tensor | None) -> Tensor | None:
    """A copy of its first entries, of which an update changes nearly all. None where values cannot be compared."""
    if parameter is None or parameter.is_meta or capturing():
        return None
    return local(parameter.detach()).reshape(-1)[:1024].clone()
