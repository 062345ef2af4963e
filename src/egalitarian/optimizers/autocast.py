"""The precision of every matrix, and whether the forward pass runs under autocast to half precision.

A step cannot see autocast, so a hook on the forward pass finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from egalitarian.apply import gradient_dtype
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Plan
from egalitarian.transforms import MatrixTransform, Site, Transform, asks_for_autocast, ignoring_autocast

HALVES = (torch.float16, torch.bfloat16)


class Autocast:
    """Finds it out at the first forward pass in training mode with gradients enabled.

    Args:
        modules: the modules whose matrices are taken. The first that is called answers; then all hooks are removed.
        chain: the transforms. If autocast matters for none of them, there are no hooks.
    """

    def __init__(self, modules: Iterable[nn.Module], chain: Sequence[Transform], half: bool | None = None) -> None:
        self.half = half
        """Whether the forward pass ran under autocast to half precision; None as long as this is unknown."""
        self._ignoring = ignoring_autocast(chain)
        self._asked = asks_for_autocast(chain)
        concerned = modules if self._asked or self._ignoring else ()
        self._handles = [module.register_forward_pre_hook(_Probe(self, _dtype(module))) for module in concerned]

    def warn_of_noise(self) -> None:
        """Warns once of transforms that equalise what is rounding noise under autocast."""
        if self.half and self._ignoring:
            link, self._ignoring = self._ignoring[0], []
            warn_user(
                f"the forward pass ran under autocast to half precision, so weak directions of the gradients are rounding "
                f"noise, which {link!r} raises to full strength; pass it compute=torch.bfloat16 or torch.float16, or "
                f"use Polar(precision='auto')"
            )

    def learn(self, device: str, narrowed: bool) -> None:
        """Learns from a forward pass, in which a mixed-precision policy of FSDP may have narrowed the weights."""
        self.half = narrowed or (torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in HALVES)
        self.remove()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def text(self) -> str:
        """What `print(plan)` says about autocast; empty if the result does not depend on it."""
        if not self._asked:
            return ""
        return {None: "autocast unknown", True: "autocast to half precision", False: "no autocast"}[self.half]


class Tiers:
    """The tier, or precision, of every matrix that a plan takes, by name: in effect, to save, and in the saved run."""

    def __init__(self, plan: Plan, chain: Sequence[Transform], autocast: Autocast) -> None:
        self._plan, self._chain, self._autocast = plan, chain, autocast
        self.compute: torch.dtype | None = None
        """The dtype in which gradients are computed, if it is not their own: float16 under a GradScaler."""
        self.saved: dict[str, str] = {}
        """Those of a loaded state, until a warning has compared them."""

    def now(self) -> dict[str, str]:
        """The tiers in effect."""
        return self._with(bool(self._autocast.half))

    def known(self, step: int) -> dict[str, str]:
        """The tiers in effect. Before the first step, tiers that autocast may still change are left out."""
        tiers = self.now()
        unknown = self._autocast.half is None and not step
        other = self._with(half=True) if unknown else tiers
        return {name: tier for name, tier in tiers.items() if other[name] == tier}

    def notes(self) -> dict[str, str]:
        """The notes of the plan on every matrix, with its tier."""
        tiers = self.now()
        return {
            target.name: ", ".join(filter(None, (target.note, tiers.get(target.name)))) for target in self._plan.targets
        }

    def warn_of_others(self) -> None:
        """Warns once if a matrix has another tier than in the saved run."""
        now, saved, self.saved = self.now(), self.saved, {}
        others = [name for name, tier in now.items() if saved.get(name, tier) != tier]
        changed = [f"{name!r} {saved[name]} then, {now[name]} now" for name in others]
        if changed:
            shown = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
            warn_user(
                f"the precision differs from that of the saved run: {shown}; to continue as before, attach with "
                f"Polar(precision=...) of that name"
            )

    def _with(self, half: bool) -> dict[str, str]:
        """The tiers if the forward pass runs under autocast to half precision, or if it does not."""
        tiers: dict[str, str] = {}
        for entry in self._plan.taken:
            parameter = entry.parameter
            site = Site("", 0, self.compute or gradient_dtype(parameter), half)
            for link in self._chain:
                if isinstance(link, MatrixTransform):
                    for target in entry.targets:
                        if tier := link.arithmetic(target.rows, target.columns, parameter.device, site):
                            tiers[target.name] = tier
        return tiers


class _Probe:
    """The hook on a module. A copy or a pickle of the module gets `_gone` instead."""

    def __init__(self, learner: Autocast, dtype: torch.dtype | None) -> None:
        self._learner, self._dtype = learner, dtype

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        if torch.amp.is_autocast_available(device):  # not on the meta device, where a pass computes shapes alone
            dtype = _dtype(module)
            self._learner.learn(device, narrowed=dtype in HALVES and dtype != self._dtype)

    def __deepcopy__(self, memo: Any) -> Any:
        return _gone

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _gone_hook, ()


def _dtype(module: nn.Module) -> torch.dtype | None:
    return next((parameter.dtype for parameter in module.parameters()), None)


def _gone(module: nn.Module, args: Any) -> None:
    """The hook of a copied module. It removes itself."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _gone:
            del module._forward_pre_hooks[key]


def _gone_hook() -> Any:
    return _gone
