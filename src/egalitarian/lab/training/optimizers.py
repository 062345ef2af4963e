"""torch's optimizers on stacked parameters, one for all seeds; Muon, which refuses stacks, one per seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from egalitarian.lab.config import Optim, SpecError

SeedState = dict[str, Tensor]
"""All that one seed needs to resume, flat: ready for a safetensors file."""
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
    def state(self, index: int) -> SeedState:
        """Of the seed with this index in the batch."""

    def load(self, states: Sequence[SeedState]) -> None:
        """States of all seeds, as `state` gave them."""


class Stacked:
    """A torch optimizer on stacked parameters: it works elementwise, so that every seed is as it would be alone."""

    def __init__(self, names: Sequence[str], optimizer: torch.optim.Optimizer) -> None:
        self.names, self.optimizer = names, optimizer

    def step(self) -> None:
        self.optimizer.step()

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state(self, index: int) -> SeedState:
        saved = self.optimizer.state_dict()["state"]
        return {
            f"{name}/{key}": value[index] if value.ndim else value
            for number, name in enumerate(self.names)
            for key, value in saved.get(number, {}).items()
            if value is not None
        }

    def load(self, states: Sequence[SeedState]) -> None:
        merged: dict[int, dict[str, Tensor]] = {}
        for path in states[0]:
            name, key = path.split("/")
            values = [state[path] for state in states]
            shared = key == "step"  # the one scalar in the state of torch's optimizers
            merged.setdefault(self.names.index(name), {})[key] = values[0] if shared else torch.stack(values)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": merged})


class PerSeed:
    """An optimizer that refuses stacks (`torch.optim.Muon`): one for each seed, on leaves that view the stack."""

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

    def state(self, index: int) -> SeedState:
        saved = self._optimizers[index].state_dict()["state"]
        return {
            f"{name}/{key}": value
            for number, name in enumerate(self._stacks)
            for key, value in saved.get(number, {}).items()
            if value is not None
        }

    def load(self, states: Sequence[SeedState]) -> None:
        names = list(self._stacks)
        for optimizer, state in zip(self._optimizers, states, strict=True):
            merged: dict[int, SeedState] = {}
            for path, value in state.items():
                name, key = path.split("/")
                merged.setdefault(names.index(name), {})[key] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": merged})


def build_optimizers(
    parameters: Mapping[str, Tensor], settings: Mapping[str, Optim], decay: Mapping[str, float]
) -> list[Optimizer]:
    """One optimizer for all parameters of the same kind. Settings and weight decay are given by parameter name."""
    built: list[Optimizer] = []
    for kind in dict.fromkeys(optim.optimizer for optim in settings.values()):
        own = {name: parameter for name, parameter in parameters.items() if settings[name].optimizer == kind}
        options = {name: {**_options(settings[name], own[name].device), "weight_decay": decay[name]} for name in own}
        built.append(PerSeed(own, options) if kind == "muon" else _stacked(kind, own, options))
    return built


def _stacked(kind: str, parameters: Mapping[str, Tensor], options: Mapping[str, Mapping[str, Any]]) -> Stacked:
    """One torch optimizer with a param group for each set of options."""
    groups: list[dict[str, Any]] = []
    members: list[list[str]] = []
    for name, parameter in parameters.items():
        index = next((index for index, group in enumerate(groups) if options[name].items() <= group.items()), None)
        if index is None:
            groups.append({**options[name], "params": [parameter]})
            members.append([name])
        else:
            groups[index]["params"].append(parameter)
            members[index].append(name)
    return Stacked([name for names in members for name in names], OPTIMIZERS[kind](groups))


def _options(optim: Optim, device: torch.device) -> dict[str, Any]:
    if optim.optimizer in ("sgd", "muon"):
        return {"lr": optim.lr, "momentum": optim.momentum, "nesterov": optim.nesterov}
    capturable = {"capturable": True} if device.type == "cuda" else {}
    if optim.optimizer == "rmsprop":
        return {"lr": optim.lr, "momentum": optim.momentum, **capturable}
    return {"lr": optim.lr, "betas": optim.betas, **capturable}
