"""`EGD`: stochastic gradient descent that equalises inside its own step, and so survives copying and pickling."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from egalitarian.apply import Settings, State, check_chain, transform_gradients
from egalitarian.roster import Group, Roster
from egalitarian.select import Entry, Plan, whole
from egalitarian.transforms import Polar, Transform, as_chain
from egalitarian.watch import Watch, grad_scaler_is_stepping

_plain_sgd_step = inspect.unwrap(torch.optim.SGD.step)  # without the hooks' wrapper: EGD's own step has one
_OURS = "egd."


class EGD(torch.optim.SGD):
    """W <- W - lr (U Vᵀ + weight_decay W), with G = U S Vᵀ the gradient of each weight matrix.

    Bitwise what `attach(torch.optim.SGD(...), plan)` does. Given bare parameters, every one of two or more dimensions is
    equalised as (out, rest), the others take plain SGD steps; a group may say `equalize=False`. That takes embeddings and
    output heads too: give it a plan, or a group, to leave them out.

    Args:
        params_or_plan: parameters, named parameters or groups of them, or a `Plan`.
        lr: the learning rate. An equalised step has spectral norm `lr`, whatever the gradient's size.
        momentum, nesterov: of the *equalised* gradients, as in `torch.optim.SGD`; `Momentum()` before `Polar()` in
            `transform` is Muon's order.
        weight_decay: added after equalising, so on the scale of U Vᵀ: start from 0.01 to 0.1.
        decay_before: added to the gradient before it is equalised, as in the paper's MLP experiments (1e-4 to 1e-2).
        transform: one transform, or a sequence applied in order.
        foreach, maximize: as in `torch.optim.SGD`.

    >>> layer = torch.nn.Linear(3, 2)
    >>> optimizer = EGD(layer.parameters(), lr=0.1, weight_decay=0.03)
    """

    def __init__(
        self,
        params_or_plan: Plan | Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decay_before: float = 0.0,
        transform: Transform | Sequence[Transform] = Polar(),
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        for what, value in (("lr", lr), ("weight_decay", weight_decay), ("decay_before", decay_before)):
            single = not isinstance(value, Tensor) or value.numel() == 1
            if single and not 0 <= value < math.inf:
                raise ValueError(f"{what} must be a number >= 0, got {value}; to climb, use maximize=True")
        if not 0 <= momentum < math.inf:
            raise ValueError(f"momentum must be a number >= 0, got {momentum}; 0 is none, 0.9 is common")
        if nesterov and not momentum:
            raise ValueError(f"momentum must be > 0 with nesterov=True, got {momentum}; 0.9 is common")
        self._chain = as_chain(transform)
        plan = params_or_plan if isinstance(params_or_plan, Plan) else Plan(())
        self._planned = {entry.parameter: entry for entry in plan}
        self._stack = plan.stack
        params: Any = [(entry.name, entry.parameter) for entry in plan] or params_or_plan
        self._decay_before = decay_before
        super().__init__(
            params,
            lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
            foreach=foreach,
            maximize=maximize,
        )
        self.defaults |= self._own_defaults()
        self._begin()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):
            param_group = {**self._own_defaults(), **param_group}
            decay = param_group["decay_before"]
            if not isinstance(param_group["equalize"], bool):
                raise ValueError(f"equalize must be True or False, got {param_group['equalize']!r}")
            if not 0 <= decay < math.inf:
                raise ValueError(f"decay_before must be a number >= 0, got {decay}; 0 adds none")
            refuse_differentiable([param_group])
        super().add_param_group(param_group)
        if hasattr(self, "_roster"):
            try:
                self._entries()
            except BaseException:
                self.param_groups.pop()
                raise

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure`, if given, makes the gradients first and its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        entries = self._entries()
        self._watch.look(entries)
        settings = Settings(
            self._chain,
            active=True
            if self._stack is None
            else torch.ones(self._stack, dtype=torch.bool, device=entries[0].parameter.device),
            decay=self._decay,
            compute=torch.float16 if grad_scaler_is_stepping() else None,
        )
        self._remember(transform_gradients(entries, settings, self._remembered(entries)))
        with torch.no_grad():
            _plain_sgd_step(self)
        return loss

    # -- what a step remembers: in `state[p]` and in the groups, where torch's own checkpoints look for it ---------------

    def _remembered(self, entries: Sequence[Entry]) -> State:
        tensors: dict[str, dict[str, Tensor]] = {}
        for entry in entries:
            kept = self.state.get(entry.parameter, {})
            memory = {key.removeprefix(_OURS): value for key, value in kept.items() if key.startswith(_OURS)}
            if memory:
                tensors[entry.name] = memory
        return State(max(group["egd_steps"] for group in self.param_groups), tensors)

    def _remember(self, state: State) -> None:
        for entry in self._entries():
            for key, value in state.tensors.get(entry.name, {}).items():
                self.state[entry.parameter][_OURS + key] = value
        for group in self.param_groups:
            group["egd_steps"] = state.step

    # -- which parameter is what ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._watch = Watch()
        self._roster = Roster({parameter: entry.name for parameter, entry in self._planned.items()})
        self._entries()

    def _entries(self) -> list[Entry]:
        return self._roster.entries(self.param_groups, self._describe, self._check)

    def _describe(self, name: str, parameter: Tensor, group: Group) -> Entry:
        entry = self._planned.get(parameter) or whole(name, parameter)
        if entry.taken and not group["equalize"]:
            return Entry(entry.name, parameter, entry.shape, reason="equalize=False")
        return entry

    def _check(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.taken and not entry.parameter.is_floating_point():
                raise TypeError(
                    f"{entry.name!r} must be real floating-point to be equalised, got {entry.parameter.dtype}; "
                    f"put it in a group with equalize=False"
                )
        check_chain(self._chain, entries, self._stack)

    def _decay(self, entry: Entry) -> float:
        return self._roster.decay(entry, self._roster.group(entry)["decay_before"])

    def _own_defaults(self) -> dict[str, Any]:
        return {"equalize": True, "decay_before": self._decay_before, "egd_steps": 0}

    # -- copies and pickles carry everything ----------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_chain", "_planned", "_stack", "_decay_before")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in ours}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = self.__dict__.get("param_groups", [])
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        for group, old in itertools.zip_longest(self.param_groups, before):
            for key, value in self._own_defaults().items():  # a checkpoint of plain SGD knows none of these
                group.setdefault(key, value if old is None else old[key])
        self._begin()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        places = [place for group in state_dict["param_groups"] for place in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for place, parameter in zip(places, parameters, strict=True):
            for key, value in state_dict["state"].get(place, {}).items():
                if key.startswith(_OURS) and key.endswith(".count"):  # torch has cast it to the parameter's dtype
                    self.state[parameter][key] = value.to(parameter.device, copy=True)


def refuse_differentiable(groups: Iterable[Group]) -> None:
    if any(group.get("differentiable") for group in groups):
        raise ValueError("optimizer must not be differentiable, got differentiable=True; EGD changes gradients in place")
