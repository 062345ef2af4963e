"""Who is in an optimizer now, and under which name: read live, as groups may be added, replaced or changed at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from egalitarian.select.plan import Entry

Group = dict[str, Any]


class Roster:
    """The entries of an optimizer's parameters, rebuilt only when its groups have changed.

    Args:
        names: of the parameters that a plan knows. Others go by the name the optimizer has for them, or, where it has
            none or another parameter has that name, by their place in its groups: memories go by name, so no two share.
    """

    def __init__(self, names: Mapping[Tensor, str]) -> None:
        self._names = dict(names)
        self._seen: list[object] = []
        self._entries: list[Entry] = []
        self._groups: dict[Tensor, Group] = {}

    def entries(
        self,
        groups: Sequence[Group],
        describe: Callable[[str, Tensor, Group], Entry],
        check: Callable[[Sequence[Entry]], None],
    ) -> list[Entry]:
        """One entry per parameter, as `describe` says; `check` may refuse the whole, and then nothing has changed here."""
        seen: list[object] = []
        for group in groups:
            seen += [group, group.get("equalize"), *group["params"]]
        if len(seen) != len(self._seen) or any(new is not old for new, old in zip(seen, self._seen, strict=True)):
            named = list(self._named(groups))
            entries = [describe(name, parameter, group) for name, parameter, group in named]
            check(entries)
            self._names |= {parameter: name for name, parameter, _ in named}  # once given, a name stays
            self._seen, self._entries = seen, entries
            self._groups = {parameter: group for _, parameter, group in named}
        return self._entries

    def group(self, entry: Entry) -> Group:
        return self._groups[entry.parameter]

    def decay(self, entry: Entry, decay: float) -> float:
        """The decay to put into a gradient: negated where the optimizer maximizes, as it negates the gradient."""
        return -decay if self.group(entry).get("maximize") else decay

    def _named(self, groups: Sequence[Group]) -> Iterator[tuple[str, Tensor, Group]]:
        taken = set(self._names.values())
        for number, group in enumerate(groups):
            own = group.get("param_names") or []
            fitting = own if len(own) == len(group["params"]) else [None] * len(group["params"])
            for place, (name, parameter) in enumerate(zip(fitting, group["params"], strict=True)):
                if parameter in self._names:
                    name = self._names[parameter]
                else:
                    if name is None or name in taken:
                        name = f"param_groups[{number}].params[{place}]"
                    while name in taken:
                        name += "'"
                    taken.add(name)
                yield name, parameter, group
