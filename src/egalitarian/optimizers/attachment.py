"""`attach(optimizer, model)`: EGD before every step of any torch optimizer.

EGD acts in a hook before the optimizer's step, and handles three cases where a hook alone fails. It runs before a closure
has computed the gradients. A fused optimizer under a GradScaler gets scaled gradients. A copied optimizer has no hook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, get_args
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from egalitarian.apply import PassSettings, State
from egalitarian.checks import check_bool, check_integer, check_number
from egalitarian.distributed import Sharing, check_sharing
from egalitarian.kernels import Spectrum, spectrum
from egalitarian.optimizers.autocast import Autocast, Tiers
from egalitarian.optimizers.checkpoint import Carrier, Loaded, checked
from egalitarian.optimizers.egd import EGD
from egalitarian.optimizers.engine import Engine, share_text
from egalitarian.optimizers.hooks import StepHooks, UnseenUpdates, capturing
from egalitarian.optimizers.host import (
    Caller,
    planned,
    reduce_with_warning,
    refuse_host,
    unwrapped,
    warn_of_replaced,
)
from egalitarian.optimizers.members import Members
from egalitarian.optimizers.until import Switch, Until
from egalitarian.select import Plan, annotate
from egalitarian.transforms import Polar, Transform, as_chain

OnNonfinite = Literal["keep", "raise"]

_STEPPED: WeakSet[Optimizer] = WeakSet()
"""Optimizers that have already made steps with EGD. A later attachment to one does not warn of earlier steps."""


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
    save_with_optimizer: bool = True,
    shard: Sharing = "auto",
) -> Attachment:
    """Adds EGD to a `torch.optim` optimizer: each `optimizer.step()` first transforms the gradients.

    The optimizer keeps its state, param groups and schedule. The training loop does not change.

    Args:
        optimizer: any optimizer for dense gradients, bare or wrapped by a framework.
        model_or_plan: a model, which stands for `matrices(model)`, or a `Plan`. The optimizer must hold every matrix of a
            `Plan` that is not frozen. With a model it may hold only some of them. EGD also acts on matrices of the plan
            that `add_param_group` adds later.
        transform: one transform, or a sequence applied in order. The default is EGD with `precision="auto"`.
        decay_before: weight decay added to the gradients of the plan's matrices *before* they are equalised. It stays on
            while EGD is off. The paper's MLP experiments use 1e-4 to 1e-2. In most runs use the optimizer's own
            `weight_decay` instead, which acts after equalising: see `docs/settings.md`.
        until: the rule that switches EGD off; pass it metrics with `observe`. With None, EGD stays on.
        on_nonfinite: what happens to a gradient with a NaN or an Inf. `"keep"` leaves it unchanged. `"raise"` raises
            FloatingPointError, and synchronises with the device at every step.
        spectrum_every: store the singular values of every matrix at steps 0, n, 2n and so on; 0 stores none.
        capture: on a GPU, replay the transforms from a CUDA graph after the first steps. Results are the same, and small
            matrices are several times faster. `print(egd.plan)` shows the memory, and what cannot be captured.
        save_with_optimizer: `optimizer.state_dict()` includes EGD's state under the key `"egalitarian"`, and
            `optimizer.load_state_dict` restores it: see `docs/checkpoints.md`. With False, save `egd.state_dict()` as well.
        shard: who computes the matrices that several ranks hold, under FSDP2, tensor parallelism or DDP. `"owners"`: one
            rank each, which sends the result. `"replicate"`: every rank computes all. `"auto"`: owners where that is
            estimated to be faster: see `docs/distributed.md`. Without other ranks it has no effect.

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
    if isinstance(optimizer, EGD):
        raise ValueError("optimizer must be a plain one, got EGD, which equalises by itself; pass the transform to EGD")
    refuse_host(optimizer)
    check_number("decay_before", decay_before, "0 adds no decay")
    if on_nonfinite not in get_args(OnNonfinite):
        raise ValueError(f"on_nonfinite must be 'keep' or 'raise', got {on_nonfinite!r}; 'keep' never synchronises")
    check_integer("spectrum_every", spectrum_every, "0 stores none", least=0)
    if until is not None and not isinstance(until, Until):
        raise TypeError(f"until must be an Until, got {until!r}; for example Until(0.95)")
    check_bool("capture", capture)
    check_bool("save_with_optimizer", save_with_optimizer)
    check_sharing(shard)
    plan = planned(optimizer, model_or_plan, chain, until)
    return Attachment(
        optimizer, plan, chain, decay_before, until, on_nonfinite, spectrum_every, capture, save_with_optimizer, shard
    )


class Attachment:
    """EGD attached to an optimizer, as `attach` returns it. Its methods switch, measure, save and remove it.

    It stays attached until `remove()`, or until the end of a `with` block.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    >>> with attach(optimizer, model) as egd:
    ...     egd.off()
    ...     egd
    Attachment(Polar(precision='auto') on SGD, active=False, step=0, 46.2 % of the entries taken)
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
        save_with_optimizer: bool,
        shard: Sharing,
    ) -> None:
        self.optimizer = optimizer
        self._plan = plan
        self._chain = chain
        self._decay_before = decay_before
        self._on_nonfinite = on_nonfinite
        self._spectrum_every = spectrum_every
        self._spectra: dict[str, dict[int, Spectrum]] = {}
        self._until = until
        self._switch = Switch(until, plan.stack, plan.device)
        self._members = Members(optimizer, plan, chain, decay_before)
        self._removed = False
        self._decided = optimizer in _STEPPED  # whether EGD is on or off on purpose
        names = {entry.parameter: entry.name for entry in plan.entries}
        describe, check = self._members.describe, self._members.check
        self._engine = Engine(chain, plan.stack, names, describe, check, capture, shard, plan.replicas)
        self._state = State(0, self._engine.memories(optimizer.param_groups, State()))
        held = self._engine.entries(optimizer.param_groups)
        self._autocast = Autocast(plan.modules, chain)  # after all that may raise: an error leaves no hook
        self._tiers = Tiers(plan, chain, self._autocast)
        self._unseen = UnseenUpdates(optimizer, held)
        self._carrier = Carrier(optimizer, save_with_optimizer, self.state_dict, self._checked, self._restore)
        self._hooks = StepHooks(optimizer, held, self._begin, self._transform)
        self._hooks.stepping._egalitarian = optimizer._egalitarian = self  # type: ignore[attr-defined]
        optimizer.__reduce_ex__ = partial(reduce_with_warning, optimizer)  # type: ignore[method-assign]

    @property
    def plan(self) -> Plan:
        """The plan. `print(egd.plan)` also shows what the transform does to each matrix."""
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        absent = (entry.name for entry in self._plan.taken if entry.parameter not in held)
        texts = (self._plan.header, self._autocast.text, self._engine.captures.text, self._engine.ranks.text)
        notes, owners = self._tiers.notes(), self._engine.ranks.notes
        notes |= {name: ", ".join(filter(None, (notes.get(name), text))) for name, text in owners.items()}
        return annotate(self._plan, "; ".join(filter(None, texts)), notes, dict.fromkeys(absent, "not in the optimizer"))

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

        Before the first step, a call also says that EGD starts here on purpose, even if the optimizer continues a run.

        Raises:
            RuntimeError: EGD has been removed.
        """
        if self._removed:
            raise RuntimeError("the attachment must be on its optimizer to be switched on, got a removed one; attach again")
        self._switch.turn(True, mask)
        self._decided = True

    def off(self, mask: Tensor | Sequence[bool] | None = None) -> None:
        """Switches EGD off: as a whole, or for the stack elements where `mask` is True. `decay_before` stays on."""
        self._switch.turn(False, mask)
        self._decided = True

    def observe(self, metric: float | Tensor | Sequence[float]) -> bool | Tensor:
        """Passes a new metric to `until`, which may switch EGD off or on.

        With several ranks the first one decides for all, at the next step.

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
        self._hooks.remove()
        self._carrier.remove()
        self._unseen.remove()
        self._autocast.remove()
        if not self._removed:
            self._state = State(self._state.step, self._memories())
        if self._state.step:
            _STEPPED.add(self.optimizer)
        self._engine.release()
        self._removed = True
        if getattr(self.optimizer, "_egalitarian", None) is self:
            del self.optimizer._egalitarian, self.optimizer.__reduce_ex__
            vars(self._hooks.stepping).pop("_egalitarian", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an attachment cannot be copied or pickled; save state_dict(), attach again and load it")

    def __repr__(self) -> str:
        name, active = type(self.optimizer).__name__, self._switch.active
        where = f"removed from {name}, was" if self._removed else f"on {name},"
        on = f"{int(active.sum())} of {len(active)}" if isinstance(active, Tensor) else active
        return (
            f"Attachment({', '.join(map(repr, self._chain))} {where} active={on}, step={self._state.step}, "
            f"{share_text(self._plan.entries)} taken)"
        )

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
        """Everything that a resumed run needs, as plain values and tensors. `optimizer.state_dict()` has a copy.

        `torch.distributed.checkpoint` does not save that copy, so there save this as well.
        """
        return {
            "transform": repr(self._chain),
            "compute": None if self._tiers.compute is None else str(self._tiers.compute),
            "step": self._state.step,
            **self._switch.state_dict(),
            "matrices": self._members.matrices(),
            "tiers": self._tiers.known(self._state.step),
            "tensors": {
                name: {key: value.clone() for key, value in memory.items()} for name, memory in self._memories().items()
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict()` returned. If it raises, nothing has changed.

        Raises:
            ValueError: the state is from another transform, or of matrices that this optimizer does not equalise.
            RuntimeError: EGD was removed from the optimizer.
        """
        if self._removed:
            raise RuntimeError(
                "load_state_dict() needs an attached EGD, got one that was removed; attach again, and load into that"
            )
        self._restore(self._checked(state_dict))
        self._decided = True

    def _checked(self, state_dict: Mapping[str, Any]) -> Loaded:
        return checked(state_dict, self._chain, self._plan, self._members.matrices(), self._memories, self._switch)

    def _restore(self, loaded: Loaded) -> None:
        self._state, setting, self._tiers.saved = loaded
        self._switch.restore(setting)

    def _memories(self) -> Mapping[str, Mapping[str, Tensor]]:
        return self._state.tensors if self._removed else self._engine.memories(self.optimizer.param_groups, self._state)

    # -- the step -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Before the first step, warns of mistakes made so far."""
        self._unseen.remove()
        if not (self._state.step or self._decided or capturing()):
            self._carrier.warn_of_lost_state()
        warn_of_replaced(self.optimizer, self._plan)

    def _transform(self, caller: Caller) -> None:
        found_inf = getattr(self.optimizer, "found_inf", None)
        if caller.name == "checkpoint" or (found_inf is not None and bool(found_inf)):
            return  # the step will be skipped: neither gradients nor state may change
        scaling = found_inf is not None or caller.name == "scaler"
        self._tiers.compute = torch.float16 if scaling else None
        if self._tiers.saved:
            self._tiers.warn_of_others()
        self._members.warn_of_unfrozen()
        if not scaling:  # with a scaler, the cut-off is for float16 already
            self._autocast.warn_of_noise()
        if self._until is not None and self._engine.ranks.spreads:
            active, streak = self._engine.ranks.agreed(self._switch.setting)
            self._switch.restore((active, streak))
        measured = self._spectrum_every and self._state.step % self._spectrum_every == 0
        settings = PassSettings(
            self._chain,
            active=self._switch.for_a_step(),
            decay=partial(self._engine.decay, decay=self._decay_before) if self._decay_before else None,
            grad_scale=getattr(self.optimizer, "grad_scale", None),
            compute=self._tiers.compute,
            half=bool(self._autocast.half),
            on_nonfinite=self._on_nonfinite,
            observe=self._keep_spectrum if measured else None,
        )
        self._state = self._engine.step(self.optimizer.param_groups, settings, self._state)
