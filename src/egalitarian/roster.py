"""Who is in an optimizer now, under which name, and from which group: read live, as groups may be added at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from egalitarian.select import Entry

Group = dict[str, Any]


class Roster:
    """The entries of an optimizer's parameters, made anew only when its groups have changed.

    `describe(name, parameter, group)` says what each parameter is; `check(entries)` may refuse the whole.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        describe: Callable[[str, Tensor, Group], Entry],
        check: Callable[[list[Entry]], None],
    ) -> None:
        self._optimizer, self._describe, self._check = optimizer, describe, check
        self._parameters: list[Tensor] = []
        self._groups: dict[Tensor, Group] = {}
        self._entries: list[Entry] = []

    def entries(self) -> list[Entry]:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        same = len(parameters) == len(self._parameters) and all(map(_is, parameters, self._parameters))
        if not same:
            named = list(self._named())
            entries = [self._describe(name, parameter, group) for name, parameter, group in named]
            self._check(entries)
            self._parameters, self._entries = parameters, entries
            self._groups = {parameter: group for _, parameter, group in named}
        return self._entries

    def group(self, entry: Entry) -> Group:
        return self._groups[entry.parameter]

    def decay(self, entry: Entry, decay: float) -> float:
        """The decay to put into a gradient: negated where the optimizer maximizes, as it negates the gradient."""
        return -decay if self.group(entry).get("maximize") else decay

    def _named(self) -> list[tuple[str, Tensor, Group]]:
        named = []
        for number, group in enumerate(self._optimizer.param_groups):
            names = group.get("param_names") or [f"param_groups[{number}].params[{i}]" for i in range(len(group["params"]))]
            named += [(name, parameter, group) for name, parameter in zip(names, group["params"], strict=True)]
        return named


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other
