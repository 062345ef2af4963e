"""A method as torch sees it: optimizers on stacked parameters, with the library's transforms attached.

Every parameter has a leading axis of seeds. Nothing here, in torch's optimizers or in the library mixes its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import torch
from torch import Tensor

import egalitarian as eg
from egalitarian.lab.config import spec
from egalitarian.lab.config.schema import SpecError

State = dict[str, Tensor]
"""What one seed needs to go on, flat: ready for a safetensors file."""

TRANSFORMS = {
    spec.Polar: eg.Polar,
    spec.LowRankPolar: eg.LowRankPolar,
    spec.RowNorm: eg.RowNorm,
    spec.Natural: eg.Natural,
    spec.Momentum: eg.Momentum,
    spec.GrokfastEMA: eg.GrokfastEMA,
    spec.GrokfastMA: eg.GrokfastMA,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
}


class Optimizer(Protocol):
    """What a method needs of an optimizer, stacked or one per seed."""

    @property
    def groups(self) -> list[dict[str, Any]]: ...
    def step(self) -> None: ...
    def state(self, seed: int) -> State: ...
    def load(self, states: Sequence[State]) -> None: ...


class Stepper:
    """All that moves the weights of one method: decay before the transforms, transforms, optimizers."""

    def __init__(self, method: spec.Method, parameters: Mapping[str, Tensor], warmup: int = 0) -> None:
        self._parameters, self._method = parameters, method
        self._plan = _plan(method, parameters)
        hidden = method.hidden or method.optim
        targets = {entry.name for entry in self._plan.taken}
        of = {name: hidden if name in targets else method.optim for name in parameters} | _own_groups(method, parameters)
        weights = [name for name, parameter in parameters.items() if parameter.ndim > 2 or method.decayed == "all"]
        self._before = {name: of[name].weight_decay for name in weights} if method.decay == "before" else {}
        after = {name: 0.0 if method.decay == "before" or name not in weights else of[name].weight_decay for name in of}
        self._optimizers = _optimizers(parameters, of, after)
        self._rates = [(group, group["lr"]) for group in self._groups]
        self.warmup = warmup
        """Steps in which the learning rates rise."""
        self.count = 0
        """Steps so far."""
        self.sketches = eg.Sketches()
        """What is random in a recorded step."""
        self._attachment = self._attach(method) if method.transform else None
        self.resting = False
        """Whether transforms are off for every seed, so that a step does without them."""

    @property
    def gradient(self) -> Tensor:
        """Of the first target matrix, (seeds, out, in); after `add_decay` what a transform sees."""
        grad = self._plan.taken[0].parameter.grad
        assert grad is not None
        return grad

    @property
    def active(self) -> list[bool]:
        """By seed: whether transforms are on."""
        if self._attachment is None:
            return [False] * self._seeds
        active = self._attachment.active
        assert isinstance(active, Tensor)
        return [bool(each) for each in active]

    def add_decay(self) -> None:
        """The gradient of wd/2 |W|² for every decayed matrix, before any transform."""
        for name, decay in self._before.items():
            parameter = self._parameters[name]
            if decay and parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=decay)

    def step(self) -> None:
        if self.count <= self.warmup:
            for group, rate in self._rates:
                group["lr"] = rate * min(1.0, self.count / self.warmup) if self.warmup else rate
        with self.sketches.kept():
            for optimizer in self._optimizers:
                optimizer.step()
        self.stepped()

    def stepped(self) -> None:
        """Counts a step; called alone by whoever repeats a recorded one."""
        self.count += 1

    @property
    def waits(self) -> str:
        """What in a step must wait for the device, so that it cannot be recorded; empty where nothing does."""
        for link in self._method.transform:
            if isinstance(link, spec.Natural):
                return "the natural gradient takes an SVD"
            if isinstance(link, spec.LowRankPolar) and (link.oversample or (link.share or 1) < 1):
                return "an oversampled or adaptive rank takes an SVD"
        return ""

    def observe(self, accuracy: Tensor) -> None:
        """One test accuracy per seed, at an epoch's end."""
        if self._attachment is not None and self._until:
            self._attachment.observe(accuracy)
            self.resting = not any(self.active)

    def states(self) -> list[State]:
        return [self._state(seed) for seed in range(self._seeds)]

    def load(self, states: Sequence[State]) -> None:
        for place, optimizer in enumerate(self._optimizers):
            optimizer.load([_below(state, f"optim.{place}.") for state in states])
        self._rates = [(group, rate) for (_, rate), group in zip(self._rates, self._groups, strict=True)]
        self.count = int(states[0].get("count", states[0].get("egd.step", torch.tensor(0))))
        if self._attachment is not None:
            self._attachment.load_state_dict(self._attachment_state([_below(state, "egd.") for state in states]))
            self.resting = not any(self.active)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for each in self._optimizers for group in each.groups]

    def _attach(self, method: spec.Method) -> eg.Attachment:
        on = self._plan.taken[0].parameter
        links = settled(method.transform, on.device, on.dtype)
        chain = [TRANSFORMS[type(link)](**_fields(link)) for link in links]
        self._until = method.until is not None
        until = None if method.until is None else eg.Until(method.until)
        targets = {entry.name for entry in self._plan.taken}
        holds = [each for each in self._optimizers if isinstance(each, Stacked) and targets <= {*each.names}]
        if not holds:
            raise SpecError(f"targets must share an optimizer, got {sorted(targets)} in two; remove it from groups")
        return eg.attach(holds[0].optimizer, self._plan, chain, until=until)

    @property
    def _seeds(self) -> int:
        return len(next(iter(self._parameters.values())))

    def _state(self, seed: int) -> State:
        state: State = {"count": torch.tensor(self.count)}
        for place, optimizer in enumerate(self._optimizers):
            state |= {f"optim.{place}.{key}": value for key, value in optimizer.state(seed).items()}
        if self._attachment is not None:
            saved = self._attachment.state_dict()
            state["egd.step"] = torch.tensor(self.count)
            state["egd.active"] = torch.tensor(saved["active"][seed])
            state["egd.streak"] = torch.tensor(saved["streak"][seed])
            for name, memory in saved["tensors"].items():
                state |= {f"egd.tensors.{name}/{key}": value[seed] for key, value in memory.items()}
        return state

    def _attachment_state(self, states: Sequence[State]) -> dict[str, Any]:
        assert self._attachment is not None
        saved = self._attachment.state_dict()
        tensors: dict[str, dict[str, Tensor]] = {}
        for path in _below(states[0], "tensors."):
            name, key = path.split("/")
            tensors.setdefault(name, {})[key] = torch.stack([state[f"tensors.{path}"] for state in states])
        return {
            **saved,
            "step": int(states[0]["step"]),
            "active": [bool(state["active"]) for state in states],
            "streak": [int(state["streak"]) for state in states],
            "tensors": tensors,
        }


def settled(chain: Sequence[spec.Transform], device: torch.device, dtype: torch.dtype) -> list[spec.Transform]:
    """The chain as it is there: 'auto' has become a precision."""
    best = "fast" if device.type == "cuda" and dtype == torch.float32 else "exact"
    free = [isinstance(link, spec.Polar) and link.precision == "auto" for link in chain]
    return [link.replace(precision=best) if is_free else link for link, is_free in zip(chain, free, strict=True)]


class Stacked:
    """A torch optimizer on stacked parameters: elementwise, so every seed is as it would be alone."""

    def __init__(self, names: Sequence[str], optimizer: torch.optim.Optimizer) -> None:
        self.names, self.optimizer = names, optimizer

    def step(self) -> None:
        self.optimizer.step()

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state(self, seed: int) -> State:
        saved = self.optimizer.state_dict()["state"]
        return {
            f"{name}/{key}": value[seed] if value.ndim else value
            for place, name in enumerate(self.names)
            for key, value in saved.get(place, {}).items()
            if value is not None
        }

    def load(self, states: Sequence[State]) -> None:
        merged: dict[int, dict[str, Tensor]] = {}
        for path in states[0]:
            name, key = path.split("/")
            values = [state[path] for state in states]
            shared = key == "step"  # the one scalar that torch's optimizers keep
            merged.setdefault(self.names.index(name), {})[key] = values[0] if shared else torch.stack(values)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": merged})


class PerSeed:
    """An optimizer that refuses stacks (`torch.optim.Muon`): one leaf per seed, viewing the stack."""

    def __init__(self, parameters: Mapping[str, Tensor], options: Mapping[str, Mapping[str, Any]]) -> None:
        for name, stack in parameters.items():
            if stack.ndim != 3:
                raise SpecError(
                    f"muon must have matrices alone, got {name!r} of shape {tuple(stack.shape[1:])}; set another optimizer "
                    f"in the group of its module, or choose other targets"
                )
        self._stacks = parameters
        self._leaves = {name: [leaf.requires_grad_() for leaf in p.detach().unbind()] for name, p in parameters.items()}
        groups = [[{**options[name], "params": [leaf]} for leaf in leaves] for name, leaves in self._leaves.items()]
        self._optimizers: list[torch.optim.Optimizer] = [torch.optim.Muon(own) for own in zip(*groups, strict=True)]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for name, stack in self._stacks.items():
            assert stack.grad is not None
            for leaf, grad in zip(self._leaves[name], stack.grad, strict=True):
                leaf.grad = grad
        for optimizer in self._optimizers:
            optimizer.step()

    def state(self, seed: int) -> State:
        saved = self._optimizers[seed].state_dict()["state"]
        return {
            f"{name}/{key}": value
            for place, name in enumerate(self._stacks)
            for key, value in saved.get(place, {}).items()
            if value is not None
        }

    def load(self, states: Sequence[State]) -> None:
        names = list(self._stacks)
        for optimizer, state in zip(self._optimizers, states, strict=True):
            merged: dict[int, State] = {}
            for path, value in state.items():
                name, key = path.split("/")
                merged.setdefault(names.index(name), {})[key] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": merged})


def _plan(method: spec.Method, parameters: Mapping[str, Tensor]) -> eg.Plan:
    try:
        return eg.matrices(parameters, include=method.targets, stack=True)
    except ValueError as error:
        raise SpecError(f"targets must name matrices of the model, got {list(method.targets)}; {error}") from None


def _own_groups(method: spec.Method, parameters: Mapping[str, Tensor]) -> dict[str, spec.Optim]:
    """Settings of the parameters whose module has some of its own."""
    found: dict[str, spec.Optim] = {}
    for module, optim in sorted(method.groups.items(), key=lambda group: len(group[0])):  # the innermost has the last word
        names = [name for name in parameters if name.startswith(f"{module}.")]
        if not names:
            modules = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
            raise SpecError(f"groups must name modules of the model, got {module!r}; it has {modules}")
        found |= dict.fromkeys(names, optim)
    return found


def _optimizers(
    parameters: Mapping[str, Tensor], of: Mapping[str, spec.Optim], decay: Mapping[str, float]
) -> list[Optimizer]:
    """One optimizer for all parameters that share its kind, with a group for each."""
    built: list[Optimizer] = []
    for kind in dict.fromkeys(optim.optimizer for optim in of.values()):
        names = [name for name in parameters if of[name].optimizer == kind]
        if kind == "muon":
            options = {name: {**_options(of[name], parameters[name].device), "weight_decay": decay[name]} for name in names}
            built.append(PerSeed({name: parameters[name] for name in names}, options))
        else:
            built.append(_stacked(kind, {name: parameters[name] for name in names}, of, decay))
    return built


def _stacked(
    kind: str, parameters: Mapping[str, Tensor], of: Mapping[str, spec.Optim], decay: Mapping[str, float]
) -> Stacked:
    """One torch optimizer with a group for each set of options."""
    groups: list[dict[str, Any]] = []
    members: list[list[str]] = []
    for name, parameter in parameters.items():
        options = {**_options(of[name], parameter.device), "weight_decay": decay[name]}
        place = next((place for place, group in enumerate(groups) if options.items() <= group.items()), None)
        if place is None:
            groups.append({**options, "params": [parameter]})
            members.append([name])
        else:
            groups[place]["params"].append(parameter)
            members[place].append(name)
    return Stacked([name for names in members for name in names], OPTIMIZERS[kind](groups))


def _options(optim: spec.Optim, device: torch.device) -> dict[str, Any]:
    if optim.optimizer in ("sgd", "muon"):
        return {"lr": optim.lr, "momentum": optim.momentum, "nesterov": optim.nesterov}
    capturable = {"capturable": True} if device.type == "cuda" else {}
    if optim.optimizer == "rmsprop":
        return {"lr": optim.lr, "momentum": optim.momentum, **capturable}
    return {"lr": optim.lr, "betas": optim.betas, **capturable}


def _fields(settings: spec.Transform) -> dict[str, Any]:
    return {item.name: getattr(settings, item.name) for item in fields(settings)}


def _below(state: Mapping[str, Tensor], prefix: str) -> State:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
