"""Makes plans: `matrices(model)` decides which parameters EGD takes, and as which matrices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from egalitarian.checks import check_mapping
from egalitarian.select.example import Example
from egalitarian.select.fused import Pieces
from egalitarian.select.head import Heads, heads_by_example, heads_of, last_layer
from egalitarian.select.layouts import Layout, layout
from egalitarian.select.listing import Listed, listing
from egalitarian.select.patterns import Index, Selector, as_selectors, chosen
from egalitarian.select.plan import Entry, Plan, Target

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_NOT_RECOGNISED = "are in modules that are not recognised"


def matrices(
    model: nn.Module | Mapping[str, Tensor],
    *,
    include: Selector | Iterable[Selector] | None = None,
    exclude: Selector | Iterable[Selector] = (),
    head: Selector | Iterable[Selector] | None = "auto",
    split: Mapping[str, Sequence[int]] | None = None,
    stack: Selector | Iterable[Selector] | bool | None = None,
    example: Example | None = None,
) -> Plan:
    """Decides which parameters EGD takes, and as which matrices.

    By default EGD takes the weights of Linear, convolution, recurrent, attention and expert layers. It leaves the output
    heads and frozen weights. A convolution's weight is flattened to (out, rest). Gates and known fused weights are split. A
    tied weight is left alone if any module that owns it is.

    Args:
        model: a module, or a mapping of names to tensors. A mapping needs `include`, since names do not distinguish an
            embedding from a weight.
        include: what to take instead of the default set, as one or more selectors. A name pattern such as
            `"encoder.*.weight"` matches parameters; a module's name matches everything inside that module.
        exclude: what to leave alone, as one or more selectors.
        head: the output layers, which are left alone. `"auto"` finds them by their names, ties, widths and order; where
            these disagree, the plan says "uncertain". One or more selectors name them: `head=["policy", "value"]`. `"last"`
            means the last registered Linear or convolution, unless it is the only one. None means no head, so that all
            layers are taken. With `include`, `"auto"` and `"last"` have no effect.
        split: `{pattern: sizes}` for fused weights. Each size is a number of output rows that form a matrix of their own.
            This overrides the split of known layers; a single size keeps the weight whole. Name each weight once.
        stack: parameters whose leading axis counts independent matrices, such as experts or seeds. True means every
            parameter.
        example: an input of the model: a tensor, a tuple of arguments or a dict of keyword arguments. One forward pass then
            decides which layers are heads: those whose outputs reach the model's outputs and enter no other layer.

    Returns:
        The plan. Print it to check which matrices EGD takes.

    Raises:
        TypeError: an argument has the wrong type, or `include` names a parameter that is not floating-point.
        ValueError: a selector matches nothing, split sizes do not add up, the model does not run on the example, or the
            plan takes no matrix.

    >>> print(matrices(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))))
    0.weight  (4, 8)  taken as 4 x 8
    0.bias    (4,)    left: 1-D
    2.weight  (2, 4)  left: output head
    2.bias    (2,)    left: 1-D
    1 of 4 parameters taken, 69.6 % of the entries
    """
    plan = survey(model, include=include, exclude=exclude, head=head, split=split, stack=stack, example=example)
    if not plan.targets:
        raise ValueError(
            f"the plan must take at least one matrix, got none of {len(plan)} parameters; {_way_out(model, plan)}:\n{plan}"
        )
    return plan


def survey(
    model: nn.Module | Mapping[str, Tensor],
    *,
    include: Selector | Iterable[Selector] | None = None,
    exclude: Selector | Iterable[Selector] = (),
    head: Selector | Iterable[Selector] | None = "auto",
    split: Mapping[str, Sequence[int]] | None = None,
    stack: Selector | Iterable[Selector] | bool | None = None,
    example: Example | None = None,
) -> Plan:
    """As `matrices`, but a plan without matrices is no error, since filters act on any parameter."""
    listed = listing(model)
    if include is None and not isinstance(model, nn.Module):
        raise ValueError("include must name what to take if the model is a mapping, got None; pass name patterns")
    index = Index(listed)
    including = () if include is None else as_selectors("include", include)
    included = None if include is None else chosen(index, including)
    excluded = index.found("exclude", as_selectors("exclude", exclude))
    heads = Heads() if include is not None and _is_rule(head) else _heads(model, index, listed, head, example)
    if example is not None and (include is not None or not _is_rule(head, "auto")):
        warnings.warn("example= has no effect beside include= or head=; leave out one of them", stacklevel=3)
    choice = _Choice(index, listed, included, excluded, heads, _stacked(stack, index, listed), _fused(split, index))
    choice.check_included(including)
    entries = tuple(choice.entry(item) for item in listed)
    choice.check_split()
    taken = {entry.parameter for entry in entries if entry.taken}
    modules = {owner.module: None for item in listed if item.parameter in taken for owner in item.owners}
    inside = model.modules() if isinstance(model, nn.Module) else ()
    replicas = tuple(module for module in inside if isinstance(module, nn.parallel.DistributedDataParallel))
    return Plan(entries, modules=tuple(modules), doubts=choice.doubts(), replicas=replicas)


@dataclass(eq=False)
class _Choice:
    """Decides what becomes of each parameter."""

    index: Index
    listed: Sequence[Listed]
    included: set[Listed] | None
    excluded: set[Listed]
    heads: Heads
    stacked: set[Listed]
    fused: dict[Listed, tuple[int, ...]]
    _reasons: dict[Listed, str] = field(default_factory=dict)

    @cached_property
    def layouts(self) -> dict[Listed, list[Layout]]:
        return {item: [layout(owner, item.parameter) for owner in item.owners] or [Layout()] for item in self.listed}

    def entry(self, item: Listed) -> Entry:
        reason = self._reasons[item] = self._reason(item)
        names = dict.fromkeys(owner.name for owner in item.owners)  # wrappers show one owner twice
        if reason and len(names) > 1:
            reason += f" (tied: {' = '.join(names)})"
        shape = tuple(item.parameter.shape)
        seen = next((each for each in self.layouts[item] if not each.reason), self.layouts[item][0])
        targets = () if reason else tuple(_targets(item, seen, self._is_stacked(item), self.fused.get(item)))
        remark = "" if reason or item in self.fused else seen.remark
        stack = shape[0] if item in self.stacked else None
        frozen = self._reasons[item] == "frozen"
        return Entry(item.name, item.parameter, shape, targets, reason, remark=remark, stack=stack, frozen=frozen)

    def check_included(self, selectors: Sequence[Selector]) -> None:
        """Raises for a selector that matches vectors only. One that matches a weight and its bias is fine."""
        for selector in selectors:
            found = self.index.of("include", selector)
            _check_matrices("include", [item for item in found if self._depth(item) > 1], found)
            wrong = next((item for item in found if item.parameter.dtype not in _DTYPES), None)
            if wrong is not None:
                raise TypeError(
                    f"include must name parameters of {', '.join(map(str, _DTYPES))}, got {wrong.name!r} of "
                    f"{wrong.parameter.dtype}; leave it out"
                )

    def check_split(self) -> None:
        item = next((item for item in self.fused if self._reasons[item]), None)
        if item is not None:
            raise ValueError(
                f"split must name a parameter that is taken, got {item.name!r}, which is left alone "
                f"({self._reasons[item]}); include it or remove it from split"
            )

    def doubts(self) -> tuple[str, ...]:
        """What is uncertain about the plan. The user's own choices are certain."""
        doubts = [self.heads.doubt] if self._is_uncertain else []
        unknown = [item for item in self.listed if self._is_unknown(item)]
        taken = sum(item.parameter.numel() for item in self.listed if not self._reasons[item])
        size = sum(item.parameter.numel() for item in unknown)
        if self.included is None and size > taken:
            what = "are of a dtype that is not supported" if _unsupported(unknown[0].parameter) else _NOT_RECOGNISED
            doubts.append(
                f"{100 * size / (size + taken):.0f} % of the entries of hidden weights {what}, such as "
                f"{unknown[0].name!r}; name what to take with include=, or what to leave with exclude="
            )
        return tuple(doubts)

    @cached_property
    def _is_uncertain(self) -> bool:
        """Whether the doubt about the head matters. It does not if the head is excluded, or all in question frozen."""
        heads = self.heads
        matter = {item for item in heads.items | heads.rivals if item.parameter.requires_grad and item.parameter.ndim > 1}
        return bool(heads.doubt) and not matter <= self.excluded and not heads.items <= self.excluded

    def _is_unknown(self, item: Listed) -> bool:
        """Whether it is left only because its module is not recognised, or its dtype not supported."""
        unknown = {each.reason for each in self.layouts[item] if not each.known}
        unsupported = item.parameter.ndim > 1 and self._reasons[item].startswith("dtype")
        return (self._reasons[item] in unknown or unsupported) and item.parameter.requires_grad

    def _is_stacked(self, item: Listed) -> bool:
        return item in self.stacked or any(each.stacked for each in self.layouts[item])

    def _depth(self, item: Listed) -> int:
        return item.parameter.ndim - self._is_stacked(item)

    def _reason(self, item: Listed) -> str:
        """Why the parameter is left alone; empty if it is taken."""
        if self._depth(item) < 2:
            return f"{self._depth(item)}-D" + (" without the stack's axis" if self._is_stacked(item) else "")
        if item in self.excluded:
            return "excluded"
        if item in self.heads.items:
            return "output head, uncertain: head= or example= settles it" if self._is_uncertain else "output head"
        if reason := _unsupported(item.parameter):
            return reason
        if self.included is not None:
            return "" if item in self.included else "not included"
        reason = next((each.reason for each in self.layouts[item] if each.reason), "")
        return reason or ("" if item.parameter.requires_grad else "frozen")


def _is_rule(head: object, *rules: str) -> bool:
    return isinstance(head, str) and head in (rules or ("auto", "last"))


def _heads(
    model: nn.Module | Mapping[str, Tensor],
    index: Index,
    listed: Sequence[Listed],
    head: Selector | Iterable[Selector] | None,
    example: Example | None,
) -> Heads:
    if head is None:
        return Heads()
    if not _is_rule(head):
        named = {selector: index.of("head", selector) for selector in as_selectors("head", head)}
        for found in named.values():
            _check_matrices("head", [item for item in found if item.parameter.ndim > 1], found)
        return Heads(frozenset(item for found in named.values() for item in found))
    if not isinstance(model, nn.Module):
        return Heads()
    if head == "last":
        return last_layer(listed)
    return heads_of(listed) if example is None else heads_by_example(model, listed, example)


def _unsupported(parameter: Tensor) -> str:
    if type(parameter).__module__.partition(".")[0] == "torchao":
        return f"quantised ({type(parameter).__name__})"
    if parameter.dtype in _DTYPES:
        return ""
    quantised = not parameter.is_complex() and parameter.dtype != torch.bool
    return f"quantised ({parameter.dtype})" if quantised else f"dtype {parameter.dtype} is not supported"


def _targets(item: Listed, seen: Layout, stacked: bool, sizes: tuple[int, ...] | None) -> Iterator[Target]:
    shape = item.parameter.shape[1:] if stacked else item.parameter.shape
    stack = item.parameter.shape[0] if stacked else None
    output, rows = seen.output, shape[seen.output]
    columns = math.prod(length for axis, length in enumerate(shape) if axis != output)
    pieces = seen.pieces if sizes is None else Pieces(sizes)
    if pieces is None:
        yield Target(item.name, rows, columns, stack, output)
        return
    if sum(pieces.sizes) * pieces.repeats != rows:
        raise ValueError(
            f"split sizes must add up to the {rows} output rows of {item.name!r}, got {pieces.sizes} = "
            f"{sum(pieces.sizes)}; give one size per matrix"
        )
    start = 0
    for size in pieces.sizes:
        every = f" of every {sum(pieces.sizes)}" if pieces.repeats > 1 else ""
        name = f"{item.name}[{start}:{start + size}{every}]"
        yield Target(name, size * pieces.repeats, columns, stack, output, start, pieces.repeats)
        start += size


def _stacked(stack: Selector | Iterable[Selector] | bool | None, index: Index, listed: Sequence[Listed]) -> set[Listed]:
    if stack is None or stack is False:
        return set()
    found = list(listed) if stack is True else sorted(index.found("stack", as_selectors("stack", stack)), key=listed.index)
    scalar = next((item for item in found if item.parameter.ndim == 0), None)
    if scalar is not None:
        raise ValueError(
            f"a stacked parameter must have a leading axis, got {scalar.name!r} of shape (); name only the others in stack="
        )
    lengths = {item.parameter.shape[0]: item for item in found}
    _check_matrices("stack", [item for item in found if item.parameter.ndim > 1], found)
    single = next((item for item in found if item.parameter.ndim == 2 and _is_matrix(item)), None)
    if single is not None and stack is not True:
        raise ValueError(
            f"stack must name parameters whose leading axis counts matrices, got {single.name!r} of shape "
            f"{tuple(single.parameter.shape)}, which is one matrix; leave it out"
        )
    if stack is True and len(lengths) > 1:
        text = ", ".join(f"{length} in {item.name!r}" for length, item in lengths.items())
        raise ValueError(f"with stack=True every leading axis must have the same length, got {text}; name those in stack=")
    return set(found)


def _fused(split: Mapping[str, Sequence[int]] | None, index: Index) -> dict[Listed, tuple[int, ...]]:
    fused: dict[Listed, tuple[int, ...]] = {}
    by: dict[Listed, str] = {}
    if split is not None:
        check_mapping("split", split, "for example {'qkv.weight': (64, 64, 64)}")
    for pattern, sizes in (split or {}).items():
        found = index.found("split", as_selectors("split", pattern))
        if not _are_rows(sizes):
            raise ValueError(
                f"split must give positive sizes for {pattern!r}, got {sizes!r}; list the output rows of each matrix"
            )
        named = [item for item in found if item.parameter.ndim >= 2]
        _check_matrices("split", named, list(found))
        for item in named:
            if item in fused and fused[item] != tuple(sizes):
                raise ValueError(
                    f"split must name {item.name!r} once, got {by[item]!r} and {pattern!r} with other sizes; remove one"
                )
            fused[item], by[item] = tuple(sizes), pattern
    return fused


def _are_rows(sizes: object) -> bool:
    if not isinstance(sizes, Sequence) or not sizes:
        return False
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)


def _check_matrices(what: str, named: Sequence[Listed], found: Sequence[Listed]) -> None:
    """Raises if what a selector matches holds no matrix."""
    if not named and found:
        raise ValueError(
            f"{what} must name matrices, got {found[0].name!r} of shape {tuple(found[0].parameter.shape)}; "
            f"a matrix has at least two dimensions, not counting the axis of a stack"
        )


def _is_matrix(item: Listed) -> bool:
    """Whether a module of a known kind owns it as one matrix."""
    return any(not seen.reason and not seen.stacked for seen in (layout(owner, item.parameter) for owner in item.owners))


def _way_out(model: nn.Module | Mapping[str, Tensor], plan: Plan) -> str:
    """What to change where a plan takes nothing."""
    if not len(plan):
        return "the model has no parameters"
    if isinstance(model, nn.Module) and any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "make the plan from the module before scripting"
    if isinstance(model, nn.Module) and any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules()):
        return "flat shards (FSDP1) are not matrices: use FSDP2 or DDP"
    if any(entry.reason.startswith("output head") for entry in plan):
        frozen = "unfreeze hidden layers, " if any(entry.frozen for entry in plan) else ""
        return f"{frozen}take the output head with head=None, or choose matrices with include="
    return "choose matrices with include=, or change exclude= and head="
