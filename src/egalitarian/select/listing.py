"""Lists the parameters of a model with the modules that own them. Wrapping the model does not change their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

_WRAPPERS = {
    "OptimizedModule": ("_orig_mod",),
    "DistributedDataParallel": ("module",),
    "DataParallel": ("module",),
    "AveragedModel": ("module",),
    "CheckpointWrapper": ("_checkpoint_wrapped_module",),
    "_FabricModule": ("_forward_module", "_original_module"),
}
"""By class, the child that it wraps. The name of this child is left out of parameter names."""
_ADAPTED = ("base_layer", "original_module")
"""What an adapter calls the layer that it replaces."""
_FACTORS = ("lora_A", "lora_B")


@dataclass(frozen=True, eq=False)
class Owner:
    """A module that holds the parameter, with the modules around it."""

    path: str
    local: str
    module: nn.Module
    around: tuple[tuple[str, nn.Module], ...]
    """(path, module) from the root down to the owner itself."""
    order: int = 0
    """How many owners were registered before this one."""

    @property
    def name(self) -> str:
        return f"{self.path}.{self.local}" if self.path else self.local

    @cached_property
    def _chain(self) -> list[tuple[str, nn.Module]]:
        """The modules around the weight, down to its layer; without wrappers and parametrizations."""
        paths = [path for path, _ in self.around]
        chain = [pair for index, pair in enumerate(self.around) if pair[0] not in paths[index + 1 :]]
        return chain[:-2] if isinstance(self.module, ParametrizationList) else chain

    @property
    def layer(self) -> nn.Module:
        """The layer that uses the weight. A parametrized weight is held by a module inside that layer."""
        return self._chain[-1][1]

    @cached_property
    def factor(self) -> str:
        """Which factor of an adapter this is; empty for a weight that is none."""
        return next((step for step in _FACTORS if step in [self.local, *self.path.split(".")[-2:]]), "")

    @cached_property
    def unit(self) -> tuple[tuple[str, nn.Module], ...]:
        """As `around`, but ends at the layer that the model calls: at an adapter, for the layer inside it."""
        chain = self._chain
        while len(chain) > 1:
            if _step(chain[-1]) in _ADAPTED:
                chain = chain[:-1]
            elif len(chain) > 2 and _step(chain[-2]) in (*_FACTORS, "modules_to_save"):
                chain = chain[:-2]
            else:
                break
        return tuple(chain)

    @property
    def site(self) -> tuple[nn.Module, str] | None:
        """The module around that layer, and the layer's name there; None for the model itself."""
        return (self.unit[-2][1], _step(self.unit[-1])) if self.unit[1:] else None


@dataclass(frozen=True, eq=False)
class Listed:
    """One parameter with every module that owns it: several if weights are tied."""

    name: str
    parameter: Tensor
    owners: tuple[Owner, ...] = ()


def listing(model: nn.Module | Mapping[str, Tensor]) -> list[Listed]:
    """Every parameter once, in the model's order."""
    if isinstance(model, Mapping):
        return _of_mapping(model)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module or a mapping of names to tensors, got {type(model).__name__}; "
            f"pass the module itself or a dict"
        )
    owners: dict[Tensor, list[Owner]] = {}
    full: dict[Tensor, str] = {}
    for owner, parameter, path in _owners(model):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{owner.name!r} must have a shape, got a lazy parameter; run one forward pass first")
        owners.setdefault(parameter, []).append(owner)
        full.setdefault(parameter, f"{path}.{owner.local}" if path else owner.local)
    count = Counter(held[0].name for held in owners.values())
    return [
        Listed(held[0].name if count[held[0].name] == 1 else full[parameter], parameter, tuple(held))
        for parameter, held in owners.items()
    ]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside all wrappers. A call of it skips what they add."""
    while (steps := _wrapped(model)) and isinstance(inner := getattr(model, steps[0], None), nn.Module):
        model = inner
    return model


def _of_mapping(model: Mapping[str, Tensor]) -> list[Listed]:
    first: dict[Tensor, str] = {}
    for name, tensor in model.items():
        if not isinstance(name, str):
            raise TypeError(f"a mapping must have names as keys, got {name!r}; pass strings")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"a mapping must hold tensors, got {type(tensor).__name__} for {name!r}; leave it out")
        if first.setdefault(tensor, name) != name:
            raise ValueError(f"a mapping must hold each tensor once, got one as {first[tensor]!r} and {name!r}; remove one")
    return [Listed(name, tensor) for name, tensor in model.items()]


def _owners(model: nn.Module) -> Iterator[tuple[Owner, Tensor, str]]:
    """Each parameter with its owner, and the owner's path with all of its steps."""
    around: dict[str, tuple[tuple[str, nn.Module], ...]] = {}
    order = 0
    for path, module in model.named_modules(remove_duplicate=False):
        above, _, step = path.rpartition(".")
        if not path:
            around[path] = (("", module),)
        else:
            outer, parent = around[above][-1]
            inner = outer if step in _wrapped(parent) else f"{outer}.{step}" if outer else step
            around[path] = (*around[above], (inner, module))
        for local, parameter in module.named_parameters(recurse=False):
            yield Owner(around[path][-1][0], local, module, around[path], order), parameter, path
            order += 1


def _wrapped(module: nn.Module) -> tuple[str, ...]:
    return next((_WRAPPERS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), ())


def _step(pair: tuple[str, nn.Module]) -> str:
    return pair[0].rpartition(".")[2]
