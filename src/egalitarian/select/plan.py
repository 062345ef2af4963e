"""The plan: every parameter of a model, either taken as matrices or left alone. `print(plan)` shows all of them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from egalitarian.checks import check_mapping


@dataclass(frozen=True, eq=False)
class Target:
    """One matrix inside one parameter. If the parameter is a stack: one matrix per element of the stack."""

    name: str
    """The parameter's name, with the rows in brackets where the parameter is split: `[0:8]`, or `[0:8 of every 24]`."""
    rows: int
    columns: int
    stack: int | None = None
    """Length of the leading axis of independent matrices; None without such an axis."""
    output: int = 0
    """The axis of the output units, not counting the stack's: 0, or 1 for weights that are (in, out)."""
    start: int = 0
    """Its first row in the parameter, or in each of the `repeats` parts."""
    repeats: int = 1
    """In how many equal parts of the output axis its rows lie, with one run of rows in each part."""
    note: str = ""
    """What the transform does to this matrix, if that depends on the matrix."""

    def view(self, tensor: Tensor) -> Tensor:
        """This target's part of a parameter-shaped tensor, output axis first, as a view."""
        first = 0 if self.stack is None else 1
        moved = tensor.movedim(first + self.output, first) if self.output else tensor
        if self.repeats == 1:
            return moved.narrow(first, self.start, self.rows)
        run = moved.shape[first] // self.repeats
        parts = moved.view(*moved.shape[:first], self.repeats, run, *moved.shape[first + 1 :])
        return parts.narrow(first + 1, self.start, self.rows // self.repeats)

    def fold(self, tensor: Tensor) -> Tensor:
        """Its part of a parameter-shaped tensor, of shape (rows, columns) or (stack, rows, columns)."""
        first = 0 if self.stack is None else 1
        view = self.view(tensor)
        return (view if self.repeats == 1 else view.flatten(first, first + 1)).flatten(first + 1)

    def write(self, matrix: Tensor, into: Tensor) -> None:
        """The inverse of `fold`: writes a folded matrix into a parameter-shaped tensor."""
        view = self.view(into)
        view.copy_(matrix.reshape(view.shape))


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter of the plan: its targets if it is taken, the reason if it is left alone."""

    name: str
    parameter: Tensor
    shape: tuple[int, ...]
    targets: tuple[Target, ...] = ()
    reason: str = ""
    note: str = ""
    stack: int | None = None
    """The length of its leading axis, if the user named it in `stack=`."""
    remark: str = ""
    """What is uncertain about its matrices, as `print(plan)` shows it."""
    frozen: bool = False
    """Whether it is left only because it is frozen: `requires_grad` is False."""

    @cached_property
    def taken(self) -> bool:
        return bool(self.targets)

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, {self.shape}, {self.verdict})"

    @property
    def verdict(self) -> str:
        if not self.taken:
            return f"left: {self.reason}"
        parts = []
        for target in self.targets:
            stack = "" if target.stack is None else f"{target.stack} matri{'x' if target.stack == 1 else 'ces'} of "
            parts.append(f"{stack}{target.rows} x {target.columns}" + (f", {target.note}" if target.note else ""))
        unique = list(dict.fromkeys(parts))
        text = " + ".join(parts) if len(unique) > 1 else f"{len(parts)} times {unique[0]}" if parts[1:] else unique[0]
        groups = {target.repeats for target in self.targets if target.repeats > 1}
        text += "".join(f", rows interleaved in {each} groups" for each in groups)
        return f"taken as {text}" + "".join(f" ({remark})" for remark in (self.remark, self.note) if remark)


@dataclass(frozen=True, eq=False)
class Plan:
    """Every parameter of a model, taken as one or more matrices or left alone for a reason. Made by `matrices`.

    `print(plan)` lists them all. Iterating over a plan yields one `Entry` per parameter, with these attributes:

    - `name`, `parameter` and `shape`;
    - `taken`: whether EGD takes it;
    - `targets`: its matrices, as a tuple; empty if it is left alone;
    - `verdict`: the text that `print(plan)` shows.

    `plan.summary()` is the short form, and `plan.doubts` says what is not certain.
    """

    entries: tuple[Entry, ...]
    """One entry per parameter, in the model's order."""
    header: str = ""
    """The first line of `print(plan)`: what the transform does to every matrix. `attach` fills it in."""
    modules: tuple[nn.Module, ...] = ()
    """The modules that own the matrices, as far as they are known."""
    doubts: tuple[str, ...] = ()
    """What is uncertain, in sentences that end with the argument that settles it. `attach` and `EGD` warn with them."""
    replicas: tuple[nn.Module, ...] = ()
    """The DistributedDataParallel modules around the model."""

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """All matrices, in the model's order, each with `name`, `rows`, `columns` and `stack`."""
        return tuple(target for entry in self.entries for target in entry.targets)

    @property
    def taken(self) -> tuple[Entry, ...]:
        """The entries that EGD takes."""
        return tuple(entry for entry in self.entries if entry.taken)

    @property
    def left(self) -> tuple[Entry, ...]:
        """The entries that EGD leaves alone."""
        return tuple(entry for entry in self.entries if not entry.taken)

    def takes(self, parameter: Tensor) -> bool:
        """Whether the plan takes this parameter. It must be the same object, not an equal tensor."""
        return parameter in self._taken_parameters

    @cached_property
    def _taken_parameters(self) -> frozenset[Tensor]:
        return frozenset(entry.parameter for entry in self.entries if entry.taken)

    @cached_property
    def stack(self) -> int | None:
        """The common length of the stacks named in `stack=`. None unless all that is taken is in such a stack."""
        lengths = {entry.stack for entry in self.taken}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next((entry.parameter.device for entry in self.entries), torch.device("cpu"))

    def groups(self, taken: Mapping[str, Any] | None = None, left: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Param groups for an optimizer: one for the parameters that are taken, one for the rest.

        `EGD` finds the plan in these groups, also after `{**group, "lr": 0.1}`. It does not find it in groups that
        you build from single parameters.

        Args:
            taken: settings of the first group, such as `{"weight_decay": 0.1}`.
            left: settings of the second group.

        Returns:
            Two groups, or one if the other would be empty.

        >>> from egalitarian import matrices
        >>> plan = matrices(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
        >>> optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.1}, left={"weight_decay": 1e-4}), lr=0.3)
        """
        groups = PlannedGroups(self)
        for what, entries, settings in (("taken", self.taken, taken), ("left", self.left, left)):
            if settings is not None:
                check_mapping(what, settings, "for example {'weight_decay': 0.03}")
                if "params" in settings:
                    raise ValueError(f"{what} must hold settings only, got 'params' too; leave it out: the plan has them")
            if entries:
                part = Plan(entries, doubts=self.doubts, replicas=self.replicas)
                groups.append({"params": PlannedParameters(part), **(settings or {})})
        return groups

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"Plan({len(self.taken)} taken, {len(self.left)} left)"

    def __str__(self) -> str:
        rows = [(entry.name, str(entry.shape), entry.verdict) for entry in self.entries]
        return "\n".join([*([self.header] if self.header else []), *_aligned(rows), self._share()])

    def summary(self) -> str:
        """The plan in a few lines: vectors are counted, and repeated layers share a line.

        `*` stands for the numbers of repeated layers. Used as a pattern, such a name may match other lines, too.

        >>> from egalitarian import matrices
        >>> blocks = [torch.nn.Linear(8, 8) for _ in range(12)]
        >>> print(matrices(torch.nn.Sequential(*blocks, torch.nn.Linear(8, 2))).summary())
        *.weight    (8, 8)  12 times  taken as 8 x 8
        13 vectors                    left: 1-D
        12.weight   (2, 8)            left: output head
        12 of 26 parameters taken, 87.1 % of the entries
        """
        groups: dict[tuple[str, ...], list[str]] = {}
        for entry in self.entries:
            steps = ("*" if step.isdigit() else step for step in entry.name.split("."))
            name = "" if entry.reason == "1-D" else ".".join(steps)
            groups.setdefault((name, str(entry.shape) if name else "", entry.verdict), []).append(entry.name)
        rows = []
        for (name, shape, verdict), names in groups.items():
            many = f"{len(names)} times" if names[1:] else ""
            vectors = f"{len(names)} vector{'s' if many else ''}"
            rows.append((name if many else names[0], shape, many, verdict) if name else (vectors, "", "", verdict))
        return "\n".join([*_aligned(rows), self._share()])

    def _share(self) -> str:
        """The last line: how many parameters are taken, and their share of all entries."""
        size = sum(entry.parameter.numel() for entry in self.entries)
        held = sum(entry.parameter.numel() for entry in self.taken)
        share = f"{100 * held / size:.1f} % of the entries" if size else "no entries"
        less = ", less than half" if 2 * held < size else ""
        notes = Counter(entry.note for entry in self.taken if entry.note)
        remarks = "".join(f"; {count} of them {note}" for note, count in notes.items())
        return f"{len(self.taken)} of {len(self)} parameters taken, {share}{less}{remarks}"


class PlannedParameters(list[tuple[str, Tensor]]):
    """The named parameters of a param group, with their plan. A copy of the group's dict keeps the plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__((entry.name, entry.parameter) for entry in plan)
        self.plan = plan


class PlannedGroups(list[dict[str, Any]]):
    """Param groups with their plan. Once an optimizer has taken a group, its `params` is a plain list without the plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


def annotate(
    plan: Plan, header: str = "", targets: Mapping[str, str] | None = None, entries: Mapping[str, str] | None = None
) -> Plan:
    """The plan with notes on what the transform does, for `print(plan)`."""
    targets, entries = targets or {}, entries or {}

    def noted(entry: Entry) -> Entry:
        parts = [dataclasses.replace(target, note=targets.get(target.name, target.note)) for target in entry.targets]
        return dataclasses.replace(entry, note=entries.get(entry.name, entry.note), targets=tuple(parts))

    return dataclasses.replace(plan, header=header or plan.header, entries=tuple(map(noted, plan.entries)))


def whole(name: str, parameter: Tensor) -> Entry:
    """A parameter of two or more dimensions taken as one matrix (out, rest); anything smaller left alone."""
    shape = tuple(parameter.shape)
    if parameter.ndim < 2:
        return Entry(name, parameter, shape, reason=f"{parameter.ndim}-D")
    return Entry(name, parameter, shape, (Target(name, shape[0], math.prod(shape[1:])),))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True) if width] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]
