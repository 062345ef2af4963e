"""Naming parameters: a selector is a name pattern, a module type or the parameter itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

Selector = str | type[nn.Module] | nn.Module | Tensor

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
_SELECTORS = "a selector is a name pattern, a module, a module type or a parameter"
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True, eq=False)
class Owner:
    """A module that holds the parameter, with the modules around it."""

    path: str
    local: str
    module: nn.Module
    around: tuple[tuple[str, nn.Module], ...]
    """(path, module) from the root down to the owner itself."""

    @property
    def name(self) -> str:
        return f"{self.path}.{self.local}" if self.path else self.local

    @property
    def is_layer(self) -> bool:
        return self.local == "weight" and isinstance(self.module, _LAYERS)

    @property
    def transposed(self) -> bool:
        return self.is_layer and isinstance(self.module, _TRANSPOSED)

    def reason_against(self, heads: set[nn.Module]) -> str:
        """Why the default set leaves this parameter alone; empty if it takes it."""
        if isinstance(self.module, _EMBEDDINGS):
            return f"embedding {self.name!r}"
        if self.module in heads:
            return "output head"
        if self.transposed and self.module.groups != 1:
            return "grouped transposed convolution"
        attention = isinstance(self.module, nn.MultiheadAttention) and self.local in _ATTENTION_WEIGHTS
        if self.is_layer or attention:
            return ""
        return f"{self.local!r} of {type(self.module).__name__} is not a Linear or Conv weight"


@dataclass(frozen=True, eq=False)
class Listed:
    """One parameter with every module that owns it: several if weights are tied."""

    name: str
    parameter: Tensor
    owners: tuple[Owner, ...] = ()

    @property
    def pieces(self) -> tuple[int, ...] | None:
        """The rows of the matrices that are fused in this weight: query, key and value."""
        for owner in self.owners:
            if isinstance(owner.module, nn.MultiheadAttention) and owner.local == "in_proj_weight":
                return (owner.module.embed_dim,) * 3
        return None


def listing(model: nn.Module | Mapping[str, Tensor]) -> list[Listed]:
    """Every parameter once, in the model's order, under a name that wrapping the model does not change."""
    if isinstance(model, Mapping):
        wrong = next(((name, value) for name, value in model.items() if not isinstance(value, Tensor)), None)
        if wrong is not None:
            raise TypeError(f"a mapping must hold tensors, got {type(wrong[1]).__name__} for {wrong[0]!r}; leave it out")
        first: dict[Tensor, str] = {}
        for name, tensor in model.items():
            if first.setdefault(tensor, name) != name:
                raise ValueError(
                    f"a mapping must hold each tensor once, got one as {first[tensor]!r} and {name!r}; remove one"
                )
        return [Listed(name, tensor) for name, tensor in model.items()]
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module or a mapping of names to tensors, got {type(model).__name__}; "
            f"pass the module itself or a dict"
        )
    owners: dict[Tensor, list[Owner]] = {}
    for owner, parameter in _owners(model):
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{owner.name!r} must have a shape, got a lazy parameter; run one forward pass first")
        owners.setdefault(parameter, []).append(owner)
    return [Listed(held[0].name, parameter, tuple(held)) for parameter, held in owners.items()]


def _owners(model: nn.Module) -> Iterable[tuple[Owner, Tensor]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        around = [("", modules[""])]
        steps = path.split(".") if path else []
        for count, step in enumerate(steps, 1):
            above, parent = around[-1]
            if not _is_wrapping(parent, step):
                above = f"{above}.{step}" if above else step
            around.append((above, modules[".".join(steps[:count])]))
        for local, parameter in module.named_parameters(recurse=False):
            yield Owner(around[-1][0], local, module, tuple(around)), parameter


def _is_wrapping(parent: nn.Module, step: str) -> bool:
    """Whether this part of a path comes from wrapping, compiling or distributing a module."""
    distributed = isinstance(parent, nn.parallel.DistributedDataParallel | nn.DataParallel)
    return step == "_orig_mod" or (distributed and step == "module")


def last_layer(model: nn.Module | Mapping[str, Tensor]) -> set[nn.Module]:
    """The last registered Linear or convolution, unless it is the only one."""
    if not isinstance(model, nn.Module):
        return set()
    layers = [module for _, module in model.named_modules(remove_duplicate=False) if isinstance(module, _LAYERS)]
    return {layers[-1]} if len(set(layers)) > 1 else set()


def as_selectors(what: str, given: Selector | Iterable[Selector]) -> tuple[Selector, ...]:
    if isinstance(given, str | type | Tensor | nn.Module):
        given = (given,)
    elif not isinstance(given, Iterable):
        raise TypeError(f"{what} must be one or more selectors, got {given!r}; {_SELECTORS}")
    selectors = tuple(given)
    for selector in selectors:
        a_type = isinstance(selector, type) and issubclass(selector, nn.Module)
        if not a_type and not isinstance(selector, str | Tensor | nn.Module):
            raise TypeError(f"{what} must hold selectors only, got {selector!r}; {_SELECTORS}")
    return selectors


def matching(selectors: Sequence[Selector], item: Listed) -> bool:
    return any(_matches(selector, item) for selector in selectors)


def chosen(selectors: Sequence[Selector], item: Listed) -> bool:
    """As `matching`, but a type must match every owner: `include=nn.Linear` does not take a tied embedding."""
    named = [selector for selector in selectors if not isinstance(selector, type)]
    types = tuple(selector for selector in selectors if isinstance(selector, type))
    typed = [any(isinstance(module, types) for _, module in owner.around) for owner in item.owners]
    return matching(named, item) or (bool(typed) and all(typed))


def _matches(selector: Selector, item: Listed) -> bool:
    if isinstance(selector, Tensor):
        return selector is item.parameter
    if isinstance(selector, nn.Module):
        return any(module is selector for owner in item.owners for _, module in owner.around)
    if isinstance(selector, type):
        return any(isinstance(module, selector) for owner in item.owners for _, module in owner.around)
    names = [item.name]
    for owner in item.owners:
        names += [owner.name, *(path for path, _ in owner.around if path)]
    return any(name == selector or fnmatchcase(name, selector) for name in names)


def check_matched(what: str, selectors: Sequence[Selector], listed: Sequence[Listed]) -> None:
    """Raises for a selector that matches nothing: a misspelt name must not silently switch EGD off."""
    for selector in selectors:
        if any(_matches(selector, item) for item in listed):
            continue
        if isinstance(selector, Tensor):
            raise ValueError(
                f"{what} must name parameters of the model, got a tensor of shape {tuple(selector.shape)} that is not one; "
                f"pass the model's own parameter"
            )
        if isinstance(selector, type):
            raise ValueError(
                f"{what} must match a parameter, got {selector.__name__}; the model has no such module with one"
            )
        if isinstance(selector, nn.Module):
            raise ValueError(
                f"{what} must name modules of the model, got another {type(selector).__name__}; pass the model's own"
            )
        paths = (path for item in listed for owner in item.owners for path, _ in owner.around if path)
        names = list(dict.fromkeys([*(item.name for item in listed), *paths]))
        near = difflib.get_close_matches(selector, names, n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(near)}?" if near else f"the first names are {', '.join(names[:3])}"
        raise ValueError(f"{what} must match a parameter, got {selector!r}, which matches nothing; {hint}")
