"""Hugging Face's Trainer: a callback that attaches EGD, passes metrics to `until`, and saves and restores its state."""

from __future__ import annotations

import base64
import inspect
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn
from torch.optim import Optimizer

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
    from transformers.utils import logging
except ImportError as error:
    raise ImportError(
        f"transformers must be installed for EGDTrainerCallback, got {error}; pip install 'egalitarian[transformers]'"
    ) from error

from egalitarian.integrations.settings import (
    AttachSettings,
    check_settings,
    made_plan,
    missing_metric,
    observe,
    refuse_sharded,
    warn_of_copy,
    warn_of_no_state,
)
from egalitarian.optimizers import Attachment, attach, has_stepped, warn_user
from egalitarian.select import Plan, matrices

if TYPE_CHECKING:
    from egalitarian.integrations.tensorboard import SpectrumWriter


class EGDTrainerCallback(TrainerCallback, ExportableState):
    """Adds EGD to a Trainer's optimizer when training begins, and removes it when it ends.

    It acts inside the optimizer's step: after accumulation, unscaling and clipping. Every checkpoint has its state in
    `trainer_state.json`, tensors included, and `train(resume_from_checkpoint=...)` restores it. Without a checkpoint, each
    `train` starts EGD from step 0. A Trainer takes one such callback.

    Args:
        plan: which matrices EGD takes: a `Plan`, or a function from the model to one. The default is
            `matrices(model)`.
        monitor: the metric for `until`, as `compute_metrics` names it, with or without `eval_`. It is read after each
            evaluation.
        spectra: a `SpectrumWriter`, which writes the stored spectra to TensorBoard whenever the Trainer logs.
        settings: those of `attach`: `transform`, `decay_before`, `until`, `on_nonfinite`, `spectrum_every`, `capture`,
            `shard`.

    Raises:
        TypeError: an argument has the wrong type, or a name that is no setting.
        ValueError: a setting is out of range, or `until` has no metric.

    >>> from egalitarian import Until
    >>> from transformers import Trainer, TrainingArguments
    >>> egd = EGDTrainerCallback(until=Until(0.95), monitor="accuracy")
    >>> trainer = Trainer(torch.nn.Linear(3, 2), TrainingArguments("out"), callbacks=[egd])
    >>> egd in trainer.callback_handler.callbacks
    True
    """

    attachment: Attachment | None = None
    """The attachment of the running training, or of the last one."""

    def __init__(
        self,
        plan: Plan | Callable[[Any], Plan] | None = None,
        *,
        monitor: str | None = None,
        spectra: SpectrumWriter | None = None,
        **settings: Unpack[AttachSettings],
    ) -> None:
        check_settings(type(self).__name__, settings, plan, monitor, spectra)
        self._plan, self._monitor, self._spectra, self._settings = plan, monitor, spectra, settings
        self._handle: Any = None
        self._unmet: list[str] = []  # names of evaluations so far that lack the metric
        self._met = self._stepped = self._warned = False

    def optimizer(
        self,
        optimizer_class: Callable[..., Optimizer],
        *,
        taken: Mapping[str, Any] | None = None,
        left: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """An optimizer with the plan's param groups, for `Trainer(optimizer_cls_and_kwargs=...)`.

        Args:
            optimizer_class: such as `torch.optim.SGD`.
            taken: settings of the group that EGD takes, such as `{"weight_decay": 0.1}`.
            left: settings of the other group.
            settings: settings of the optimizer, such as `lr`. `TrainingArguments.learning_rate` has no effect here.

        Returns:
            The pair that `optimizer_cls_and_kwargs` takes. Pass this callback to the same Trainer.

        Raises:
            TypeError: `optimizer_class` cannot be called, or lacks its `lr`.
        """
        if not callable(optimizer_class):
            raise TypeError(
                f"optimizer_class must be a class, got {type(optimizer_class).__name__}; pass torch.optim.SGD, and its "
                f"settings by name"
            )
        if "lr" not in settings.keys() | ((taken or {}).keys() & (left or {}).keys()) and _takes_lr(optimizer_class):
            raise TypeError("lr must be passed, got none; that of TrainingArguments has no effect here")

        def build(model: nn.Module) -> Optimizer:
            plan = self._planned(model)
            made = optimizer_class((plan if isinstance(plan, Plan) else matrices(plan)).groups(taken, left), **settings)
            made.register_step_pre_hook(self._refuse_without_callback)
            return made

        return lambda: build, {}

    def _refuse_without_callback(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.attachment is None:
            raise RuntimeError("the optimizer's callback must be in its Trainer, got none; pass Trainer(callbacks=[egd])")

    def _planned(self, model: nn.Module) -> nn.Module | Plan:
        if self._plan is None:
            return model
        return made_plan(self._plan, model) if callable(self._plan) else self._plan

    # -- from the beginning of training to its end --------------------------------------------------------------------

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._remove()
        self._unmet, self._met, self._stepped, self._warned = [], False, False, False
        _refuse(args, kwargs["optimizer"])
        if self._settings.get("until") is not None and args.eval_strategy == "no":
            warn_user("until has no effect with eval_strategy='no'; pass eval_strategy='epoch'")
        name = type(self).__name__
        kept: Any = state.stateful_callbacks  # the Trainer has made it a dict, by class name
        if isinstance(kept.get(name), list):
            raise ValueError(f"the Trainer must have one {name}, got {len(kept[name])}; leave out the others")
        stored = kept.get(name, {}) if state.global_step else {}
        plan = self._planned(kwargs["model"])
        # The optimizer's state has been loaded by now, so it could not carry EGD's.
        egd = attach(kwargs["optimizer"], plan, save_with_optimizer=False, **self._settings)
        if not state.global_step:
            _warn_of_a_used_optimizer(egd.optimizer)
        self.attachment, self._handle = egd, egd.optimizer.register_step_post_hook(self._after_step)
        if saved := stored.get("attributes", {}).get("saved"):
            egd.load_state_dict(_decoded(saved))
        elif state.global_step:
            warn_of_no_state(egd)
        kept.setdefault(name, self.state())  # the Trainer looks it up when it saves

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._write(state)
        self._remove()
        if (error := self._missing()) is not None:  # no error: the finished training is worth keeping
            warn_user(f"until got no metric: {error}")

    def _remove(self) -> None:
        if self.attachment is not None and self._handle is not None:
            self.attachment.remove()
            self._handle.remove()
            self._handle = None

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepped = True

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        skipped = getattr(kwargs["optimizer"], "step_was_skipped", False)
        if not (self._stepped or skipped or self._warned):
            self._warned = True
            warn_user(
                "the Trainer's step did not reach the optimizer that EGD is attached to, so EGD did nothing; do not "
                "replace trainer.optimizer while it trains"
            )
        self._stepped = False

    # -- the switch-off, and spectra ----------------------------------------------------------------------------------

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        egd, metrics = self.attachment, kwargs["metrics"]
        if egd is None or self._monitor is None or self._settings.get("until") is None:
            return
        name = self._monitor if self._monitor in metrics else f"eval_{self._monitor}"
        if name in metrics:
            self._met = True
            observe(egd, name, metrics[name], logging.get_logger("transformers.egalitarian").info)
        else:
            self._unmet += sorted(metrics)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if (error := self._missing()) is not None:  # no earlier: with several datasets, each has other metrics
            raise error

    def _missing(self) -> ValueError | None:
        """The error if no evaluation so far had the metric."""
        if self._met or not self._unmet or self._monitor is None:
            return None
        return missing_metric(self._monitor, self._unmet, "return it from compute_metrics")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._write(state)

    def _write(self, state: TrainerState) -> None:
        if self._spectra is not None and self.attachment is not None and state.is_world_process_zero:
            self._spectra.write(self.attachment)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self.saved}}

    @property
    def saved(self) -> str | None:
        """The attachment's state as text, for `trainer_state.json`. `on_train_begin` restores it."""
        if self.attachment is None:
            return None
        file = io.BytesIO()
        torch.save(self.attachment.state_dict(), file)
        return base64.b64encode(file.getvalue()).decode("ascii")

    @saved.setter
    def saved(self, text: str | None) -> None:
        raise ValueError(
            "restore_callback_states_from_checkpoint must be False, got True, which creates new callbacks without their "
            "plan and transform; leave it out: EGD's state is restored in any case"
        )

    def __getstate__(self) -> dict[str, Any]:
        if self._handle is not None:
            warn_of_copy(type(self).__name__)
        return {**vars(self), "attachment": None, "_handle": None}


def _warn_of_a_used_optimizer(optimizer: Optimizer) -> None:
    """Warns if EGD starts at step 0 and the optimizer does not: a Trainer keeps it from one `train` to the next."""
    if has_stepped(optimizer):
        warn_user(
            f"{type(optimizer).__name__} continues from an earlier train(), but EGD starts at step 0 and switched on; "
            f"build a new Trainer so that both start from step 0, or resume from a checkpoint"
        )


def _takes_lr(optimizer_class: Callable[..., Optimizer]) -> bool:
    return isinstance(optimizer_class, type) and "lr" in inspect.signature(optimizer_class).parameters


def _decoded(text: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(base64.b64decode(text)), map_location="cpu", weights_only=True)
    return state


def _refuse(args: TrainingArguments, optimizer: Any) -> None:
    """Raises for strategies that shard, and for optimizers that step inside the backward pass."""
    prepared = getattr(optimizer, "accelerator_state", None)
    if prepared is not None:
        refuse_sharded(prepared.distributed_type.value)
    name = str(getattr(args.optim, "value", args.optim))
    if "lomo" in name or "layerwise" in name:
        raise ValueError(f"optim must step after the backward pass, got {name!r}, which steps inside it; use 'adamw_torch'")
