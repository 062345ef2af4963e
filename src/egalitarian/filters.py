"""Elementwise transforms: filters over time, which act on every parameter and hand their memory in and out."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from egalitarian.checks import check_bool, check_integer, check_number
from egalitarian.plan import Plan
from egalitarian.transforms import ElementwiseTransform, Memory, beside


@dataclass(frozen=True, repr=False)
class Identity(ElementwiseTransform):
    """The gradient as it is: with it, an attached optimizer is the bare optimizer, bit for bit.

    Args:
        plan: act on what this plan takes; None: on every parameter. Here it makes no difference.
    """

    remembers = ()
    plan: Plan | None = field(default=None, kw_only=True)

    def start(self, grad: Tensor, stack: int | None) -> Memory:
        return {}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return grad, memory


@dataclass(frozen=True, repr=False)
class Momentum(ElementwiseTransform):
    """m <- beta m + (1 - beta) g. Before `Polar` it is Muon's order; an optimizer's own momentum comes after.

    Args:
        beta: how much of the mean stays, in [0, 1).
        nesterov: hand on (1 - beta) g + beta m instead of m.
        plan: act on what this plan takes; None: on every parameter.
    """

    beta: float = 0.95
    nesterov: bool = False
    plan: Plan | None = field(default=None, kw_only=True)
    remembers = ("mean",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("beta", self.beta, "Muon uses 0.95", below=1.0)
        check_bool("nesterov", self.nesterov)

    def start(self, grad: Tensor, stack: int | None) -> Memory:
        return {"mean": torch.zeros_like(grad)}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        mean = memory["mean"].lerp(grad, 1 - self.beta)
        return (grad.lerp(mean, self.beta) if self.nesterov else mean), {"mean": mean}


@dataclass(frozen=True, repr=False)
class GrokfastEMA(ElementwiseTransform):
    """g + lamb m with m <- alpha m + (1 - alpha) g: Grokfast's exponential filter (Lee et al. 2024).

    The mean starts at the first gradient, as in the authors' code. Keeps one copy of all gradients.

    Args:
        alpha: how much of the mean stays, in [0, 1).
        lamb: how strongly the slow part is amplified.
        plan: act on what this plan takes; None: on every parameter.
    """

    alpha: float = 0.98
    lamb: float = 2.0
    plan: Plan | None = field(default=None, kw_only=True)
    remembers = ("mean", "count")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha", self.alpha, "Grokfast uses 0.8 to 0.98", below=1.0)
        check_number("lamb", self.lamb, "Grokfast uses 0.1 to 5")

    def start(self, grad: Tensor, stack: int | None) -> Memory:
        return {"mean": torch.zeros_like(grad), "count": _zero_count(grad, stack)}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        first = beside(memory["count"] == 0, grad)
        mean = torch.where(first, grad, memory["mean"] * self.alpha + grad * (1 - self.alpha))
        return grad + mean * self.lamb, {"mean": mean, "count": memory["count"] + 1}


@dataclass(frozen=True, repr=False)
class GrokfastMA(ElementwiseTransform):
    """g + lamb mean(last `window` gradients): Grokfast's windowed filter. Keeps `window` copies of all gradients.

    Args:
        window: how many gradients to average.
        lamb: how strongly the slow part is amplified.
        warmup: stay off until the window is full, as in the authors' code.
        plan: act on what this plan takes; None: on every parameter.
    """

    window: int = 100
    lamb: float = 5.0
    warmup: bool = True
    plan: Plan | None = field(default=None, kw_only=True)
    remembers = ("window", "count")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("window", self.window, "Grokfast uses 100", least=1)
        check_number("lamb", self.lamb, "Grokfast uses 0.1 to 5")
        check_bool("warmup", self.warmup)

    def start(self, grad: Tensor, stack: int | None) -> Memory:
        axis = 0 if stack is None else 1  # the window's axis stands behind the stack's
        shape = (*grad.shape[:axis], self.window, *grad.shape[axis:])
        return {"window": grad.new_zeros(shape), "count": _zero_count(grad, stack)}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        axis = memory["count"].ndim
        window = torch.cat([memory["window"].narrow(axis, 1, self.window - 1), grad.unsqueeze(axis)], axis)
        count = (memory["count"] + 1).clamp_max(self.window)
        mean = window.mean(axis) * beside((self.window / count).to(grad.dtype), grad)  # no sum: it may overflow
        on = beside((count == self.window) | (not self.warmup), grad)
        return torch.where(on, grad + mean * self.lamb, grad), {"window": window, "count": count}


def _zero_count(grad: Tensor, stack: int | None) -> Tensor:
    return torch.zeros(() if stack is None else (stack,), dtype=torch.int64, device=grad.device)
