"""`attach(optimizer, model)`: EGD before every step of any torch optimizer.

A step pre-hook alone is not enough. It runs before a closure has computed the gradients. A fused optimizer under a
GradScaler gets scaled gradients. Copying the optimizer drops the hook. This file handles each case.
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

from egalitarian.apply import PassSettings, State, gradient_dtype, loaded_memory
from egalitarian.checks import check_bool, check_integer, check_mapping, check_number
from egalitarian.kernels import Spectrum, spectrum
from egalitarian.optimizers.autocast import Autocast
from egalitarian.optimizers.egd import EGD
from egalitarian.optimizers.engine import Engine, Group
from egalitarian.optimizers.host import (
    Caller,
    caller_of_step,
    planned,
    reduce_with_warning,
    refuse_differentiable,
    unwrapped,
    warn_of_misspelt,
)
from egalitarian.optimizers.until import Switch, Until
from egalitarian.select import Entry, Plan, annotate
from egalitarian.transforms import (
    MatrixTransform,
    Polar,
    Site,
    Transform,
    as_chain,
    asks_for_autocast,
    is_of_chain,
    uses_matrices,
)

OnNonfinite = Literal["keep", "raise"]


def attach(
    optimizer: Optimizer,
    model_or_plan: nn.Module | Plan,
    transform: Transform | Sequence[Transform] = Polar(precision="auto"),
    *,
    decay_before: float = 0.0,
    until: Until | None = None,
    on_nonfinite: OnNonfinite = "keep",
    spectrum_every: int = 0,
    capture: bool = True,
) -> Attachment:
    """Adds EGD to a `torch.optim` optimizer: each `optimizer.step()` first transforms the gradients.

    The optimizer keeps its state, param groups and schedule. The training loop does not change.

    Args:
        optimizer: any optimizer for dense gradients, bare or wrapped by a framework.
        model_or_plan: a model, which stands for `matrices(model)`, or a `Plan`. The optimizer must hold every matrix of a
            plan. With a model it may lack some; EGD takes those once `add_param_group` adds them.
        transform: one transform, or a sequence applied in order. The default is EGD with `precision="auto"`.
        decay_before: weight decay added to the gradients of the plan's matrices *before* they are equalised. It stays on
            while EGD is off. The paper's MLP experiments use 1e-4 to 1e-2. In most runs use the optimizer's own
            `weight_decay` instead, which acts after equalising: see `docs/settings.md`.
        until: the rule that switches EGD off; pass it metrics with `observe`. With None, EGD stays on.
        on_nonfinite: what happens to a gradient with a NaN or an Inf. `"keep"` leaves it unchanged. `"raise"` raises
            FloatingPointError, and synchronises with the device at every step.
        spectrum_every: store the singular values of every matrix at steps 0, n, 2n and so on; 0 stores none.
        capture: on a GPU, replay the transforms from a CUDA graph after the first steps. Results are the same, and small
            matrices several times faster. `print(egd.plan)` shows the memory, and what cannot be captured.

    Returns:
        An `Attachment`, to switch EGD, measure it, save it or remove it.

    Raises:
        TypeError: `optimizer` is not a dense torch optimizer, or another argument has the wrong type.
        ValueError: the optimizer is an `EGD`, has an attachment already, or lacks a matrix of the plan.

    >>> from egalitarian import matrices
    >>> plan = matrices(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    >>> optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.1}), lr=0.3)
    >>> egd = attach(optimizer, plan)
    >>> egd.active
    True
    """
    optimizer = unwrapped(optimizer)
    chain = as_chain(transform)
    _refuse_host(optimizer)
    check_number("decay_before", decay_before, "0 adds no decay")
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(f"on_nonfinite must be 'keep' or 'raise', got {on_nonfinite!r}; 'keep' never synchronises")
    check_integer("spectrum_every", spectrum_every, "0 stores none", least=0)
    if until is not None and not isinstance(until, Until):
        raise TypeError(f"until must be an Until, got {until!r}; for example Until(0.95)")
    check_bool("capture", capture)
    plan = planned(optimizer, model_or_plan, chain, until)
    return Attachment(optimizer, plan, chain, decay_before, until, on_nonfinite, spectrum_every, capture)


def _refuse_host(optimizer: Optimizer) -> None:
    """Raises for an optimizer that EGD cannot be attached to."""
    if isinstance(optimizer, EGD):
        raise ValueError("optimizer must be a plain one, got EGD, which equalises by itself; pass the transform to EGD")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError("optimizer must take dense gradients, got SparseAdam; use Adam for the matrices")
    refuse_differentiable(optimizer.param_groups)
    if hasattr(optimizer, "_egalitarian"):
        raise ValueError(
            "optimizer must have at most one attachment, got a second; call .remove() on the first, or pass the transforms "
            "as one sequence"
        )


class Attachment:
    """EGD attached to an optimizer, as `attach` returns it. Its methods switch, measure, save and remove it.

    It stays attached until `remove()`, or until the end of a `with` block.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    >>> with attach(optimizer, model) as egd:
    ...     egd.off()
    ...     egd
    Attachment(Polar(precision='auto') on SGD, active=False, Plan(1 taken, 3 left))
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
        capture: bool,
    ) -> None:
        self.optimizer = optimizer
        self._plan = plan
        self._chain = chain
        self._decay_before = decay_before
        self._on_nonfinite = on_nonfinite
        self._spectrum_every = spectrum_every
        self._spectra: dict[str, dict[int, Spectrum]] = {}
        self._switch = Switch(until, plan.stack, plan.device)
        self._compute: torch.dtype | None = None
        self._known = {entry.parameter: entry for entry in plan.entries}
        self._held: dict[Tensor, Entry] = {}
        self._removed = False
        names = {entry.parameter: entry.name for entry in plan.entries}
        self._engine = Engine(chain, plan.stack, names, self._describe, self._check, capture)
        self._saved_tiers: dict[str, str] = {}
        self._state = State(0, self._engine.memories(optimizer.param_groups, State()))
        self._autocast = Autocast(plan.modules if asks_for_autocast(chain) else ())  # after all that may raise
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        optimizer._egalitarian = self  # type: ignore[attr-defined]
        optimizer.__reduce_ex__ = partial(reduce_with_warning, optimizer)  # type: ignore[method-assign]

    @property
    def plan(self) -> Plan:
        """The plan. `print(egd.plan)` also shows what the transform does to each matrix."""
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        absent = (entry.name for entry in self._plan.taken if entry.parameter not in held)
        tiers = self._tiers()
        notes = {
            target.name: ", ".join(filter(None, (target.note, tiers.get(target.name)))) for target in self._plan.targets
        }
        autocast = self._autocast.text if asks_for_autocast(self._chain) else ""
        header = "; ".join(filter(None, (self._plan.header, autocast, self._engine.captures.text)))
        return annotate(self._plan, header, notes, dict.fromkeys(absent, "not in the optimizer"))

    def _known_tiers(self) -> dict[str, str]:
        """Those in effect. Before the first step, what autocast may change is left out as long as it is unknown."""
        tiers = self._tiers()
        unknown = self._autocast.half is None and not self._state.step
        other = self._tiers(half=True) if unknown else tiers
        return {name: tier for name, tier in tiers.items() if other[name] == tier}

    def _tiers(self, half: bool | None = None) -> dict[str, str]:
        """The precision of every matrix, by name; `half` in place of what was learnt."""
        half = bool(self._autocast.half) if half is None else half
        tiers: dict[str, str] = {}
        for entry in self._plan.taken:
            parameter = entry.parameter
            site = Site("", 0, self._compute or gradient_dtype(parameter), half)
            for link in self._chain:
                if isinstance(link, MatrixTransform):
                    for target in entry.targets:
                        if tier := link.arithmetic(target.rows, target.columns, parameter.device, site):
                            tiers[target.name] = tier
        return tiers

    # -- switching ----------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool | Tensor:
        """Whether EGD transforms gradients. For a plan with a stack of length k, it is a bool tensor of shape (k,).

        It is False after `remove()`; `state_dict()` keeps the setting from before.
        """
        if not self._removed:
            return self._switch.active
        return False if self._plan.stack is None else torch.zeros(self._plan.stack, dtype=torch.bool, device="cpu")

    def on(self, mask: Tensor | Sequence[bool] | None = None) -> None:
        """Switches EGD on: as a whole, or for the stack elements where `mask` is True.

        Raises:
            RuntimeError: EGD has been removed.
        """
        if self._removed:
            raise RuntimeError("the attachment must be on its optimizer to be switched on, got a removed one; attach again")
        self._switch.turn(True, mask)

    def off(self, mask: Tensor | Sequence[bool] | None = None) -> None:
        """Switches EGD off: as a whole, or for the stack elements where `mask` is True. `decay_before` stays on."""
        self._switch.turn(False, mask)

    def observe(self, metric: float | Tensor | Sequence[float]) -> bool | Tensor:
        """Passes a new metric to `until`, which may switch EGD off or on.

        Under DDP, pass the same metric on every rank.

        Args:
            metric: a number; for a stack, one per element.

        Returns:
            `active`, after the decision.

        Raises:
            RuntimeError: `attach` was called without `until`.
            ValueError: the metric is NaN, or the number of metrics is wrong.
        """
        if not self._removed:
            self._switch.observe(metric)
        return self.active

    # -- removing it --------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Removes EGD and leaves the optimizer as it was before. A second call does nothing."""
        self._handle.remove()
        self._autocast.remove()
        if not self._removed:
            self._state = State(self._state.step, self._memories())
        self._engine.captures.release()
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
        return f"Attachment({', '.join(map(repr, self._chain))} {where}, active={self.active}, {self._plan!r})"

    # -- measuring ----------------------------------------------------------------------------------------------------

    def spectrum(self) -> dict[str, dict[int, Spectrum]]:
        """The stored singular values, by matrix and step: `egd.spectrum()["0.weight"][100].condition`.

        They are those of the gradient before the first transform, unscaled and with `decay_before` added.
        They are a log and not part of `state_dict()`.

        Raises:
            RuntimeError: `attach` was called without `spectrum_every`.
        """
        if not self._spectrum_every:
            raise RuntimeError("spectrum() needs stored spectra, got spectrum_every=0; call attach(..., spectrum_every=10)")
        return {name: dict(kept) for name, kept in self._spectra.items()}

    def _keep_spectrum(self, name: str, G: Tensor) -> None:
        self._spectra.setdefault(name, {})[self._state.step] = spectrum(G)

    # -- saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as plain values and tensors.

        Save it in the checkpoint: the optimizer's own state_dict does not contain it.
        """
        return {
            "transform": repr(self._chain),
            "compute": None if self._compute is None else str(self._compute),
            "step": self._state.step,
            **self._switch.state_dict(),
            "tiers": self._known_tiers(),
            "tensors": {
                name: {key: value.clone() for key, value in memory.items()} for name, memory in self._memories().items()
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict()` returned. If it raises, nothing has changed.

        Raises:
            ValueError: the state is from another transform, or from other parameters.
        """
        check_mapping("state_dict", state_dict, "load what state_dict() returned")
        missing = sorted({"transform", "step", "active", "streak"} - set(state_dict))
        if missing:
            raise ValueError(
                f"state_dict must come from an attachment, got one without {missing}; load what state_dict() returned"
            )
        if not is_of_chain(state_dict["transform"], self._chain):
            raise ValueError(
                f"state_dict must be from the same transform {self._chain!r}, got {state_dict['transform']}; "
                f"attach with that transform"
            )
        check_integer("step", state_dict["step"], "load what state_dict() returned", least=0)
        check_mapping("tensors", state_dict.get("tensors", {}), "load what state_dict() returned")
        tensors = loaded_memory(self._memories(), state_dict.get("tensors", {}))
        self._switch.load_state_dict(state_dict)
        self._state = State(state_dict["step"], tensors)
        self._saved_tiers = dict(state_dict.get("tiers", {}))

    def _memories(self) -> Mapping[str, Mapping[str, Tensor]]:
        return self._state.tensors if self._removed else self._engine.memories(self.optimizer.param_groups, self._state)

    # -- the step -----------------------------------------------------------------------------------------------------

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        caller = caller_of_step(optimizer)
        if caller.nested:
            return None
        index = 1 if args and args[0] is optimizer else 0
        closure = kwargs.get("closure", args[index] if len(args) > index else None)
        if closure is None:
            self._transform(caller)
            return None
        wrapped = self._after(closure, caller)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (*args[:index], wrapped, *args[index + 1 :]), kwargs

    def _after(self, closure: Callable[[], Any], caller: Caller) -> Callable[[], Any]:
        """The closure, followed by the transform: gradients exist only after it has run."""

        def closure_then_transform() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._transform(caller)
            return loss

        return closure_then_transform

    def _transform(self, caller: Caller) -> None:
        found_inf = getattr(self.optimizer, "found_inf", None)
        if caller.name == "checkpoint" or (found_inf is not None and bool(found_inf)):
            return  # the step will be skipped: neither gradients nor state may change
        scaling = found_inf is not None or caller.name == "scaler"
        self._compute = torch.float16 if scaling else None
        if self._saved_tiers:
            self._compare_tiers()
        measured = self._spectrum_every and self._state.step % self._spectrum_every == 0
        settings = PassSettings(
            self._chain,
            active=self._switch.for_a_step(),
            decay=partial(self._engine.decay, decay=self._decay_before) if self._decay_before else None,
            grad_scale=getattr(self.optimizer, "grad_scale", None),
            compute=self._compute,
            half=bool(self._autocast.half),
            on_nonfinite=self._on_nonfinite,
            observe=self._keep_spectrum if measured else None,
        )
        self._state = self._engine.step(self.optimizer.param_groups, settings, self._state)

    def _compare_tiers(self) -> None:
        """Warns once if a matrix gets another precision than in the run that was saved."""
        now, saved, self._saved_tiers = self._tiers(), self._saved_tiers, {}
        changed = [
            f"{name!r} {saved[name]} then, {now[name]} now" for name in now if saved.get(name, now[name]) != now[name]
        ]
        if changed:
            shown = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
            warnings.warn(
                f"the precision differs from that of the saved run: {shown}; to go on as before, attach with "
                f"Polar(precision=...) of that name",
                stacklevel=2,
            )

    def _describe(self, name: str, parameter: Tensor, group: Group) -> Entry:
        unknown = Entry(name, parameter, tuple(parameter.shape), reason="not in the plan")
        return self._known.get(parameter, unknown)

    def _check(self, entries: Sequence[Entry]) -> None:
        refuse_differentiable(self.optimizer.param_groups)
        warn_of_misspelt(self.optimizer, self.optimizer.param_groups)
        if self._plan.targets and not any(entry.taken for entry in entries):
            raise RuntimeError(
                "the optimizer must hold the plan's matrices, got none of them any more; flat shards (FSDP1, ZeRO) are not "
                "matrices: use DDP or ZeRO stage 0"
            )
        self._report_changes({entry.parameter: entry for entry in entries})

    def _report_changes(self, now: dict[Tensor, Entry]) -> None:
        """Warns when a matrix leaves the optimizer, or one joins that the plan does not know."""
        gone = [entry.name for parameter, entry in self._held.items() if entry.taken and parameter not in now]
        known = self._held | self._known if self._held else now
        unknown = [entry.name for parameter, entry in now.items() if parameter not in known and parameter.ndim >= 2]
        self._held = now
        for names, what in (
            (gone, "left the optimizer"),
            (unknown, "joined the optimizer but not the plan: not equalised"),
        ):
            if names and uses_matrices(self._chain):
                warnings.warn(
                    f"{', '.join(map(repr, names))} {what}; for a new plan, remove() EGD and attach again", stacklevel=2
                )
