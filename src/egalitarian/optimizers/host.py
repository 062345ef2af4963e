"""The optimizer that EGD is attached to: unwraps it, checks it against the plan, and warns about copies of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from egalitarian.apply.gradients import check_chain
from egalitarian.optimizers.until import Until
from egalitarian.select.matrices import matrices, survey
from egalitarian.select.plan import Plan, annotate
from egalitarian.transforms.matrix import MatrixTransform, Transform, uses_matrices


def _warn_of_decay(optimizer: Optimizer, plan: Plan) -> None:
    """A decay on the scale of an equalised step wins over the plain gradients that come after a switch-off."""
    for group in optimizer.param_groups if isinstance(optimizer, torch.optim.SGD) else ():
        decay = group["weight_decay"]
        if decay >= 0.01 and any(plan.takes(parameter) for parameter in group["params"]):
            warnings.warn(
                f"weight_decay={decay:g} suits equalised gradients, but it outlives the switch-off and may then undo what "
                f"was learnt; leave until=None, or lower weight_decay when EGD switches off",
                stacklevel=4,
            )
            return


def planned(optimizer: Optimizer, model_or_plan: nn.Module | Plan, chain: Sequence[Transform], until: Until | None) -> Plan:
    """The plan, checked against the optimizer, with what the transforms do written into it."""
    if isinstance(model_or_plan, Plan):
        plan = model_or_plan
    elif isinstance(model_or_plan, nn.Module):
        plan = matrices(model_or_plan) if uses_matrices(chain) else survey(model_or_plan)
    else:
        raise TypeError(f"model_or_plan must be a Module or a Plan, got {type(model_or_plan).__name__}; pass the model")
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    absent = [entry for entry in plan.taken if entry.parameter not in held]
    if absent and (plan is model_or_plan or len(absent) == len(plan.taken)):
        raise ValueError(
            f"optimizer must hold the plan's matrices, got one without {absent[0].name!r}; build it from the same model, "
            f"after wrapping or moving that. With several optimizers, attach to the one that holds the matrix, or plan "
            f"fewer with matrices(model, include=...)"
        )
    if until is not None and uses_matrices(chain):
        _warn_of_decay(optimizer, plan)
    links = [link for link in chain if isinstance(link, MatrixTransform)]
    cutoffs = dict.fromkeys(text for link in links if (text := link.cutoff()))
    header = "; ".join([" then ".join(map(repr, chain)), *cutoffs])
    notes = {
        target.name: ", ".join(text for link in links if (text := link.note(target.rows, target.columns)))
        for target in plan.targets
    }
    check_chain(chain, plan.taken, plan.stack)
    return annotate(plan, header, notes)


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside a framework's wrapper (Accelerate, Lightning)."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; call attach(optimizer, model)"
        )
    return optimizer


def reduce_with_warning(optimizer: Optimizer, protocol: Any) -> Any:
    warnings.warn(
        "a copy or pickle of this optimizer does not include the EGD attached to it; call egalitarian.attach on the copy "
        "and load the attachment's state_dict",
        stacklevel=4,
    )
    return type(optimizer).__reduce_ex__(optimizer, protocol)
