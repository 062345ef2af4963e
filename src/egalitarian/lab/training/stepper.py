"""A method on stacked parameters: decay, the library's transforms, and optimizers.

Every parameter has a leading axis of seeds. Nothing here, in torch's optimizers or in the library mixes seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import egalitarian as eg
from egalitarian.lab import config
from egalitarian.lab.config import Method, Optim, SpecError, TransformSettings
from egalitarian.lab.training.optimizers import SeedState, build_optimizers, clip_rows, remove_radial
from egalitarian.lab.training.spectra import HalfSpectrum, Power, RandomSpectrum, ReversedSpectrum

TRANSFORMS = {
    config.PolarSettings: eg.Polar,
    config.LowRankPolarSettings: eg.LowRankPolar,
    config.RowNormSettings: eg.RowNorm,
    config.NaturalSettings: eg.Natural,
    config.PowerSettings: Power,
    config.RandomSpectrumSettings: RandomSpectrum,
    config.HalfSpectrumSettings: HalfSpectrum,
    config.ReversedSpectrumSettings: ReversedSpectrum,
    config.MomentumSettings: eg.Momentum,
    config.GrokfastEMASettings: eg.GrokfastEMA,
    config.GrokfastMASettings: eg.GrokfastMA,
}


class Stepper:
    """Changes the weights by one method: decay before the transforms, OrthoGrad, transforms, optimizers, clipping."""

    def __init__(self, method: Method, parameters: Mapping[str, Tensor], warmup: int = 0) -> None:
        self._parameters, self._method = parameters, method
        self._plan = _plan(method, parameters)
        hidden = method.hidden or method.optim
        targets = {entry.name for entry in self._plan.taken}
        settings = {name: hidden if name in targets else method.optim for name in parameters} | _own(method, parameters)
        weights = [name for name, parameter in parameters.items() if parameter.ndim > 2 or method.decayed == "all"]
        decay = {name: settings[name].weight_decay if name in weights else 0.0 for name in parameters}
        before = method.decay == "before"
        self._decay_before = {name: each for name, each in decay.items() if each} if before else {}
        self._optimizers = build_optimizers(parameters, settings, dict.fromkeys(parameters, 0.0) if before else decay)
        self._rates = [(group, group["lr"]) for group in self._groups]
        self.warmup = warmup
        """Steps in which the learning rates rise."""
        self.count = 0
        """Steps so far."""
        self.sketches = eg.Sketches()
        """The random part of a captured step."""
        self._attachment = self._attach(method) if method.transform else None
        self.all_off = False
        """Whether transforms are switched off for every seed: a step omits them then."""

    @property
    def gradient(self) -> Tensor:
        """Of the first target matrix, (seeds, out, in); after `add_decay`, the input of the transforms."""
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
        """Adds the gradient of wd/2 |W|² for every decayed matrix, before any transform."""
        for name, decay in self._decay_before.items():
            parameter = self._parameters[name]
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=decay)

    def step(self) -> None:
        if self.count <= self.warmup:
            for group, rate in self._rates:
                group["lr"] = rate * min(1.0, self.count / self.warmup) if self.warmup else rate
        if self._method.orthograd:
            remove_radial(self._parameters.values())
        with self.sketches.kept():
            for optimizer in self._optimizers:
                optimizer.step()
        if self._method.clip is not None:
            clip_rows([entry.parameter for entry in self._plan.taken], self._method.clip)
        self.count += 1

    @property
    def synchronises(self) -> str:
        """What in a step waits for the device, so that it cannot be captured; empty if nothing does."""
        for link in self._method.transform:
            if isinstance(link, config.NaturalSettings):
                return "the natural gradient takes an SVD"
            if isinstance(link, config.SpectrumSettings) and link != config.PowerSettings(c=0):
                return "another spectrum takes eigenvectors"
            if isinstance(link, config.LowRankPolarSettings) and (link.oversample or (link.share or 1) < 1):
                return "an oversampled or adaptive rank takes an SVD"
        return ""

    def observe(self, accuracy: Tensor) -> None:
        """One accuracy per seed, at an epoch's end: it may switch a seed's transforms off."""
        if self._attachment is not None and self._method.until is not None:
            self._attachment.observe(accuracy)
            self.all_off = not any(self.active)

    def reset(self) -> None:
        """Starts the optimizers' state again from nothing, in place, where a captured step finds it."""
        for optimizer in self._optimizers:
            optimizer.reset()

    def states(self) -> list[SeedState]:
        """By seed: all that it needs to resume, parameters apart."""
        return [self._state(index) for index in range(self._seeds)]

    def load(self, states: Sequence[SeedState]) -> None:
        """Resumes from the states of all seeds."""
        for number, optimizer in enumerate(self._optimizers):
            optimizer.load([_below(state, f"optim.{number}.") for state in states])
        self._rates = [(group, rate) for (_, rate), group in zip(self._rates, self._groups, strict=True)]
        self.count = int(states[0].get("count", states[0].get("egd.step", torch.tensor(0))))
        if self._attachment is not None:
            self._attachment.load_state_dict(self._attachment_state([_below(state, "egd.") for state in states]))
            self.all_off = not any(self.active)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for each in self._optimizers for group in each.groups]

    def _attach(self, method: Method) -> eg.Attachment:
        target = self._plan.taken[0].parameter
        tier = config.auto_tier(target.device.type, str(target.dtype).removeprefix("torch."))
        chain = [self._transform(link) for link in method.with_tier(tier).transform]
        until = None if method.until is None else eg.Until(method.until)
        targets = {entry.name for entry in self._plan.taken}
        owners = [each for each in self._optimizers if targets <= {*each.names}]
        if not owners:
            raise SpecError(f"targets must share an optimizer, got {sorted(targets)} in two; remove it from groups")
        return eg.attach(owners[0].optimizer, self._plan, chain, until=until)

    def _transform(self, link: TransformSettings) -> Any:
        """The transform. A filter on the targets alone gets the plan."""
        options = {item.name: getattr(link, item.name) for item in fields(link)}
        if options.pop("on", "all") == "targets":
            options["plan"] = self._plan
        return TRANSFORMS[type(link)](**options)

    @property
    def _seeds(self) -> int:
        return len(next(iter(self._parameters.values())))

    def _state(self, index: int) -> SeedState:
        state: SeedState = {"count": torch.tensor(self.count)}
        for number, optimizer in enumerate(self._optimizers):
            state |= {f"optim.{number}.{key}": value for key, value in optimizer.state(index).items()}
        if self._attachment is not None:
            saved = self._attachment.state_dict()
            state["egd.step"] = torch.tensor(self.count)
            state["egd.active"] = torch.tensor(saved["active"][index])
            state["egd.streak"] = torch.tensor(saved["streak"][index])
            for name, memory in saved["tensors"].items():
                state |= {f"egd.tensors.{name}/{key}": value[index] for key, value in memory.items()}
        return state

    def _attachment_state(self, states: Sequence[SeedState]) -> dict[str, Any]:
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


def _plan(method: Method, parameters: Mapping[str, Tensor]) -> eg.Plan:
    try:
        return eg.matrices(parameters, include=method.targets, stack=True)
    except ValueError as error:
        raise SpecError(f"targets must name matrices of the model, got {list(method.targets)}; {error}") from None


def _own(method: Method, parameters: Mapping[str, Tensor]) -> dict[str, Optim]:
    """Settings of the parameters whose module has its own, by parameter name."""
    found: dict[str, Optim] = {}
    for module, optim in sorted(method.groups.items(), key=lambda group: len(group[0])):  # the innermost module wins
        names = [name for name in parameters if name.startswith(f"{module}.")]
        if not names:
            modules = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
            raise SpecError(f"groups must name modules of the model, got {module!r}; it has {modules}")
        found |= dict.fromkeys(names, optim)
    return found


def _below(state: Mapping[str, Tensor], prefix: str) -> SeedState:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
