"""Finds out, during a forward pass, whether it runs under autocast to half precision. A step cannot see this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from egalitarian.optimizers.notices import warn_user
from egalitarian.transforms import Transform, asks_for_autocast, ignoring_autocast

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
        self._handles = [module.register_forward_pre_hook(_Probe(self)) for module in concerned]

    def warn_of_noise(self) -> None:
        """Warns once of transforms that equalise what is rounding noise under autocast."""
        if self.half and self._ignoring:
            link, self._ignoring = self._ignoring[0], []
            warn_user(
                f"the forward pass ran under autocast to half precision, so weak directions of the gradients are rounding "
                f"noise, which {link!r} raises to full strength; pass it compute=torch.bfloat16 or torch.float16, or "
                f"use Polar(precision='auto')"
            )

    def learn(self, device: str) -> None:
        self.half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in HALVES
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


class _Probe:
    """The hook on a module. A copy or a pickle of the module gets `_gone` instead."""

    def __init__(self, learner: Autocast) -> None:
        self._learner = learner

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        if torch.amp.is_autocast_available(device):  # not on the meta device, where a pass computes shapes alone
            self._learner.learn(device)

    def __deepcopy__(self, memo: Any) -> Any:
        return _gone

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _gone_hook, ()


def _gone(module: nn.Module, args: Any) -> None:
    """The hook of a copied module. It removes itself."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _gone:
            del module._forward_pre_hooks[key]


def _gone_hook() -> Any:
    return _gone
