"""Handles the host, which is the optimizer that EGD attaches to: unwraps it, checks it, finds who calls its step."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.optim import Optimizer

from egalitarian.apply import check_chain
from egalitarian.optimizers.notices import warn_user
from egalitarian.optimizers.until import Until
from egalitarian.select import Plan, annotate, matrices, survey
from egalitarian.transforms import MatrixTransform, Transform, uses_matrices

_DEPTH = 32
"""How many stack frames are searched for the caller of a step."""
_ALIKE = 0.85
"""How alike two names must be, by difflib, for one to count as misspelt. A scheduler's `max_momentum` is less like
`momentum`."""
_HOOKED_STEP = Optimizer.profile_hook_step(lambda self: None).__code__  # torch wraps the step of every class in this


class Caller(NamedTuple):
    """The caller of the running step."""

    nested: bool
    """Whether a subclass called the step of its base class. torch has run the hooks for the subclass already."""
    name: Literal["scaler", "checkpoint"] | None
    """`"scaler"`: an enabled GradScaler, which leaves no other trace. `"checkpoint"`: torch's checkpoint helpers, whose
    step with zero gradients only initialises the state."""


@torch._disable_dynamo  # type: ignore[attr-defined]
def caller_of_step(optimizer: Optimizer) -> Caller:
    """Looks for the caller of this optimizer's running step on the stack."""
    scaler = torch.amp.GradScaler._maybe_opt_step.__code__
    name: Literal["scaler", "checkpoint"] | None = None
    steps = 0
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if code is _HOOKED_STEP:
            steps += frame.f_locals.get("self") is optimizer
        elif name is None and code is scaler:
            name = "scaler"
        elif name is None and code.co_name == "_init_optim_state" and "checkpoint" in code.co_filename:
            name = "checkpoint"
        frame = frame.f_back
    return Caller(steps > 1 and _has_hooked_base(optimizer), name)


def _has_hooked_base(optimizer: Optimizer) -> bool:
    """Whether torch runs the hooks for a base class, too. If not, a step inside a step is a step of its own."""
    hooked = [kind for kind in type(optimizer).__mro__ if getattr(vars(kind).get("step"), "hooked", False)]
    return len(hooked) > 1


def refuse_host(optimizer: Optimizer) -> None:
    """Raises for an optimizer that EGD cannot be attached to."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError("optimizer must take dense gradients, got SparseAdam; use Adam for the matrices")
    if hasattr(optimizer, "fused_backward"):
        raise TypeError(f"optimizer must update in step(), got {name}, which updates during backward; use SGD or AdamW")
    refuse_differentiable(optimizer.param_groups)
    refuse_fake(optimizer)
    if hasattr(optimizer, "_egalitarian") or hasattr(stepping(optimizer), "_egalitarian"):
        raise ValueError(
            "optimizer must have at most one attachment, got a second; call .remove() on the first, or pass the transforms "
            "as one sequence"
        )


def stepping(optimizer: Optimizer) -> Optimizer:
    """The optimizer that makes the update. For SAM this is its base optimizer, which other methods of SAM step as well."""
    base = getattr(optimizer, "base_optimizer", None)
    return base if isinstance(base, Optimizer) and base.param_groups is optimizer.param_groups else optimizer


def refuse_differentiable(groups: Iterable[dict[str, Any]]) -> None:
    if any(group.get("differentiable") for group in groups):
        raise ValueError(
            "optimizer must not be differentiable, got differentiable=True; EGD changes gradients in place, so pass False"
        )


def refuse_fake(optimizer: Optimizer) -> None:
    """Raises for tensors without values. Those on the meta device are handled, for shapes alone."""
    if detect_fake_mode([parameter for group in optimizer.param_groups for parameter in group["params"]]) is not None:
        raise TypeError(
            "optimizer must hold tensors with values, got fake ones of a FakeTensorMode; leave the mode, or compute shapes "
            "on the meta device"
        )


def misspelt(host: Optimizer, groups: Iterable[Mapping[str, Any]], known: Iterable[str] = ()) -> Iterator[str]:
    """Warnings of a group's setting that the optimizer does not have, but whose name is close to one that it has."""
    read = {"params", "param_names", *host.defaults, *known}
    for name in dict.fromkeys(name for group in groups for name in group if name not in read):
        if meant := difflib.get_close_matches(name, read, n=1, cutoff=_ALIKE):
            yield f"a param group has {name!r}, which {type(host).__name__} does not read; did you mean {meant[0]!r}?"


def ignored(groups: Iterable[Mapping[str, Any]], decay_before: float) -> Iterator[str]:
    """Warnings of settings in a group that the optimizer `EGD` reads, but `attach` does not."""
    for group in groups:
        if group.get("equalize", True) is False:
            way_out = "leave its matrices out with matrices(exclude=...)"
            yield f"a param group has equalize=False, which attach does not read; {way_out}"
        if (decay := group.get("decay_before", 0.0)) not in (0.0, decay_before):
            yield f"a param group has decay_before={decay}, which attach does not read; pass decay_before= to attach"


_DOUBTED: WeakSet[Plan] = WeakSet()
"""Plans whose doubts have been shown in a warning."""


def warn_of_doubts(plan: Plan) -> None:
    """Warns once per plan of what is uncertain about it."""
    if plan.doubts and plan not in _DOUBTED:
        _DOUBTED.add(plan)
        warn_user("; ".join(plan.doubts))


def warn_of_replaced(optimizer: Optimizer, plan: Plan) -> None:
    """Warns if the model has replaced matrices since the plan was made, as `fully_shard` does."""
    now = {parameter for module in plan.modules for parameter in module.parameters()}
    idle = {each for group in optimizer.param_groups for each in group["params"] if each.grad is None}
    gone = [entry.name for entry in plan.taken if entry.parameter in idle and entry.parameter not in now]
    if now and gone:
        sharded = any(hasattr(parameter, "device_mesh") for parameter in now)
        why = "fully_shard came after the optimizer" if sharded else "the model was changed after the optimizer was built"
        warn_user(
            f"the model no longer has {shown(gone)} that the optimizer holds: {why}; build the optimizer last, then attach"
        )


def shown(names: Sequence[str]) -> str:
    """The first three names, quoted, and how many more there are."""
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _warn_of_decay(optimizer: Optimizer, plan: Plan) -> None:
    """Warns of a decay that fits equalised steps. After a switch-off it outweighs the plain gradients."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        decay = group["weight_decay"]
        if decay >= 0.01 and any(plan.takes(parameter) for parameter in group["params"]):
            warn_user(
                f"weight_decay={decay:g} suits equalised gradients, but it stays after the switch-off and may then undo "
                f"what was learnt; leave until=None, or lower weight_decay when EGD switches off"
            )
            return


def planned(optimizer: Optimizer, model_or_plan: nn.Module | Plan, chain: Sequence[Transform], until: Until | None) -> Plan:
    """The plan, checked against the optimizer, with notes on what the transforms do."""
    if isinstance(model_or_plan, Plan):
        plan = model_or_plan
    elif isinstance(model_or_plan, nn.Module):
        plan = matrices(model_or_plan) if uses_matrices(chain) else survey(model_or_plan)
    else:
        raise TypeError(f"model_or_plan must be a Module or a Plan, got {type(model_or_plan).__name__}; pass the model")
    if uses_matrices(chain):
        warn_of_doubts(plan)
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    absent = [entry for entry in plan.taken if entry.parameter not in held]
    needed = [entry for entry in absent if entry.parameter.requires_grad]  # a frozen one may join once it is unfrozen
    lacks_all = bool(absent) and len(absent) == len(plan.taken)
    if needed and (lacks_all or plan is model_or_plan):
        raise ValueError(
            f"optimizer must hold the plan's matrices, got one without {needed[0].name!r}; build it from the "
            f"same model, after wrapping or moving that. With several optimizers, attach to the one that holds the matrix, "
            f"or plan fewer with matrices(model, include=...)"
        )
    if lacks_all:
        warn_user(
            f"the plan takes only {shown([entry.name for entry in absent])}, frozen and not in the optimizer, so EGD does "
            f"nothing until they are unfrozen and added; if that never happens, plan other layers"
        )
    if until is not None and uses_matrices(chain):
        _warn_of_decay(optimizer, plan)
    links = [link for link in chain if isinstance(link, MatrixTransform)]
    cutoffs = dict.fromkeys(text for link in links if (text := link.cutoff_text()))
    header = "; ".join([" then ".join(map(repr, chain)), *cutoffs])
    notes = {
        target.name: ", ".join(text for link in links if (text := link.note(target.rows, target.columns)))
        for target in plan.targets
    }
    check_chain(chain, plan.taken, plan.stack)
    return annotate(plan, header, notes)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside a wrapper: of Accelerate, Lightning, schedulefree or torch's PostLocalSGDOptimizer."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        parts = [getattr(optimizer, name, None) for name in ("optimizer", "optim", "base")]
        inner = next((part for part in parts if hasattr(part, "param_groups")), None)
        if inner is None:
            break
        optimizer = inner
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; call attach(optimizer, model)"
        )
    return optimizer


def reduce_with_warning(optimizer: Optimizer, protocol: Any) -> Any:
    warn_user(
        "a copy or pickle of this optimizer does not include the EGD attached to it; call egalitarian.attach on the copy "
        "and load the attachment's state_dict"
    )
    return type(optimizer).__reduce_ex__(optimizer, protocol)
