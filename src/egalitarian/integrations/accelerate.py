"""Accelerate: adds EGD to a model and an optimizer that `accelerator.prepare` returned."""

from __future__ import annotations

import dataclasses
from typing import Unpack

from torch import nn
from torch.optim import Optimizer

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError(
        f"accelerate must be installed for attach_prepared, got {error}; pip install 'egalitarian[accelerate]'"
    ) from error

from egalitarian.integrations.settings import AttachSettings, check_names, refuse_sharded, wrapped
from egalitarian.optimizers import Attachment, attach
from egalitarian.select import Plan


def attach_prepared(
    accelerator: Accelerator,
    optimizer: Optimizer,
    model: nn.Module,
    plan: Plan | None = None,
    **settings: Unpack[AttachSettings],
) -> Attachment:
    """Adds EGD to an optimizer after `accelerator.prepare`.

    EGD acts once per optimizer step, after accumulation, unscaling and clipping. `save_state` saves EGD's state with
    the optimizer's. `load_state` restores it, so call it after `attach_prepared`.

    Args:
        accelerator: the one that prepared model and optimizer.
        optimizer: as `prepare` returned it.
        model: as `prepare` returned it.
        plan: which matrices EGD takes, made before or after `prepare`. Parameters are found again by their names. The
            default is `matrices(model)`.
        settings: those of `attach`: `transform`, `decay_before`, `until`, `on_nonfinite`, `spectrum_every`, `capture`,
            `shard`.

    Returns:
        The attachment. With `until`, pass it metrics with `observe`. The first process decides for all.

    Raises:
        TypeError: an argument has the wrong type, or a name that is no setting.
        ValueError: the optimizer is not prepared, has EGD already, or gets shards instead of whole matrices.

    >>> accelerator, model = Accelerator(), nn.Linear(3, 2)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> attach_prepared(accelerator, optimizer, model).active
    True
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"accelerator must be an Accelerator, got {type(accelerator).__name__}; pass Accelerator()")
    for what, given, kind in (("optimizer", optimizer, Optimizer), ("model", model, nn.Module), ("plan", plan, Plan)):
        if not (isinstance(given, kind) or given is plan is None):
            raise TypeError(
                f"{what} must be {'an' if kind is Optimizer else 'a'} {kind.__name__}, got {type(given).__name__}; call "
                f"attach_prepared(accelerator, optimizer, model, plan), with all else by name"
            )
    check_names("attach_prepared", settings, "plan")
    refuse_sharded(accelerator.distributed_type.value)
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise ValueError(
            f"optimizer must be prepared, got {type(optimizer).__name__}; first call "
            f"model, optimizer = accelerator.prepare(model, optimizer)"
        )
    bare = accelerator.unwrap_model(model, keep_torch_compile=False)
    return attach(optimizer, wrapped(bare if plan is None else _found_again(plan, bare), model), **settings)


def _found_again(plan: Plan, model: nn.Module) -> Plan:
    """The plan for this model: its parameters and modules are looked up by name."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if all(parameters.get(entry.name) is entry.parameter for entry in plan):
        return plan
    for entry in plan:
        found = parameters.get(entry.name)
        if found is None or found.shape != entry.shape:
            got = repr(entry.name) + ("" if found is None else f" of shape {entry.shape}, not {tuple(found.shape)}")
            raise ValueError(f"plan must name parameters of the model, got {got}; make it of the same model")
    entries = tuple(dataclasses.replace(entry, parameter=parameters[entry.name]) for entry in plan)
    owners = {entry.name.rpartition(".")[0]: None for entry in entries if entry.taken}
    return dataclasses.replace(plan, entries=entries, modules=tuple(map(model.get_submodule, owners)))
