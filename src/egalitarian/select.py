"""Which parameters, seen as which matrices: `matrices(model)` makes a `Plan`, and `print(plan)` shows all of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from egalitarian.checks import check_mapping
from egalitarian.selectors import Listed, Selector, as_selectors, chosen, last_layer, listing, matched, matching

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Target:
    """One matrix inside one parameter, or, where the parameter is a stack, one matrix per element of the stack."""

    name: str
    """The parameter's name, with the rows in brackets where the parameter is split."""
    rows: int
    columns: int
    stack: int | None = None
    """Length of the leading axis that is a batch of independent matrices; None: there is no such axis."""
    output: int = 0
    """The axis, after the stack's, that holds the output units: 0, but 1 for a transposed convolution."""
    start: int = 0
    note: str = ""
    """What the transform does here, where that differs from one matrix to the next."""

    def view(self, tensor: Tensor) -> Tensor:
        """The part of a parameter-shaped tensor that this target is, output axis first; writing to it writes there."""
        first = 0 if self.stack is None else 1
        return tensor.movedim(first + self.output, first).narrow(first, self.start, self.rows)

    def fold(self, tensor: Tensor) -> Tensor:
        """A parameter-shaped tensor as matrices, (rows, columns) or (stack, rows, columns)."""
        return self.view(tensor).flatten(1 if self.stack is None else 2)

    def write(self, matrix: Tensor, into: Tensor) -> None:
        """The inverse of `fold`: puts the matrices back where they came from, in place."""
        view = self.view(into)
        view.copy_(matrix.reshape(view.shape))


@dataclass(frozen=True, eq=False)
class Entry:
    """One parameter of the plan: its targets where it is taken, the reason where it is left alone."""

    name: str
    parameter: Tensor
    shape: tuple[int, ...]
    targets: tuple[Target, ...] = ()
    reason: str = ""
    note: str = ""
    stack: int | None = None
    """Length of its leading axis, where that is one of independent elements."""

    @property
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
            stack = "" if target.stack is None else f"{target.stack} of "
            parts.append(f"{stack}{target.rows} x {target.columns}" + (f", {target.note}" if target.note else ""))
        unique = list(dict.fromkeys(parts))
        text = " + ".join(parts) if len(unique) > 1 else f"{len(parts)} times {unique[0]}" if parts[1:] else unique[0]
        return f"taken as {text}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, eq=False)
class Plan:
    """Every parameter of a model, taken as matrices or left alone with a reason. Taken + left = all."""

    entries: tuple[Entry, ...]
    header: str = ""
    """What the transform does everywhere; `attach` fills it in."""

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for entry in self.entries for target in entry.targets)

    @property
    def taken(self) -> tuple[Entry, ...]:
        """The parameters that are seen as matrices."""
        return tuple(entry for entry in self.entries if entry.taken)

    @property
    def left(self) -> tuple[Entry, ...]:
        """The parameters that are left alone."""
        return tuple(entry for entry in self.entries if not entry.taken)

    def takes(self, parameter: Tensor) -> bool:
        return parameter in self._taken_parameters

    @cached_property
    def _taken_parameters(self) -> frozenset[Tensor]:
        return frozenset(entry.parameter for entry in self.entries if entry.taken)

    @cached_property
    def stack(self) -> int | None:
        """The stack's length, where every matrix is in a stack and all have the same; otherwise None."""
        lengths = {target.stack for target in self.targets}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return next((entry.parameter.device for entry in self.entries), torch.device("cpu"))

    def groups(self, taken: Mapping[str, Any] | None = None, left: Mapping[str, Any] | None = None) -> Groups:
        """Parameter groups for an optimizer: what is taken with its own settings, what is left with others.

        >>> plan = matrices(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}, left={"weight_decay": 1e-4}), lr=1.0)
        """
        groups = Groups()
        groups.plan = self
        for what, entries, settings in (("taken", self.taken, taken), ("left", self.left, left)):
            if settings is not None:
                check_mapping(what, settings, "for example {'weight_decay': 0.03}")
                if "params" in settings:
                    raise ValueError(f"{what} must hold settings alone, got 'params' too; the plan knows the parameters")
            if entries:
                groups.append({"params": [(entry.name, entry.parameter) for entry in entries], **(settings or {})})
        return groups

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"Plan({len(self.taken)} taken, {len(self.left)} left)"

    def __str__(self) -> str:
        names = max((len(entry.name) for entry in self.entries), default=0)
        shapes = max((len(_shape(entry)) for entry in self.entries), default=0)
        lines = [f"{entry.name:<{names}}  {_shape(entry):<{shapes}}  {entry.verdict}" for entry in self.entries]
        size = sum(entry.parameter.numel() for entry in self.entries)
        held = sum(entry.parameter.numel() for entry in self.taken)
        share = f"{100 * held / size:.1f} % of the entries" if size else "no entries"
        summary = f"{len(self.taken)} of {len(self)} parameters taken, {share}"
        return "\n".join([*([self.header] if self.header else []), *lines, summary])


class Groups(list[dict[str, Any]]):
    """Parameter groups that remember the plan they come from, so that `EGD` can follow it; also with others added."""

    plan: Plan

    def __add__(self, others: list[dict[str, Any]]) -> Groups:  # type: ignore[override]
        return self._with(list(self) + list(others))

    def __radd__(self, others: list[dict[str, Any]]) -> Groups:
        return self._with(list(others) + list(self))

    def _with(self, groups: list[dict[str, Any]]) -> Groups:
        joined = Groups(groups)
        joined.plan = self.plan
        return joined


def matrices(
    model: nn.Module | Mapping[str, Tensor],
    *,
    include: Selector | Iterable[Selector] | None = None,
    exclude: Selector | Iterable[Selector] = (),
    head: Selector | None = "last",
    split: Mapping[str, Sequence[int]] | None = None,
    stack: Selector | Iterable[Selector] | bool | None = None,
) -> Plan:
    """Decides which parameters EGD takes, and as which matrices.

    By default the weights of Linear and convolution layers, without the output head. A convolution's weight is
    flattened to (out, rest). A tied weight is left alone when any of its owners is.

    Args:
        model: a module, or a mapping of names to tensors (which then needs `include`: names alone do not tell an
            embedding from a weight).
        include: what to take instead of the default set: name patterns (`"encoder.*.weight"`, or a module's name for
            all inside it), module types, or parameters.
        exclude: what to leave alone, in the same terms.
        head: the output layer: `"last"` is the last registered Linear or convolution, unless it is the only one; a name
            overrides, None means there is none to leave out. With `include`, `"last"` has no part.
        split: `{pattern: sizes}` for fused weights: each run of output rows becomes a matrix of its own.
            `nn.MultiheadAttention.in_proj_weight` is taken in three by itself.
        stack: what has a leading axis of independent matrices (experts, seeds); `True`: every parameter.

    Raises:
        ValueError: a pattern matches nothing, sizes do not add up, or no matrix is left.

    >>> print(matrices(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))))
    0.weight  (4, 8)  taken as 4 x 8
    0.bias    (4,)    left: 1-D
    2.weight  (2, 4)  left: output head
    2.bias    (2,)    left: 1-D
    1 of 4 parameters taken, 69.6 % of the entries
    """
    plan = survey(model, include=include, exclude=exclude, head=head, split=split, stack=stack)
    if not plan.targets:
        raise ValueError(
            f"the plan must take at least one matrix, got none of {len(plan)} parameters; "
            f"name what to take with include=, or mend exclude= and head=:\n{plan}"
        )
    return plan


def survey(
    model: nn.Module | Mapping[str, Tensor],
    *,
    include: Selector | Iterable[Selector] | None = None,
    exclude: Selector | Iterable[Selector] = (),
    head: Selector | None = "last",
    split: Mapping[str, Sequence[int]] | None = None,
    stack: Selector | Iterable[Selector] | bool | None = None,
) -> Plan:
    """`matrices`, but a plan without any matrix is fine too: enough for transforms that act on entries."""
    listed = listing(model)
    if include is None and not isinstance(model, nn.Module):
        raise ValueError("include must name what to take when the model is a mapping, got None; pass name patterns")
    included = None if include is None else as_selectors("include", include)
    by_default = isinstance(head, str) and head == "last"
    heads = last_layer(model) if by_default else set()
    heading = () if head is None or by_default else as_selectors("head", head)
    excluded = as_selectors("exclude", exclude)
    for what, selectors in (("include", included or ()), ("exclude", excluded), ("head", heading)):
        matched(what, selectors, listed)
    stacked = _stacked(stack, listed)
    fused = _fused(split, listed)

    def reason_against(item: Listed) -> str:
        depth = item.parameter.ndim - (item in stacked)
        if depth < 2:
            return f"{depth}-D" + (" beside the stack's axis" if item in stacked else "")
        if matching(excluded, item):
            return "excluded"
        if matching(heading, item):
            return "output head"
        if item.parameter.dtype not in _DTYPES:
            return f"{item.parameter.dtype} is not among {', '.join(map(str, _DTYPES))}"
        if included is not None:
            return "" if chosen(included, item) else "not included"
        return next((reason for owner in item.owners if (reason := owner.reason_against(heads))), "")

    _check_included(included or (), listed, stacked)
    entries = []
    for item in listed:
        reason = reason_against(item)
        if reason and item.owners[1:]:
            reason += f" (tied: {' = '.join(owner.name for owner in item.owners)})"
        shape = tuple(item.parameter.shape)
        targets = () if reason else tuple(_targets(item, item in stacked, fused.pop(item, None)))
        entries.append(
            Entry(item.name, item.parameter, shape, targets, reason, stack=shape[0] if item in stacked else None)
        )
    if fused:
        item = next(iter(fused))
        raise ValueError(
            f"split must name a parameter that is taken, got {item.name!r}, which is left alone "
            f"({reason_against(item)}); include it or drop the split"
        )
    return Plan(tuple(entries))


def annotate(
    plan: Plan, header: str = "", targets: Mapping[str, str] | None = None, entries: Mapping[str, str] | None = None
) -> Plan:
    """The same plan with what the transform does written into it, for `print(plan)`."""
    targets, entries = targets or {}, entries or {}
    return dataclasses.replace(
        plan,
        header=header or plan.header,
        entries=tuple(
            dataclasses.replace(
                entry,
                note=entries.get(entry.name, entry.note),
                targets=tuple(
                    dataclasses.replace(target, note=targets.get(target.name, target.note)) for target in entry.targets
                ),
            )
            for entry in plan.entries
        ),
    )


def whole(name: str, parameter: Tensor) -> Entry:
    """A parameter of two or more dimensions taken as one matrix (out, rest); anything smaller left alone."""
    shape = tuple(parameter.shape)
    if parameter.ndim < 2:
        return Entry(name, parameter, shape, reason=f"{parameter.ndim}-D")
    return Entry(name, parameter, shape, (Target(name, shape[0], math.prod(shape[1:])),))


def _targets(item: Listed, stacked: bool, sizes: Sequence[int] | None) -> Iterator[Target]:
    shape = item.parameter.shape[1:] if stacked else item.parameter.shape
    stack = item.parameter.shape[0] if stacked else None
    output = 1 if any(owner.transposed for owner in item.owners) else 0
    rows = shape[output]
    columns = math.prod(length for axis, length in enumerate(shape) if axis != output)
    sizes = item.pieces if sizes is None else sizes
    if sizes is None:
        yield Target(item.name, rows, columns, stack, output)
        return
    if sum(sizes) != rows:
        raise ValueError(
            f"split must add up to the {rows} output rows of {item.name!r}, got {tuple(sizes)} = {sum(sizes)}; "
            f"give one size per matrix"
        )
    start = 0
    for size in sizes:
        yield Target(f"{item.name}[{start}:{start + size}]", size, columns, stack, output, start)
        start += size


def _stacked(stack: Selector | Iterable[Selector] | bool | None, listed: Sequence[Listed]) -> set[Listed]:
    if stack is None or stack is False:
        return set()
    selectors = ("*",) if stack is True else as_selectors("stack", stack)
    matched("stack", selectors, listed)
    found = [item for item in listed if matching(selectors, item)]
    scalar = next((item for item in found if item.parameter.ndim == 0), None)
    if scalar is not None:
        raise ValueError(
            f"a stacked parameter must have a leading axis, got {scalar.name!r} of shape (); name the others in stack="
        )
    lengths = {item.parameter.shape[0]: item for item in found}
    if stack is True and len(lengths) > 1:
        text = ", ".join(f"{length} in {item.name!r}" for length, item in lengths.items())
        raise ValueError(f"stack=True must find one length in every parameter, got {text}; name the stacked ones")
    return set(found)


def _fused(split: Mapping[str, Sequence[int]] | None, listed: Sequence[Listed]) -> dict[Listed, Sequence[int]]:
    fused: dict[Listed, Sequence[int]] = {}
    if split is not None:
        check_mapping("split", split, "for example {'qkv.weight': (64, 64, 64)}")
    for pattern, sizes in (split or {}).items():
        matched("split", as_selectors("split", pattern), listed)
        whole_rows = isinstance(sizes, Sequence) and all(isinstance(size, int) and size > 0 for size in sizes)
        if not whole_rows or not sizes:
            raise ValueError(f"split must give positive sizes for {pattern!r}, got {sizes!r}; list the output rows")
        for item in listed:
            if matching((pattern,), item) and item.parameter.ndim >= 2:
                fused[item] = tuple(sizes)
    return fused


def _check_included(included: Sequence[Selector], listed: Sequence[Listed], stacked: set[Listed]) -> None:
    """A selector that finds only vectors is a mistake; one that finds a module's weight beside its bias is not."""
    for selector in included:
        found = [item for item in listed if matching((selector,), item)]
        if all(item.parameter.ndim - (item in stacked) < 2 for item in found):
            raise ValueError(
                f"include must name matrices, got {found[0].name!r} of shape {tuple(found[0].parameter.shape)}; "
                f"EGD needs at least two dimensions"
            )
        wrong = next((item for item in found if item.parameter.dtype not in _DTYPES), None)
        if wrong is not None:
            raise TypeError(
                f"include must name parameters of {', '.join(map(str, _DTYPES))}, got {wrong.name!r} of "
                f"{wrong.parameter.dtype}; leave it out"
            )


def _shape(entry: Entry) -> str:
    return str(tuple(entry.shape))
