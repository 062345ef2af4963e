"""Naming parameters: a selector is a name pattern, a module type, a module or the parameter itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate

from torch import Tensor, nn

from egalitarian.select.listing import Listed

Selector = str | type[nn.Module] | nn.Module | Tensor

_SELECTORS = "a selector is a name pattern, a module, a module type or a parameter"


def as_selectors(what: str, given: Selector | Iterable[Selector]) -> tuple[Selector, ...]:
    if isinstance(given, str | type | Tensor | nn.Module):
        given = (given,)
    elif not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise TypeError(f"{what} must be one or more selectors, got {given!r}; {_SELECTORS}")
    selectors = tuple(given)
    for selector in selectors:
        a_type = isinstance(selector, type) and issubclass(selector, nn.Module)
        if not a_type and not isinstance(selector, str | Tensor | nn.Module):
            raise TypeError(f"{what} must hold selectors only, got {selector!r}; {_SELECTORS}")
    return selectors


class Index:
    """Finds what a selector matches, by a look-up that stays fast with thousands of names and layers."""

    def __init__(self, listed: Sequence[Listed]) -> None:
        self._listed = listed
        self._by_name: dict[str, dict[Listed, None]] = {}
        self._by_module: dict[nn.Module, dict[Listed, None]] = {}
        for item in listed:
            self._by_name.setdefault(item.name, {})[item] = None
            for owner in item.owners:
                self._by_name.setdefault(owner.name, {})[item] = None
                for path, module in owner.around:
                    self._by_module.setdefault(module, {})[item] = None
                    if path:
                        self._by_name.setdefault(path, {})[item] = None

    def found(self, what: str, selectors: Sequence[Selector]) -> set[Listed]:
        """What any of the selectors matches; a selector that matches nothing raises."""
        return {item for selector in selectors for item in self.of(what, selector)}

    def of(self, what: str, selector: Selector) -> list[Listed]:
        """What the selector matches. No match is an error, since a misspelt name must not silently switch EGD off."""
        found = self._matches(selector)
        if not found:
            raise ValueError(self._unmatched(what, selector))
        return found

    def _matches(self, selector: Selector) -> list[Listed]:
        if isinstance(selector, Tensor):
            return [item for item in self._listed if item.parameter is selector]
        if isinstance(selector, nn.Module):
            return list(self._by_module.get(selector, ()))
        if isinstance(selector, type):
            within = [items for module, items in self._by_module.items() if isinstance(module, selector)]
            return list(dict.fromkeys(item for items in within for item in items))
        names = [selector] if selector in self._by_name else []
        if re.search(r"[*?[]", selector):
            pattern = re.compile(translate(selector))
            names += [name for name in self._by_name if pattern.match(name)]
        return list(dict.fromkeys(item for name in names for item in self._by_name[name]))

    def _unmatched(self, what: str, selector: Selector) -> str:
        if isinstance(selector, Tensor):
            return (
                f"{what} must name parameters of the model, got a tensor of shape {tuple(selector.shape)} that is not one; "
                f"pass the model's own parameter"
            )
        if isinstance(selector, type):
            return f"{what} must match a parameter, got {selector.__name__}; the model has no such module with one"
        modules = self._modules()
        if isinstance(selector, nn.Module) and selector not in modules.values():
            return f"{what} must name modules of the model, got another {type(selector).__name__}; pass the model's own"
        if isinstance(selector, nn.Module) or selector in modules:
            name = repr(selector) if isinstance(selector, str) else type(selector).__name__
            return f"{what} must match a parameter, got {name}, a module without parameters; leave it out"
        paths = (path for item in self._listed for owner in item.owners for path, _ in owner.around if path)
        names = list(dict.fromkeys([*(item.name for item in self._listed), *paths]))
        near = difflib.get_close_matches(selector, names, n=3, cutoff=0.6)
        hint = f"the first names are {', '.join(names[:3])}" if names else "the model has no parameters"
        hint = f"did you mean {', '.join(near)}?" if near else hint
        return f"{what} must match a parameter, got {selector!r}, which matches nothing; {hint}"

    def _modules(self) -> dict[str, nn.Module]:
        """All modules inside the model, also those without parameters."""
        roots = {owner.around[0][1] for item in self._listed for owner in item.owners}
        return {name: module for root in roots for name, module in root.named_modules() if name}


def chosen(index: Index, selectors: Sequence[Selector]) -> set[Listed]:
    """What `include` takes: a type must match every owner, so that `include=nn.Linear` leaves a tied embedding."""
    named = index.found("include", [selector for selector in selectors if not isinstance(selector, type)])
    types = tuple(selector for selector in selectors if isinstance(selector, type))
    typed = {
        item
        for item in index.found("include", types)
        if all(any(isinstance(module, types) for _, module in owner.around) for owner in item.owners)
    }
    return named | typed
