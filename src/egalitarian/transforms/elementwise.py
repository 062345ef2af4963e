"""Elementwise transforms: filters over time, which take and return their memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from egalitarian.checks import check_bool, check_integer, check_number
from egalitarian.select import Plan
from egalitarian.transforms.base import ElementwiseTransform, Memory, broadcast, by_keyword


@by_keyword
@dataclass(frozen=True, repr=False)
class Identity(ElementwiseTransform, captures=True):
    """Leaves every gradient unchanged. An optimizer with it attached makes the same steps as the bare one, bit for bit.

    Args:
        plan: has no effect here.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> egd = attach(optimizer, layer, Identity())
    >>> optimizer.step()
    >>> layer.weight.grad
    tensor([[2.0000, 0.0000],
            [0.0000, 0.5000]])
    """

    remembers = ()
    plan: Plan | None = field(default=None, kw_only=True)

    def start(self, grad: Tensor, stack: int | None) -> Memory:
        return {}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return grad, memory


@by_keyword
@dataclass(frozen=True, repr=False)
class Momentum(ElementwiseTransform, captures=True):
    """Replaces a gradient g by the running mean m <- beta m + (1 - beta) g, which starts at 0.

    `[Momentum(), Polar()]` is Muon's order: the mean is equalised. An optimizer's own momentum comes after equalising.

    Args:
        beta: weight of the old mean, in [0, 1).
        nesterov: return (1 - beta) g + beta m instead of m.
        plan: act only on the parameters that this plan takes; None means every parameter.

    >>> from egalitarian import Polar, attach
    >>> layer = torch.nn.Linear(3, 2)
    >>> attach(torch.optim.SGD(layer.parameters(), lr=0.1), layer, [Momentum(), Polar()])
    Attachment(Momentum(), Polar() on SGD, active=True, step=0, 75.0 % of the entries taken)
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


@by_keyword
@dataclass(frozen=True, repr=False)
class GrokfastEMA(ElementwiseTransform, captures=True):
    """Grokfast's exponential filter (Lee et al. 2024): g + lamb m, with m <- alpha m + (1 - alpha) g.

    The mean m starts at the first gradient, as in Grokfast's own code. It takes the memory of one copy of all gradients.

    Args:
        alpha: weight of the old mean, in [0, 1).
        lamb: weight of the mean in the result.
        plan: act only on the parameters that this plan takes; None means every parameter.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> egd = attach(optimizer, layer, GrokfastEMA(alpha=0.9, lamb=2.0))
    >>> optimizer.step()
    >>> layer.weight.grad
    tensor([[6.0000, 0.0000],
            [0.0000, 1.5000]])
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
        first = broadcast(memory["count"] == 0, grad)
        mean = torch.where(first, grad, memory["mean"] * self.alpha + grad * (1 - self.alpha))
        return grad + mean * self.lamb, {"mean": mean, "count": memory["count"] + 1}


@by_keyword
@dataclass(frozen=True, repr=False)
class GrokfastMA(ElementwiseTransform, captures=True):
    """Grokfast's windowed filter: g + lamb m, with m the mean of the last `window` gradients.

    It takes the memory of `window` copies of all gradients.

    Args:
        window: number of gradients to average.
        lamb: weight of the mean in the result.
        warmup: leave gradients unchanged until the window is full, as in Grokfast's own code.
        plan: act only on the parameters that this plan takes; None means every parameter.

    >>> from egalitarian import attach
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.grad = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    >>> egd = attach(optimizer, layer, GrokfastMA(window=1, lamb=4.0))
    >>> optimizer.step()
    >>> layer.weight.grad
    tensor([[10.0000,  0.0000],
            [ 0.0000,  2.5000]])
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
        axis = 0 if stack is None else 1  # the window's axis follows the stack's
        shape = (*grad.shape[:axis], self.window, *grad.shape[axis:])
        return {"window": grad.new_zeros(shape), "count": _zero_count(grad, stack)}

    def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        axis = memory["count"].ndim
        window = torch.cat([memory["window"].narrow(axis, 1, self.window - 1), grad.unsqueeze(axis)], axis)
        count = (memory["count"] + 1).clamp_max(self.window)
        mean = window.mean(axis) * broadcast((self.window / count).to(grad.dtype), grad)  # a sum may overflow
        on = broadcast((count == self.window) | (not self.warmup), grad)
        return torch.where(on, grad + mean * self.lamb, grad), {"window": window, "count": count}


def _zero_count(grad: Tensor, stack: int | None) -> Tensor:
    return torch.zeros(() if stack is None else (stack,), dtype=torch.int64, device=grad.device)
