"""What the integrations share: checks of settings at construction, errors and warnings, strategies that are refused."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from egalitarian.optimizers import Attachment, Until, attach, warn_user
from egalitarian.select import Plan, matrices
from egalitarian.transforms import Polar, Transform

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON", "MODELPARALLEL")
"""Parts of the names of strategies that give an optimizer shards instead of whole matrices."""


class AttachSettings(TypedDict, total=False):
    """The settings of `attach` that a trainer passes on."""

    transform: Transform | Sequence[Transform]
    decay_before: float
    until: Until | None
    on_nonfinite: Literal["keep", "raise"]
    spectrum_every: int
    capture: bool
    shard: Literal["auto", "owners", "replicate"]


def check_names(owner: str, names: Iterable[str], *others: str) -> None:
    """Raises for a name that is no setting of `attach`, or that the trainer decides.

    Args:
        owner: the name of the function or class that got them, for the error.
        names: the names that were passed.
        others: further arguments of the owner.
    """
    known = [*others, *AttachSettings.__annotations__]
    for name in names:
        if name in known:
            continue
        if name == "save_with_optimizer":
            way_out = "leave it out, since EGD's state is in the trainer's checkpoints"
        elif name == "monitor":
            way_out = "pass its metrics to observe()"
        elif name in {field.name for field in dataclasses.fields(Polar)}:
            way_out = f"pass transform=Polar({name}=...)"
        else:
            meant = difflib.get_close_matches(name, known, n=1)
            way_out = f"did you mean {meant[0]!r}?" if meant else "leave it out"
        raise TypeError(f"settings of {owner} must be {', '.join(known)}, got {name!r}; {way_out}")


def check_plan(plan: object, way_out: str, several: bool) -> None:
    """Raises if this is no plan.

    Args:
        plan: a plan, or for several optimizers a sequence with a plan or None for each.
        way_out: the end of the message.
        several: whether a sequence may be passed.
    """
    listed = several and isinstance(plan, Sequence) and not isinstance(plan, str)
    for each in plan if listed else (plan,):  # type: ignore[attr-defined]
        if not (isinstance(each, Plan) or (listed and each is None)):
            rule = "a Plan, or a function from the model to one"
            raise TypeError(f"plan must be {rule}, got {type(each).__name__}; {way_out}")


def made_plan(function: Callable[[Any], Any], model: nn.Module, several: bool = False) -> Any:
    """The plan that a user's function makes of the model, checked."""
    made = function(model)
    check_plan(made, "return matrices(model, ...) from the function", several)
    return made


def wrapped(plan: nn.Module | Plan, model: nn.Module | None) -> nn.Module | Plan:
    """What to attach to, so that EGD sees the DistributedDataParallel that a trainer has wrapped around the model."""
    inside = () if model is None else model.modules()
    replicas = tuple(module for module in inside if isinstance(module, nn.parallel.DistributedDataParallel))
    if isinstance(plan, Plan):
        return dataclasses.replace(plan, replicas=replicas)
    return next((replica for replica in replicas if replica.module is plan), plan)


def check_settings(
    owner: str, settings: AttachSettings, plan: object, monitor: str | None, spectra: object, several: bool = False
) -> None:
    """Checks the arguments of a callback when it is made. It tries the settings of `attach` on a matrix of zeros.

    Args:
        owner: the class of the callback.
        settings: those of `attach`.
        plan: a plan, plans, a function that makes them, or None.
        monitor: the name of the metric for `until`.
        spectra: the `SpectrumWriter`, or None.
        several: whether there may be a sequence of plans.
    """
    function = callable(plan) and not isinstance(plan, nn.Module | Transform)
    if plan is not None and not function:
        check_plan(plan, "leave it out for the default plan, and pass all else by name", several)
    check_names(owner, settings, "plan", "monitor", "spectra")
    weight = nn.Parameter(torch.zeros(64, 64))
    attach(torch.optim.SGD([weight], lr=1.0), matrices({"weight": weight}, include="weight"), **settings).remove()
    if monitor is not None and not isinstance(monitor, str):
        raise TypeError(f"monitor must be the name of a metric, got {monitor!r}; for example 'val_acc'")
    until = settings.get("until")
    if until is not None and monitor is None:
        raise ValueError(f"monitor must name the metric for {until!r}, got None; for example 'val_acc'")
    if monitor is not None and until is None:
        warn_user(f"monitor={monitor!r} has no effect without until; pass until=Until(0.95) or leave it out")
    if monitor is not None and until is not None and until.mode == "max" and "loss" in monitor.lower():
        warn_user(
            f"{monitor!r} looks like a loss, and {until!r} switches EGD off once it is above {until.threshold:g}; for a "
            f"metric that falls pass mode='min'"
        )
    if spectra is not None and not callable(getattr(spectra, "write", None)):
        raise TypeError(
            f"spectra must be a SpectrumWriter, got {type(spectra).__name__}; pass SpectrumWriter(SummaryWriter('spectra'))"
        )
    if spectra is not None and not settings.get("spectrum_every"):
        raise ValueError("spectra need spectrum_every, got 0; pass spectrum_every=100, or leave spectra out")


def missing_metric(monitor: str, logged: Sequence[str], way_out: str) -> ValueError:
    """The error for a metric that was not logged; it names those that were."""
    logged = list(dict.fromkeys(logged))
    parts = [name for name in logged if name.startswith(f"{monitor}/")]  # Lightning's names with several loaders
    meant = parts or difflib.get_close_matches(monitor, logged, n=1)
    hint = f"did you mean {meant[0]!r}?" if meant else way_out
    return ValueError(f"monitor must be one of the logged metrics, {', '.join(map(repr, logged))}, got {monitor!r}; {hint}")


def observe(egd: Attachment, monitor: str, metric: Any, say: Callable[[str], None]) -> None:
    """Passes a metric on, the same to all elements of a stack, and says so if that has switched EGD off or on."""
    stack, before = egd.plan.stack, torch.as_tensor(egd.active)
    if stack is None:
        now = torch.as_tensor(egd.observe(metric))
    else:
        now = torch.as_tensor(egd.observe(metric.expand(stack) if isinstance(metric, Tensor) else [metric] * stack))
    if not torch.equal(before, now):
        say(f"EGD switched {'on' if bool(now.any()) else 'off'} by {monitor} = {float(metric):g}")


def warn_of_copy(owner: str) -> None:
    """Warns that a callback was copied during a training: the copy has no EGD attached."""
    warn_user(
        f"a copy or pickle of this {owner} does not include the EGD that it has attached; the copy attaches its own "
        f"when a training starts with it"
    )


def refuse_sharded(*names: str) -> None:
    """Raises if one of these names, such as a strategy's class and its bases, is of a strategy that shards matrices."""
    for name in names:
        if any(word in name.upper() for word in SHARDED):
            raise ValueError(
                f"the strategy must leave whole matrices to the optimizer, got {name}, which shards them; use DDP, or one "
                f"device; FSDP2 works in a loop of your own"
            )


def warn_of_no_state(egd: Attachment) -> None:
    """Warns that a run resumes from a checkpoint without EGD."""
    warn_user(
        "the checkpoint has no state of this callback, so EGD starts at step 0, switched on; resume from one that was "
        "saved with it, or call .off() on its attachment if EGD was off"
    )
    egd.on()  # marks the start as intended, so that the attachment does not warn, too
