"""`EGD`: SGD that equalises inside its own step. Unlike an attachment, it can be copied and pickled."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from egalitarian.apply import PassSettings, State, gradient_dtype
from egalitarian.checks import check_bool, check_number
from egalitarian.distributed import Sharing, check_sharing
from egalitarian.optimizers.autocast import Autocast
from egalitarian.optimizers.checkpoint import KEY, UNTOLD, Matrices, checked_matrices, named_matrices, refuse_others
from egalitarian.optimizers.engine import Engine, Group, share_text
from egalitarian.optimizers.host import caller_of_step, misspelt, refuse_differentiable, refuse_fake, warn_of_doubts
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Entry, Plan, PlannedGroups, PlannedParameters, whole
from egalitarian.transforms import Polar, Transform, as_chain, is_of_chain, uses_matrices

_plain_sgd_step = inspect.unwrap(torch.optim.SGD.step)  # without the hooks, which EGD's own step runs
_OURS = "egd."
_MATRICES = "egd_matrices"
"""The key of the matrices in the state_dict. Distributed checkpoints drop it, since they find parameters by their names."""


class EGD(torch.optim.SGD):
    """SGD on equalised gradients: W <- W - lr (U Vᵀ + weight_decay W), where W has the gradient U S Vᵀ.

    Its steps equal those of `attach(torch.optim.SGD(...), plan)`, bit for bit. It can be copied and pickled.
    For a switch-off or stored spectra, use `attach` with SGD.

    **Pass a plan.** Given bare parameters, it equalises all with two or more dimensions, as matrices (out, rest).
    That includes embeddings and output heads, so it warns. A param group with `equalize=False` takes plain SGD steps;
    one with `equalize=True` says that all its matrices are meant. A param group may also set its own `decay_before`.

    Args:
        params_or_plan: a `Plan`, `plan.groups(...)`, or what any torch optimizer takes: parameters, named parameters or
            param groups.
        lr: learning rate. An equalised gradient has spectral norm 1, so `lr` is the size of a step.
        momentum, nesterov: as in `torch.optim.SGD`, on the *equalised* gradients. For Muon's order, pass
            `transform=[Momentum(), Polar()]` instead.
        weight_decay: weight decay after equalising, on the scale of U Vᵀ. Start with lr x weight_decay of 0.01 to 0.1:
            see `docs/settings.md`.
        decay_before: weight decay before equalising. The paper's MLP experiments use 1e-4 to 1e-2.
        transform: one transform, or a sequence applied in order. The default is EGD with `precision="auto"`.
        foreach, maximize: as in `torch.optim.SGD`.
        capture: on a GPU, replay the transforms from a CUDA graph, as `attach` does.
        shard: who computes the matrices that several ranks hold, as in `attach`.

    Raises:
        TypeError: `params_or_plan` is a module, or another argument has the wrong type.
        ValueError: a setting is out of range, or a transform does not fit a matrix.

    >>> from egalitarian import matrices
    >>> plan = matrices(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)))
    >>> optimizer = EGD(plan.groups(taken={"weight_decay": 0.1}, left={"weight_decay": 1e-4}), lr=0.3)
    """

    _bare = 0  # how many matrices have no plan, in groups that do not set `equalize`
    _warned = False

    def __init__(
        self,
        params_or_plan: Plan | Iterable[Any],
        lr: float | Tensor,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decay_before: float = 0.0,
        transform: Transform | Sequence[Transform] = Polar(precision="auto"),
        foreach: bool | None = None,
        maximize: bool = False,
        capture: bool = True,
        shard: Sharing = "auto",
    ) -> None:
        _check_settings({"lr": lr, "weight_decay": weight_decay, "decay_before": decay_before, "momentum": momentum})
        if nesterov and not momentum:
            raise ValueError(f"momentum must be > 0 with nesterov=True, got {momentum}; 0.9 is common")
        check_bool("capture", capture)
        check_sharing(shard)
        self._capture, self._shard = capture, shard
        self._chain = as_chain(transform)
        params: Any = params_or_plan
        if isinstance(params, torch.nn.Module):
            raise TypeError(
                f"params_or_plan must be parameters or a Plan, got {type(params).__name__}; use matrices(model)"
            )
        plan = params.plan if isinstance(params, PlannedGroups) else Plan(())
        if isinstance(params, Plan):
            plan = params
            params = [(entry.name, entry.parameter) for entry in plan]
        if uses_matrices(self._chain):
            warn_of_doubts(plan)
        self._active: bool | Tensor = True
        self._planned = {entry.parameter: entry for entry in plan}
        self._replicas = plan.replicas
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
        refuse_fake(self)
        self._stack = Plan(tuple(self._planned.values())).stack
        self.defaults |= self._own_defaults()
        self._begin()
        self._warn_of_bare()
        self._autocast = Autocast(plan.modules, self._chain)  # after all that may raise: an error leaves no hook

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        own: list[Entry] = []
        if isinstance(param_group, dict):
            if isinstance(param_group.get("params"), PlannedParameters):
                own = list(param_group["params"].plan)
            explicit = "equalize" in param_group
            param_group = {**self._own_defaults(), **param_group}
            check_bool("equalize", param_group["equalize"])
            _check_settings(param_group)
            refuse_differentiable([param_group])
            for text in misspelt(self, [param_group], self._own_defaults()):
                warn_user(text)
        super().add_param_group(param_group)
        self._planned |= {entry.parameter: entry for entry in own}
        added = self.param_groups[-1]["params"]
        bare = 0 if explicit else sum(each.ndim >= 2 and each not in self._planned for each in added)
        self._bare += bare
        if hasattr(self, "_engine"):
            try:
                self._entries()
                self._warn_of_bare()
            except BaseException:
                self.param_groups.pop()
                self._bare -= bare
                for entry in own:
                    del self._planned[entry.parameter]
                raise

    def _warn_of_bare(self) -> None:
        """Warns once if two or more matrices have no plan: some may be embeddings or heads."""
        if self._bare >= 2 and not self._warned and uses_matrices(self._chain):
            self._warned = True
            warn_user(
                "EGD cannot tell an embedding or a head from a hidden layer without a plan, so it equalises every matrix; "
                "pass egalitarian.matrices(model), or set equalize in each param group"
            )

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text[:-1]}Equalised: {share_text(self._entries())}\n)" if hasattr(self, "_engine") else text

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step. A `closure`, if given, first computes the gradients; its value is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        caller = caller_of_step(self)
        if caller.name == "checkpoint":
            self._initialise_memories()
        else:
            self._equalize(torch.float16 if caller.name == "scaler" else None)
        with torch.no_grad():
            _plain_sgd_step(self)
        return loss

    def _equalize(self, compute: torch.dtype | None) -> None:
        entries = self._entries()
        kept = self._remembered(entries)
        if isinstance(self._active, Tensor):  # the parameters may have moved
            self._active = self._active.to(entries[0].parameter.device)
        half = bool(self._autocast.half)
        if compute is None:
            self._autocast.warn_of_noise()
        settings = PassSettings(self._chain, self._active, self._engine.decay, compute=compute, half=half)
        self._remember(self._engine.step(self.param_groups, settings, kept))

    # -- memory: in `state[p]` and in the groups, which torch's own checkpoints save -----------------------------------

    def _initialise_memories(self) -> None:
        """Creates the filters' initial memory, for a checkpoint to be loaded into."""
        kept = self._remembered(self._entries())
        self._remember(State(kept.step, self._engine.memories(self.param_groups, kept)))

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
            if memory := state.tensors.get(entry.name):  # at once: Ctrl-C leaves no half of it
                self.state[entry.parameter].update({_OURS + key: value for key, value in memory.items()})
        for group in self.param_groups:
            group["egd_steps"] = state.step

    # -- entries of the param groups ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for name, value in (("_capture", True), ("_shard", "auto"), ("_replicas", ())):  # of a pickle or an older version
            self.__dict__.setdefault(name, value)
        self._active = True
        rest = self._capture, self._shard, self._replicas
        self._engine = Engine(self._chain, self._stack, {}, self._describe, self._check, *rest)
        device = self._entries()[0].parameter.device
        if self._stack is not None:
            self._active = torch.ones(self._stack, dtype=torch.bool, device=device)

    def _entries(self) -> list[Entry]:
        return self._engine.entries(self.param_groups)

    def _describe(self, name: str, parameter: Tensor, group: Group) -> Entry:
        planned = self._planned.get(parameter)
        entry = whole(name, parameter) if planned is None else dataclasses.replace(planned, name=name)
        if entry.taken and not group["equalize"]:
            return dataclasses.replace(entry, targets=(), reason="equalize=False")
        return entry

    def _check(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.taken and not entry.parameter.is_floating_point():
                raise TypeError(
                    f"{entry.name!r} must be real floating-point to be equalised, got {entry.parameter.dtype}; "
                    f"put it in a group with equalize=False"
                )
            odd = [target for target in entry.targets if target.stack != self._stack]
            if self._stack is not None and odd:
                raise ValueError(
                    f"{entry.name!r} must be a stack of {self._stack}, like the plan's matrices, got shape {entry.shape}; "
                    f"put it in a group with equalize=False"
                )

    def _own_defaults(self) -> dict[str, Any]:
        return {"equalize": True, "decay_before": self._decay_before, "egd_steps": 0, "egd_transform": repr(self._chain)}

    # -- copies and pickles carry everything ----------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        ours = ("_chain", "_planned", "_stack", "_decay_before", "_capture", "_shard")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in ours}, "_half": self._autocast.half}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = self.__dict__.get("param_groups", [])
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_autocast" not in self.__dict__:
            self._autocast = Autocast((), self._chain, self.__dict__.pop("_half", None))
        for group, old in itertools.zip_longest(self.param_groups, before):
            for key, value in self._own_defaults().items():  # a checkpoint of plain SGD has none of these
                group.setdefault(key, value if old is None else old[key])
        self._begin()

    def _matrices(self) -> Matrices:
        """The matrices of the groups, also of those with equalize=False, which is a setting that a load restores."""
        parameters = [
            (f"param_groups[{number}].params[{index}]", parameter)
            for number, group in enumerate(self.param_groups)
            for index, parameter in enumerate(group["params"])
        ]
        return named_matrices(self._planned.get(parameter) or whole(name, parameter) for name, parameter in parameters)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), _MATRICES: self._matrices()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_matrices(state_dict)
        for group in state_dict["param_groups"]:
            if not is_of_chain(group.get("egd_transform", repr(self._chain)), self._chain):
                raise ValueError(
                    f"state_dict must be from the same transform {self._chain!r}, got {group['egd_transform']}; "
                    f"construct EGD with that transform"
                )
        if KEY in state_dict:
            warn_user(
                "state_dict has the state of an attachment, which EGD does not read: steps and filters start from zero; "
                "to resume, attach to torch.optim.SGD instead"
            )
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["egd_transform"] = repr(self._chain)
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, parameter in zip(indices, parameters, strict=True):
            for key, value in state_dict["state"].get(index, {}).items():
                if key.startswith(_OURS):  # torch has cast it to the parameter's dtype
                    dtype = gradient_dtype(parameter) if value.is_floating_point() else value.dtype
                    self.state[parameter][key] = value.to(parameter.device, dtype, copy=True)

    def _check_matrices(self, state_dict: Mapping[str, Any]) -> None:
        """Raises if a state is of other matrices, and warns if it has too little to tell."""
        if _MATRICES in state_dict:
            refuse_others(
                checked_matrices(state_dict[_MATRICES]), self._matrices(), "construct EGD with the plan of the saved run"
            )
            return
        for saved, ours in zip(state_dict["param_groups"], self.param_groups, strict=False):
            if "egd_transform" in saved:  # not of plain SGD
                named = zip(ours["params"], _names(saved), _names(ours), strict=False)
                if any(parameter.ndim > 1 and then != now for parameter, then, now in named):
                    warn_user(UNTOLD)
                    return


def _names(group: Mapping[str, Any]) -> list[str]:
    return list(group.get("param_names", [""] * len(group["params"])))


def _check_settings(settings: Mapping[str, Any]) -> None:
    for what in ("lr", "weight_decay", "decay_before", "momentum"):
        value = settings.get(what, 0.0)
        if isinstance(value, Tensor):
            value = value.item() if value.numel() == 1 else 0.0  # torch itself refuses several values
        check_number(what, value, "to maximise, pass maximize=True" if what == "lr" else "0 is none")
