"""Optimizers on stacked parameters, whose leading axis counts seeds: torch's, Lion, Muon, and the clipping of rows.

None of them mixes seeds or reads a value on the host, so CUDA graphs can have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from egalitarian.lab.config import Optim, SpecError

SeedState = dict[str, Tensor]
"""All that one seed needs to resume, flat: ready for a safetensors file."""
MOMENTUM = "momentum_buffer"
"""The key of a running mean in an optimizer's state, as in torch's."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Of Muon's iteration X <- a X + b (X Xᵀ) X + c (X Xᵀ)² X: the defaults of `torch.optim.Muon`."""
STEPS = 5
"""Of that iteration."""
TINY = 1e-7
"""The smallest norm that Muon divides by."""
NOISE = 16.0
"""A gradient's part across the weights is rounding noise below so many roundings of the whole."""
AT_ONCE = {"cpu": 1}
"""Matrices in one of Muon's products, by device; elsewhere all. On a CPU the size of the batch decides which kernel torch
takes, so that a seed's last bits would depend on the other seeds."""


class Gradients(NamedTuple):
    """The parameters of a param group that have gradients, with them and with their running means."""

    parameters: list[Tensor]
    grads: list[Tensor]
    means: list[Tensor]

    @staticmethod
    def of(group: Mapping[str, Any], state: Any) -> Gradients:
        """A running mean begins at zero."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in parameters:
            if MOMENTUM not in state[parameter]:
                state[parameter][MOMENTUM] = torch.zeros_like(parameter.grad)
        means = [state[parameter][MOMENTUM] for parameter in parameters]
        return Gradients(parameters, [parameter.grad for parameter in parameters], means)


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023): every entry moves by lr, in the direction of the sign of an interpolated momentum.

    c = beta1 m + (1 - beta1) g;  W <- W - lr (sign(c) + weight_decay W);  m <- beta2 m + (1 - beta2) g.
    """

    def __init__(self, params: Iterable[Any], **defaults: Any) -> None:
        """With `lr`, `betas` and `weight_decay` by keyword, or in every param group."""
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the lab has no closures
        for group in self.param_groups:
            parameters, grads, means = Gradients.of(group, self.state)
            if parameters:
                (beta1, beta2), lr = group["betas"], group["lr"]
                directions = torch._foreach_lerp(means, grads, 1 - beta1)
                torch._foreach_sign_(directions)
                torch._foreach_lerp_(means, grads, 1 - beta2)
                torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
                torch._foreach_add_(parameters, directions, alpha=-lr)


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` on stacks (seeds, out, ...), with a convolution's weight as a matrix (out, rest).

    The arithmetic is torch's. All matrices of one shape, of all seeds and parameters, go through the iteration together,
    except on a CPU. A matrix and the transpose of another count as one shape.
    """

    def __init__(self, params: Iterable[Any], **defaults: Any) -> None:
        """With `lr`, `momentum`, `nesterov` and `weight_decay` by keyword, or in every param group."""
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # the lab has no closures
        shapes: dict[tuple[int, int], list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            parameters, grads, means = Gradients.of(group, self.state)
            if parameters:
                torch._foreach_lerp_(means, grads, 1 - group["momentum"])
                updates = torch._foreach_lerp(grads, means, group["momentum"]) if group["nesterov"] else means
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                for parameter, update in zip(parameters, updates, strict=True):
                    matrices = update.flatten(2)
                    rows, columns = matrices.shape[1:]
                    shape = min(rows, columns), max(rows, columns)
                    shapes.setdefault(shape, []).append((parameter, matrices, group["lr"]))
        for members in shapes.values():
            _add_factors(members)


def _add_factors(members: Sequence[tuple[Tensor, Tensor, float]]) -> None:
    """Steps of parameters along the factors of these matrices, (seeds, rows, columns), given with the learning rates."""
    wide = [matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices for _, matrices, _ in members]
    stack = torch.cat(wide).bfloat16()
    parts = torch.split(stack, AT_ONCE.get(stack.device.type, len(stack)))
    factors = torch.split_with_sizes(torch.cat([_muon_factor(part) for part in parts]), [len(each) for each in wide])
    for (parameter, matrices, lr), factor in zip(members, factors, strict=True):
        rows, columns = matrices.shape[1:]
        update = factor.mT if rows > columns else factor
        parameter.add_(update.reshape(parameter.shape), alpha=-lr * math.sqrt(max(1, rows / columns)))


def _muon_factor(matrices: Tensor) -> Tensor:
    """Roughly U Vᵀ of each matrix of a stack (k, m, n) with m <= n: singular values come out between about 0.7 and 1.2."""
    a, b, c = QUINTIC
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    X = matrices / norms.clamp(min=TINY)
    for _ in range(STEPS):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X


@torch.no_grad()
def clip_rows(weights: Iterable[Tensor], most: float) -> None:
    """Scales rows of stacked matrices (seeds, out, ...) down to this l2 norm. Shorter rows stay as they are."""
    for weight in weights:
        norms = torch.linalg.vector_norm(weight, dim=tuple(range(2, weight.ndim)), keepdim=True)
        weight.mul_((most / norms).clamp(max=1))


@torch.no_grad()
def remove_radial(parameters: Iterable[Tensor]) -> None:
    """OrthoGrad: removes each gradient's part along its weights (seeds, ...), and scales the rest to the gradient's norm.

    A gradient that is all along the weights becomes zero: what is left of it is rounding noise.
    """
    for parameter in parameters:
        if parameter.grad is None:
            continue
        weights, grad = parameter.flatten(1), parameter.grad.flatten(1)
        length = torch.linalg.vector_norm(weights, dim=1, keepdim=True)
        unit = weights / torch.where(length > 0, length, 1)
        rest = grad - (unit * grad).sum(1, keepdim=True) * unit
        norm, left = (torch.linalg.vector_norm(each, dim=1, keepdim=True) for each in (grad, rest))
        is_noise = left <= NOISE * torch.finfo(grad.dtype).eps * norm
        rest = torch.where(is_noise, 0, rest * (norm / torch.where(is_noise, 1, left)))
        parameter.grad.copy_(rest.view_as(parameter))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "lion": Lion,
    "muon": Muon,
}


class Stacked:
    """An optimizer on stacked parameters, and its state seed by seed: every seed is as it would be alone."""

    def __init__(self, names: Sequence[str], optimizer: torch.optim.Optimizer) -> None:
        self.names, self.optimizer = names, optimizer

    def step(self) -> None:
        self.optimizer.step()

    def reset(self) -> None:
        """The state of before the first step, which is zero for each of `OPTIMIZERS`, in the same tensors."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def state(self, index: int) -> SeedState:
        """Of the seed with this index in the batch."""
        saved = self.optimizer.state_dict()["state"]
        return {
            f"{name}/{key}": value[index] if value.ndim else value
            for number, name in enumerate(self.names)
            for key, value in saved.get(number, {}).items()
            if value is not None
        }

    def load(self, states: Sequence[SeedState]) -> None:
        """States of all seeds, as `state` gave them."""
        merged: dict[int, dict[str, Tensor]] = {}
        for path in states[0]:
            name, key = path.split("/")
            values = [state[path] for state in states]
            shared = key == "step"  # the one scalar in the state of torch's optimizers
            merged.setdefault(self.names.index(name), {})[key] = values[0] if shared else torch.stack(values)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": merged})


def build_optimizers(
    parameters: Mapping[str, Tensor], settings: Mapping[str, Optim], decay: Mapping[str, float]
) -> list[Stacked]:
    """One optimizer for all parameters of the same kind. Settings and weight decay are given by parameter name."""
    built: list[Stacked] = []
    for kind in dict.fromkeys(optim.optimizer for optim in settings.values()):
        own = {name: parameter for name, parameter in parameters.items() if settings[name].optimizer == kind}
        if kind == "muon":
            _refuse_vectors(own)
        options = {name: {**_options(settings[name], own[name].device), "weight_decay": decay[name]} for name in own}
        built.append(_stacked(kind, own, options))
    return built


def _refuse_vectors(parameters: Mapping[str, Tensor]) -> None:
    for name, stack in parameters.items():
        if stack.ndim < 3:
            raise SpecError(
                f"muon must have matrices alone, got {name!r} of shape {tuple(stack.shape[1:])}; set another optimizer "
                f"in the group of its module, or choose other targets"
            )


def _stacked(kind: str, parameters: Mapping[str, Tensor], options: Mapping[str, Mapping[str, Any]]) -> Stacked:
    """One optimizer with a param group for each set of options."""
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
    if optim.optimizer == "lion":
        return {"lr": optim.lr, "betas": optim.betas}
    capturable = {"capturable": True} if device.type == "cuda" else {}
    if optim.optimizer == "rmsprop":
        return {"lr": optim.lr, "momentum": optim.momentum, **capturable}
    return {"lr": optim.lr, "betas": optim.betas, **capturable}
