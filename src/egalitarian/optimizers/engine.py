"""`Engine`, which `attach` and `EGD` share: it follows the param groups, and transforms their gradients at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egalitarian.apply import (
    Batches,
    Captures,
    PassSettings,
    State,
    affected,
    check_chain,
    check_gradients,
    copied_in_place,
    gradients_of,
    initial_memory,
    transform_gradients,
)
from egalitarian.distributed import Ranks, Sharing, initial_memories, is_dtensor
from egalitarian.optimizers.notices import warn_user
from egalitarian.select import Entry
from egalitarian.transforms import Transform, uses_matrices

Group = dict[str, Any]

STEPS_BEFORE_WARNING = 10
"""Steps after which a matrix without a gradient is reported."""


class Engine:
    """Transforms the gradients of an optimizer's parameters, which it reads from the param groups at every step.

    Groups may be added, replaced or changed at any time. What depends on them is rebuilt only when they have changed.

    Args:
        chain: the transforms.
        stack: the length of the plan's stacks, or None.
        names: the plan's names of parameters. Other parameters get the optimizer's name, or one from their position in
            the groups. Names are unique, since memories are stored by name.
        describe: returns the entry of a parameter from its name and group.
        check: raises if the entries are refused. Nothing changes then.
        capture: whether passes on a GPU are captured as CUDA graphs.
        sharing: which rank computes what, for parameters that several ranks hold.
        replicas: the DistributedDataParallel modules around the model.
    """

    def __init__(
        self,
        chain: tuple[Transform, ...],
        stack: int | None,
        names: Mapping[Tensor, str],
        describe: Callable[[str, Tensor, Group], Entry],
        check: Callable[[Sequence[Entry]], None],
        capture: bool = True,
        sharing: Sharing = "auto",
        replicas: Sequence[nn.Module] = (),
    ) -> None:
        self.chain, self.stack = chain, stack
        self._names, self._describe, self._check = dict(names), describe, check
        self._equalizes = uses_matrices(chain)
        self._batches = Batches(chain)
        self.captures = Captures(chain, capture)
        self.ranks = Ranks(chain, sharing, replicas, capture)
        self._seen: list[object] = []
        self._ids: list[int] = []
        self._entries: list[Entry] = []
        self._here: list[Entry] = []  # affected, and computed by this rank alone
        self._group_of: dict[Tensor, Group] = {}
        self._steps = self._idle = 0
        self._had_gradients: set[str] = set()

    def step(self, groups: Sequence[Group], settings: PassSettings, state: State) -> State:
        """One pass over the gradients. Returns the state after it.

        Args:
            groups: the optimizer's param groups.
            settings: the settings of this pass, with the engine's chain.
            state: the state before the step.
        """
        self.entries(groups)
        if self._equalizes and self._steps < STEPS_BEFORE_WARNING:
            self._warn_if_idle()
        gradients, divided = gradients_of(self._here), {}
        if self.ranks.members:
            check_gradients(gradients, settings)  # at first, so that an error leaves all gradients as they were
            divided = self.ranks.step(settings, state)
        after: State = transform_gradients(gradients, self._batches, settings, state, self.captures)
        after = State(after.step, {**after.tensors, **divided}) if divided else after
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()  # the user captures
        return copied_in_place(state, after) if capturing else after

    def entries(self, groups: Sequence[Group]) -> list[Entry]:
        """One entry per parameter of the groups."""
        seen: list[object] = []
        for group in groups:
            seen += (group, group.get("equalize"), *group["params"])
        ids = list(map(id, seen))
        if ids != self._ids:
            named = list(self._named(groups))
            entries = [self._describe(name, parameter, group) for name, parameter, group in named]
            self._check(entries)
            self.release()
            check_chain(self.chain, entries, self.stack)
            here = self.ranks.arrange(affected(entries, self.chain), self.stack)
            self._keep_names(named)
            self._seen, self._ids, self._entries = seen, ids, entries  # held, so that no id is used again
            self._here = here
            self._group_of = {parameter: group for _, parameter, group in named}
        return self._entries

    def release(self) -> None:
        """Frees CUDA graphs."""
        self.captures.release()
        self.ranks.release()

    def decay(self, entry: Entry, decay: float | None = None) -> float:
        """The decay to add to a gradient: as given, or the group's `decay_before`; negated if the optimizer maximizes."""
        group = self._group_of[entry.parameter]
        decay = group["decay_before"] if decay is None else decay
        return -decay if group.get("maximize") else decay

    def memories(self, groups: Sequence[Group], state: State) -> Mapping[str, Mapping[str, Tensor]]:
        """The memory of every parameter in the groups. Parameters without a step have their initial memory.

        It checks nothing, so that saving works at any time. The next step refuses what does not fit.
        """
        named, kept = list(self._named(groups)), state.tensors
        self._keep_names(named)
        entries = [self._describe(*each) for each in named]
        fresh = [entry for entry in entries if entry.name not in kept]
        held = {entry.name: kept[entry.name] for entry in entries if entry.name in kept}
        spread = [entry for entry in fresh if is_dtensor(entry.parameter)]
        plain = [entry for entry in fresh if not is_dtensor(entry.parameter)]
        return {**held, **initial_memory(plain, self.chain, self.stack), **initial_memories(spread, self.chain)}

    def _keep_names(self, named: Sequence[tuple[str, Tensor, Group]]) -> None:
        self._names |= {parameter: name for name, parameter, _ in named}  # a name never changes

    def _named(self, groups: Sequence[Group]) -> Iterator[tuple[str, Tensor, Group]]:
        taken = set(self._names.values())
        for number, group in enumerate(groups):
            own = group.get("param_names") or []
            fitting = own if len(own) == len(group["params"]) else [None] * len(group["params"])
            for index, (name, parameter) in enumerate(zip(fitting, group["params"], strict=True)):
                if parameter in self._names:
                    name = self._names[parameter]
                else:
                    if name is None or name in taken:
                        name = f"param_groups[{number}].params[{index}]"
                    while name in taken:
                        name += "'"
                    taken.add(name)
                yield name, parameter, group

    def _warn_if_idle(self) -> None:
        """Warns in the first steps of matrices that get no gradient, since EGD does nothing for them."""
        if all(entry.parameter.grad is None for entry in self._entries):  # once or twice may be intended
            self._idle += not self._steps
            if self._idle == STEPS_BEFORE_WARNING:
                _warn(f"no parameter has had a gradient in {STEPS_BEFORE_WARNING} steps, so EGD does nothing")
            return
        self._steps += 1
        taken = [entry for entry in self._entries if entry.targets]
        self._had_gradients |= {entry.name for entry in taken if entry.parameter.grad is not None}
        if self._steps == 1 and taken and not self._had_gradients:
            _warn("none of the plan's matrices has a gradient at this step, so EGD does nothing")
        if self._steps == STEPS_BEFORE_WARNING:
            absent = [repr(e.name) for e in taken if e.name not in self._had_gradients and e.parameter.requires_grad]
            if absent:
                _warn(f"no gradient in {STEPS_BEFORE_WARNING} steps for {', '.join(absent)}: EGD does not act there")


def share_text(entries: Sequence[Entry]) -> str:
    """The share of entries that are taken, as text."""
    size = sum(entry.parameter.numel() for entry in entries)
    taken = sum(entry.parameter.numel() for entry in entries if entry.taken)
    return f"{100 * taken / size:.1f} % of the entries" if size else "no entries"


def _warn(message: str) -> None:
    warn_user(f"{message}; check that the plan is for this model, and that its matrices are neither frozen nor unused")
