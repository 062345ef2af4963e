"""`attach(optimizer, model)`: EGD before every step of an optimizer that someone else wrote.

A step pre-hook alone is not enough: it runs before a closure has made the gradients, a fused optimizer under a GradScaler
shows it scaled ones, and it is lost in copies. This room deals with each; the maths is elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from egalitarian.apply import Settings, State, check_chain, initial_memory, transform_gradients
from egalitarian.checks import check_integer, check_mapping, check_number
from egalitarian.host import planned, reduce_with_warning, unwrapped
from egalitarian.kernels import Precision
from egalitarian.optim import EGD, refuse_differentiable
from egalitarian.plan import Entry, Plan, annotate
from egalitarian.roster import Group, Roster
from egalitarian.spectrum import Spectrum, spectrum
from egalitarian.transforms import Polar, Transform, as_chain, is_of_chain, uses_matrices
from egalitarian.until import Switch, Until
from egalitarian.watch import Watch, is_inner_step, who_is_stepping

OnNonfinite = Literal["keep", "raise"]


def attach(
    optimizer: Optimizer,
    model_or_plan: nn.Module | Plan,
    transform: Transform | Sequence[Transform] = Polar(),
    *,
    decay_before: float = 0.0,
    until: Until | None = None,
    on_nonfinite: OnNonfinite = "keep",
    spectrum_every: int = 0,
) -> Attachment:
    """Adds EGD to any `torch.optim` optimizer: gradients are transformed at each `optimizer.step()`, just before it.

    Args:
        optimizer: any dense optimizer, before or after a framework has wrapped it. Keeps its state, groups and schedule.
        model_or_plan: a model, whose `matrices(model)` are taken, or a plan. A model's matrices that the optimizer does
            not hold wait until `add_param_group` brings them; a plan's must all be there.
        transform: one transform, or a sequence applied in order.
        decay_before: weight decay added to the gradients of the plan's matrices *before* they are equalised (the paper's
            MLP experiments: 1e-4 to 1e-2); stays on after a switch-off. The optimizer's own `weight_decay` acts after, and
            is sturdier: with SGD try lr x weight_decay of 0.01 to 0.1 (README, "Where to start").
        until: when to switch EGD off; feed it with `observe(metric)`.
        on_nonfinite: a gradient with a NaN or an Inf is left as it is (`"keep"`) or raises (`"raise"`, which synchronises).
        spectrum_every: keep every matrix's singular values at each n-th step; 0: never.

    >>> from egalitarian import matrices
    >>> plan = matrices(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.1}), lr=0.3)
    >>> egd = attach(optimizer, plan)
    >>> egd.active
    True
    """
    optimizer = unwrapped(optimizer)
    chain = as_chain(transform)
    if isinstance(optimizer, EGD):
        raise ValueError("optimizer must not equalise by itself, got EGD; pass EGD the transform instead")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError("optimizer must take dense gradients, got SparseAdam; use Adam for the matrices")
    refuse_differentiable(optimizer.param_groups)
    if hasattr(optimizer, "_egalitarian"):
        raise ValueError(
            "optimizer must have one attachment, got a second; call .remove() on the first, or combine the transforms in "
            "one sequence"
        )
    check_number("decay_before", decay_before, "0 adds none")
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(f"on_nonfinite must be 'keep' or 'raise', got {on_nonfinite!r}; 'keep' never synchronises")
    check_integer("spectrum_every", spectrum_every, "0 keeps none", least=0)
    if until is not None and not isinstance(until, Until):
        raise TypeError(f"until must be an Until, got {until!r}; for example Until(0.95)")
    return Attachment(
        optimizer,
        planned(optimizer, model_or_plan, chain, until),
        chain,
        decay_before,
        until,
        on_nonfinite,
        spectrum_every,
    )


class Attachment:
    """EGD on one optimizer: switches it, measures it, saves it, takes it off. Made by `attach`.

    Stays on the optimizer until `remove()`; used as a context manager, until the end of the `with` block.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        chain: tuple[Transform, ...],
        decay_before: float,
        until: Until | None,
        on_nonfinite: OnNonfinite,
        spectrum_every: int,
    ) -> None:
        self.optimizer = optimizer
        self._plan = plan
        self._chain = chain
        self._decay_before = decay_before
        self._on_nonfinite = on_nonfinite
        self._spectrum_every = spectrum_every
        self._spectra: dict[str, dict[int, Spectrum]] = {}
        self._switch = Switch(until, plan.stack, plan.device)
        self._compute: Precision | None = None
        self._watch = Watch()
        self._equalizes = uses_matrices(chain)
        self._known = {entry.parameter: entry for entry in plan.entries}
        self._held: dict[Tensor, Entry] = {}
        self._removed = False
        self._roster = Roster({entry.parameter: entry.name for entry in plan.entries})
        self._state = State(0, initial_memory(self._entries(), chain, plan.stack))
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        optimizer._egalitarian = self  # type: ignore[attr-defined]
        optimizer.__reduce_ex__ = partial(reduce_with_warning, optimizer)  # type: ignore[method-assign]

    @property
    def plan(self) -> Plan:
        """Every parameter, taken or left alone, and why; with what the transform does to each."""
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        absent = (entry.name for entry in self._plan.taken if entry.parameter not in held)
        return annotate(self._plan, entries=dict.fromkeys(absent, "not in the optimizer"))

    # -- switching ----------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool | Tensor:
        """Whether gradients are transformed: a bool, or a bool tensor (k,) for a plan with a stack of length k.

        False once removed; the state_dict goes on saying what it was.
        """
        if not self._removed:
            return self._switch.active
        return False if self._plan.stack is None else torch.zeros(self._plan.stack, dtype=torch.bool, device="cpu")

    def on(self, mask: Tensor | Sequence[bool] | None = None) -> None:
        """Switches on: everything, or the stack's elements where `mask` is True."""
        if self._removed:
            raise RuntimeError("the attachment must be on its optimizer to be switched on, got a removed one; attach again")
        self._switch.turn(True, mask)

    def off(self, mask: Tensor | Sequence[bool] | None = None) -> None:
        """Switches off: everything, or the stack's elements where `mask` is True. `decay_before` stays on."""
        self._switch.turn(False, mask)

    def observe(self, metric: float | Tensor | Sequence[float]) -> bool | Tensor:
        """Tells `until` the newest metric (for a stack: one per element) and returns what is active from now on."""
        if not self._removed:
            self._switch.observe(metric)
        return self.active

    # -- taking it off ------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Takes EGD off the optimizer, which is then as it was; doing it twice does no harm. `attach` again to go on."""
        self._handle.remove()
        if not self._removed:
            self._state = State(self._state.step, self._memories())
        self._removed = True
        if getattr(self.optimizer, "_egalitarian", None) is self:
            del self.optimizer._egalitarian, self.optimizer.__reduce_ex__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an attachment cannot be copied or pickled; save state_dict(), attach again and load it")

    def __repr__(self) -> str:
        where = f"removed from {type(self.optimizer).__name__}" if self._removed else f"on {type(self.optimizer).__name__}"
        return f"Attachment({', '.join(map(repr, self._chain))} {where}, {self._plan!r})"

    # -- measuring ----------------------------------------------------------------------------------------------------

    def spectrum(self) -> dict[str, dict[int, Spectrum]]:
        """By matrix, then by step, the singular values kept so far: `egd.spectrum()["0.weight"][100].condition`.

        Of the gradient as the transforms see it first: unscaled, with `decay_before` in it. A log, not part of the state.
        """
        if not self._spectrum_every:
            raise RuntimeError("spectrum needs steps to be measured, got spectrum_every=0; attach(..., spectrum_every=10)")
        return {name: dict(kept) for name, kept in self._spectra.items()}

    def _keep_spectrum(self, name: str, G: Tensor) -> None:
        self._spectra.setdefault(name, {})[self._state.step] = spectrum(G)

    # -- saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, in plain values and tensors; independent of the optimizer's own state_dict."""
        return {
            "transform": repr(self._chain),
            "compute": None if self._compute is None else str(self._compute),
            "step": self._state.step,
            **self._switch.state_dict(),
            "tensors": {name: dict(memory) for name, memory in self._memories().items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict()` gave, all of it or, with an error, none."""
        check_mapping("state_dict", state_dict, "load what state_dict() gave")
        missing = sorted({"transform", "step", "active", "streak"} - set(state_dict))
        if missing:
            raise ValueError(f"state_dict must come from an attachment, got one without {missing}")
        if not is_of_chain(state_dict["transform"], self._chain):
            raise ValueError(
                f"state_dict must be of the same transform {self._chain!r}, got {state_dict['transform']}; "
                f"attach with that one"
            )
        check_integer("step", state_dict["step"], "load what state_dict() gave", least=0)
        check_mapping("tensors", state_dict.get("tensors", {}), "load what state_dict() gave")
        tensors = _matching_memory(self._memories(), state_dict.get("tensors", {}))
        self._switch.load_state_dict(state_dict)
        self._state = State(state_dict["step"], tensors)

    def _memories(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Of every parameter that the optimizer holds now, also of those that have not taken a step yet."""
        kept = self._state.tensors
        if self._removed:
            return kept
        entries = self._entries()
        newcomers = [entry for entry in entries if entry.name not in kept]
        held = {entry.name: kept[entry.name] for entry in entries if entry.name in kept}
        return {**held, **initial_memory(newcomers, self._chain, self._plan.stack)}

    # -- the step -----------------------------------------------------------------------------------------------------

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_inner_step(optimizer):
            return None
        place = 1 if args and args[0] is optimizer else 0
        closure = kwargs.get("closure", args[place] if len(args) > place else None)
        if closure is None:
            self._transform()
            return None
        wrapped = self._after(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (*args[:place], wrapped, *args[place + 1 :]), kwargs

    def _after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, and then the transform: gradients exist only once it has run."""

        def closure_then_transform() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._transform()
            return loss

        return closure_then_transform

    def _transform(self) -> None:
        found_inf = getattr(self.optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return  # the step will be skipped: neither gradients nor state may change
        caller = who_is_stepping()
        if caller == "checkpoint":
            return
        grad_scale = getattr(self.optimizer, "grad_scale", None)
        self._compute = torch.float16 if found_inf is not None or caller == "scaler" else None
        entries = self._entries()
        if self._equalizes:
            self._watch.look(entries)
        measured = self._spectrum_every and self._state.step % self._spectrum_every == 0
        settings = Settings(
            chain=self._chain,
            active=self._switch.for_a_step(),
            decay=partial(self._roster.decay, decay=self._decay_before) if self._decay_before else None,
            grad_scale=grad_scale,
            compute=self._compute,
            on_nonfinite=self._on_nonfinite,
            observe=self._keep_spectrum if measured else None,
        )
        after = transform_gradients(entries, settings, self._state)
        self._state = _kept_in_place(self._state, after) if _capturing(self._plan.device) else after

    def _entries(self) -> list[Entry]:
        return self._roster.entries(self.optimizer.param_groups, self._describe, self._check)

    def _describe(self, name: str, parameter: Tensor, group: Group) -> Entry:
        unknown = Entry(name, parameter, tuple(parameter.shape), reason="not in the plan")
        return self._known.get(parameter, unknown)

    def _check(self, entries: Sequence[Entry]) -> None:
        refuse_differentiable(self.optimizer.param_groups)
        if self._plan.targets and not any(entry.taken for entry in entries):
            raise RuntimeError(
                "the optimizer must hold the plan's matrices, got none of them any more; were they replaced by flat "
                "shards (FSDP1, ZeRO)? Those hold no matrices: use DDP or ZeRO stage 0"
            )
        check_chain(self._chain, entries, self._plan.stack)
        self._report_changes({entry.parameter: entry for entry in entries})

    def _report_changes(self, now: dict[Tensor, Entry]) -> None:
        """Says so when a matrix leaves the optimizer, or one comes that the plan does not know."""
        gone = [entry.name for parameter, entry in self._held.items() if entry.taken and parameter not in now]
        known = self._held | self._known if self._held else now
        unknown = [entry.name for parameter, entry in now.items() if parameter not in known and parameter.ndim >= 2]
        self._held = now
        for names, what in ((gone, "left the optimizer"), (unknown, "came that the plan does not know: not equalised")):
            if names and self._equalizes:
                warnings.warn(f"{', '.join(map(repr, names))} {what}; attach again to plan anew", stacklevel=2)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _kept_in_place(before: State, after: State) -> State:
    """The state after the step in the memory of that before it: there a CUDA graph will look for it at the next replay."""
    for name, memory in after.tensors.items():
        for key, value in memory.items():
            before.tensors[name][key].copy_(value)
    return State(after.step, before.tensors)


def _matching_memory(
    current: Mapping[str, Mapping[str, Tensor]], loaded: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """The loaded memory, copied to where the current one is; raises where the two do not fit."""

    def shapes(memory: Mapping[str, Mapping[str, Tensor]]) -> dict[tuple[str, str], tuple[int, ...]]:
        return {(name, key): tuple(tensor.shape) for name, kept in memory.items() for key, tensor in kept.items()}

    differing = sorted(set(shapes(current).items()) ^ set(shapes(loaded).items()))
    if differing:
        (name, key), shape = differing[0]
        raise ValueError(
            f"state_dict must hold the same memories as the attachment, got {len(differing)} that differ, first {key!r} of "
            f"{name!r} with shape {shape}; attach to the same model, groups and transform"
        )
    return {
        name: {key: value.detach().clone().to(current[name][key]) for key, value in memory.items()}
        for name, memory in loaded.items()
    }
