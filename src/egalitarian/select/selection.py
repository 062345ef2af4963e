"""Which parameters, seen as which matrices: `matrices(model)` makes a `Plan`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from egalitarian.checks import check_mapping
from egalitarian.select.patterns import Listed, Selector, as_selectors, check_matched, chosen, last_layer, listing, matching
from egalitarian.select.plan import Entry, Plan, Target

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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

    By default EGD takes the weights of Linear and convolution layers, except the output head. A convolution's weight is
    flattened to (out, rest). A tied weight is left alone if any module that owns it is.

    Args:
        model: a module, or a mapping of names to tensors. A mapping needs `include`, since names do not distinguish an
            embedding from a weight.
        include: what to take instead of the default set, as one or more selectors. A name pattern such as
            `"encoder.*.weight"` matches parameters; a module's name matches everything inside that module.
        exclude: what to leave alone, as one or more selectors.
        head: the output layer, which is left alone. `"last"` means the last registered Linear or convolution, unless it is
            the only one; with `include` it has no effect. None means no head, so the last layer is taken, too. For several
            heads use `exclude`.
        split: `{pattern: sizes}` for fused weights. Each size is a number of output rows that form a matrix of their own.
            `nn.MultiheadAttention.in_proj_weight` is split into three automatically.
        stack: parameters whose leading axis counts independent matrices, such as experts or seeds. True means every
            parameter.

    Returns:
        The plan. Print it to check which matrices EGD takes.

    Raises:
        TypeError: an argument has the wrong type, or `include` names a parameter that is not floating-point.
        ValueError: a selector matches nothing, split sizes do not add up, or the plan takes no matrix.

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
            f"choose matrices with include=, or change exclude= and head=:\n{plan}"
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
    """As `matrices`, but the plan may be without matrices: filters need none."""
    listed = listing(model)
    if include is None and not isinstance(model, nn.Module):
        raise ValueError("include must name what to take if the model is a mapping, got None; pass name patterns")
    included = None if include is None else as_selectors("include", include)
    by_default = isinstance(head, str) and head == "last"
    heads = last_layer(model) if by_default else set()
    heading = () if head is None or by_default else as_selectors("head", head)
    excluded = as_selectors("exclude", exclude)
    for what, selectors in (("include", included or ()), ("exclude", excluded), ("head", heading)):
        check_matched(what, selectors, listed)
    stacked = _stacked(stack, listed)
    fused = _fused(split, listed)

    def reason_against(item: Listed) -> str:
        depth = item.parameter.ndim - (item in stacked)
        if depth < 2:
            return f"{depth}-D" + (" without the stack's axis" if item in stacked else "")
        if matching(excluded, item):
            return "excluded"
        if matching(heading, item):
            return "output head"
        if item.parameter.dtype not in _DTYPES:
            return f"dtype {item.parameter.dtype} is not supported"
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
            f"({reason_against(item)}); include it or remove it from split"
        )
    taken = {entry.parameter for entry in entries if entry.taken}
    modules = {owner.module: None for item in listed if item.parameter in taken for owner in item.owners}
    return Plan(tuple(entries), modules=tuple(modules))


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
            f"split sizes must add up to the {rows} output rows of {item.name!r}, got {tuple(sizes)} = {sum(sizes)}; "
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
    check_matched("stack", selectors, listed)
    found = [item for item in listed if matching(selectors, item)]
    scalar = next((item for item in found if item.parameter.ndim == 0), None)
    if scalar is not None:
        raise ValueError(
            f"a stacked parameter must have a leading axis, got {scalar.name!r} of shape (); name only the others in stack="
        )
    lengths = {item.parameter.shape[0]: item for item in found}
    if stack is True and len(lengths) > 1:
        text = ", ".join(f"{length} in {item.name!r}" for length, item in lengths.items())
        raise ValueError(f"with stack=True every leading axis must have the same length, got {text}; name those in stack=")
    return set(found)


def _fused(split: Mapping[str, Sequence[int]] | None, listed: Sequence[Listed]) -> dict[Listed, Sequence[int]]:
    fused: dict[Listed, Sequence[int]] = {}
    if split is not None:
        check_mapping("split", split, "for example {'qkv.weight': (64, 64, 64)}")
    for pattern, sizes in (split or {}).items():
        check_matched("split", as_selectors("split", pattern), listed)
        whole_rows = isinstance(sizes, Sequence) and all(isinstance(size, int) and size > 0 for size in sizes)
        if not whole_rows or not sizes:
            raise ValueError(
                f"split must give positive sizes for {pattern!r}, got {sizes!r}; list the output rows of each matrix"
            )
        for item in listed:
            if matching((pattern,), item) and item.parameter.ndim >= 2:
                fused[item] = tuple(sizes)
    return fused


def _check_included(included: Sequence[Selector], listed: Sequence[Listed], stacked: set[Listed]) -> None:
    """Raises for a selector that matches vectors only. One that matches a weight and its bias is fine."""
    for selector in included:
        found = [item for item in listed if matching((selector,), item)]
        if all(item.parameter.ndim - (item in stacked) < 2 for item in found):
            raise ValueError(
                f"include must name matrices, got {found[0].name!r} of shape {tuple(found[0].parameter.shape)}; "
                f"a matrix has at least two dimensions"
            )
        wrong = next((item for item in found if item.parameter.dtype not in _DTYPES), None)
        if wrong is not None:
            raise TypeError(
                f"include must name parameters of {', '.join(map(str, _DTYPES))}, got {wrong.name!r} of "
                f"{wrong.parameter.dtype}; leave it out"
            )
