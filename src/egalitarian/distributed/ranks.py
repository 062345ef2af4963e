"""`Ranks`: the parameters of an optimizer that several ranks hold, with an owner for each of their matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch.distributed as dist
from torch import Tensor

from egalitarian.apply import PassSettings, State
from egalitarian.distributed.agreement import of_the_first
from egalitarian.distributed.owners import Member, Sharing, StepTime, cost, longest_first, step_time
from egalitarian.distributed.passes import Memory, Passes
from egalitarian.distributed.spread import Spread, is_dtensor, replicated, spread_of
from egalitarian.select import Entry
from egalitarian.transforms import Transform


class Ranks:
    """Divides matrices over the ranks that hold them.

    Args:
        chain: the transforms.
        sharing: `"owners"`: one rank computes each matrix. `"replicate"`: every rank computes all. `"auto"`: owners, unless
            every rank holds whole matrices anyway and an estimate says that sending results takes longer than computing.
        replicas: the DistributedDataParallel modules around the model.
        capture: whether calls on a GPU are captured as CUDA graphs.
    """

    def __init__(self, chain: Sequence[Transform], sharing: Sharing, replicas: Sequence[Any], capture: bool) -> None:
        self._sharing = sharing
        self._replicas = tuple(replicas)
        self._passes = Passes(chain, capture)
        self.members: dict[Entry, Member] = {}
        """The divided parameters."""
        self._estimates: list[tuple[Spread, bool, StepTime]] = []
        self.spreads: list[Spread] = []
        """Of the divided parameters and of each DistributedDataParallel."""
        self._averaging: dict[Tensor, Any] = {}
        """Which DistributedDataParallel averages the gradient of a parameter."""

    def arrange(self, entries: Sequence[Entry], stack: int | None) -> list[Entry]:
        """Finds owners for the matrices of these entries. Returns the entries that every rank computes by itself."""
        self._averaging = _averaged(self._replicas)
        spreads = {entry: spread for entry in entries if (spread := self._spread(entry)) is not None}
        if stack is not None and any(is_dtensor(entry.parameter) for entry in spreads):
            raise NotImplementedError("a plan with stack= must have plain parameters, got DTensors; leave stack= out")
        copies = [replicated((), each.process_group, next(each.parameters()).device) for each in self._replicas]
        self.spreads = [spread for spread in (*spreads.values(), *copies) if dist.get_world_size() > 1]
        self.members, self._estimates = {}, []
        for group in dict.fromkeys(id(spread.group) for spread in spreads.values()):
            for copied in (False, True):
                some = [entry for entry, each in spreads.items() if id(each.group) == group and each.copied is copied]
                self.members |= self._owned(some, spreads, stack)
        return [entry for entry in entries if entry not in self.members]

    def step(self, settings: PassSettings, state: State) -> dict[str, Memory]:
        """One pass over the gradients of the divided parameters. Returns their memories."""
        if any(map(_steps_alone, set(self._averaging.values()))):
            raise RuntimeError(
                "ranks that share matrices must step together on equal gradients, got join() or a hook for local SGD; "
                "pass shard='replicate'"
            )
        memories: dict[str, Memory] = self._passes(list(self.members.values()), settings, state)
        return memories

    def agreed(self, values: Sequence[Tensor]) -> list[Tensor]:
        """These values as the first rank has them, so that all ranks do the same."""
        if any(map(_joins, self._replicas)):
            raise RuntimeError("with until=, all ranks must step together, got join(); leave until= out, and call off()")
        widest = max(self.spreads, key=lambda spread: prod(dist.get_world_size(group) for group in spread.agreeing))
        return of_the_first(values, widest.agreeing, widest.device)

    def release(self) -> None:
        """Frees CUDA graphs."""
        for captures in self._passes.captures:
            captures.release()

    @property
    def text(self) -> str:
        """What `print(plan)` says; empty without other ranks."""
        texts = []
        for spread, shared, estimated in self._estimates:
            what = "one owner per matrix" if shared else "every rank computes all"
            texts.append(f"{spread.mesh}: {what}, {estimated}")
        return "; ".join(texts)

    @property
    def notes(self) -> dict[str, str]:
        """What `print(plan)` says of every divided matrix, by its name."""
        several = {entry: member for entry, member in self.members.items() if member.spread.ranks > 1}
        return {target.name: _note(member) for entry, member in several.items() for target in entry.targets}

    def _spread(self, entry: Entry) -> Spread | None:
        parameter = entry.parameter
        if is_dtensor(parameter):
            return spread_of(parameter)
        if entry.taken and hasattr(parameter, "_st_info"):
            raise NotImplementedError(
                f"{entry.name!r} must be a DTensor or whole, got the shard that DistributedDataParallel makes of one; "
                f"use fully_shard next to tensor parallelism"
            )
        if not entry.taken or parameter not in self._averaging:
            return None
        return replicated(entry.shape, self._averaging[parameter].process_group, parameter.device)

    def _owned(self, entries: Sequence[Entry], spreads: Mapping[Entry, Spread], stack: int | None) -> dict[Entry, Member]:
        """The members of one group, all in pieces or all whole on every rank."""
        taken = [entry for entry in entries if entry.taken]
        left = {entry: Member(entry, spreads[entry], None) for entry in entries if not entry.taken}
        if not taken:
            return left
        costs = [(cost(entry), entry.parameter.numel()) for entry in taken]
        owners = longest_first(costs, spreads[taken[0]].ranks)
        members = [Member(entry, spreads[entry], owner) for entry, owner in zip(taken, owners, strict=True)]
        estimated, spread = step_time(members), members[0].spread
        shares = self._sharing == "owners" or (self._sharing == "auto" and (estimated.pays or not spread.copied))
        if stack is not None or spread.ranks == 1:
            shares = False
        if spread.ranks > 1:
            self._estimates.append((spread, shares, estimated))
        if not shares:
            members = [dataclasses.replace(member, owner=None) for member in members]
        if not shares and spread.copied and not is_dtensor(taken[0].parameter):
            return left
        return left | {member.entry: member for member in members}


def _averaged(replicas: Sequence[Any]) -> dict[Tensor, Any]:
    """The parameters whose gradients are equal on all ranks of a DistributedDataParallel, with the outermost one."""
    found: dict[Tensor, Any] = {}
    for module in replicas:
        if not _steps_alone(module):
            named = module.module.named_parameters()
            found = {**{each: module for name, each in named if name not in module.parameters_to_ignore}, **found}
    return found


def _steps_alone(module: Any) -> bool:
    """Whether its ranks may step apart: in `join()`, or with the hook of torch's local SGD."""
    return _joins(module) or any(type(state).__name__ == "PostLocalSGDState" for _, state in module._comm_hooks)


def _joins(module: Any) -> bool:
    """Whether it is in `join()`, where a rank without further data makes no steps."""
    enabled: bool = module._join_config.enable
    return enabled


def _note(member: Member) -> str:
    size = member.moved * member.entry.parameter.element_size() / 2**20
    where = "every rank" if member.owner is None else f"rank {member.owner}"
    return f"{where} of {member.spread.mesh}, {size:.2g} MiB moved"
