"""Lightning: a callback that attaches EGD, passes metrics to `until`, and saves and restores its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn
from torch.optim import Optimizer

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.utilities import rank_zero_info
    except ImportError as error:
        raise ImportError(
            f"lightning must be installed for EGDCallback, got {error}; pip install 'egalitarian[lightning]'"
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
    wrapped,
)
from egalitarian.optimizers import Attachment, attach, warn_user
from egalitarian.select import Plan, matrices

if TYPE_CHECKING:
    from egalitarian.integrations.tensorboard import SpectrumWriter

SEARCHES = frozenset({"BatchSizeFinder", "LearningRateFinder"})
"""Callbacks that train for a while when `fit` starts, and then restore a checkpoint of their own."""

Plans = Plan | Sequence[Plan | None]
"""One plan, or one for each optimizer in order; None leaves an optimizer without EGD."""
Hosts = Sequence[tuple[Optimizer, nn.Module | Plan]]
"""The optimizers that get EGD during a fit, each with its plan, or the module for its default plan."""


class EGDCallback(Callback):
    """Adds EGD to the optimizers of a LightningModule when `fit` starts, and removes it when it ends.

    It acts inside the step: after accumulation, unscaling and clipping. Its state is in every checkpoint, and
    `fit(ckpt_path=...)` restores it. Without a checkpoint, each `fit` starts EGD from step 0. A Trainer takes one
    such callback. For several optimizers, give it a sequence of plans.

    Args:
        plan: which matrices EGD takes: a `Plan`, or a function from the module to one. For several optimizers, a sequence
            of plans, one for each; None leaves an optimizer without EGD. The default is `matrices(module)`: EGD acts in
            each optimizer on the matrices that it holds.
        monitor: the metric for `until`, as logged with `self.log`. It is read after each validation. If it is
            logged only later, or there is no validation, it is read after each training epoch.
        spectra: a `SpectrumWriter`, which writes the stored spectra to TensorBoard after each validation and epoch.
        settings: those of `attach`: `transform`, `decay_before`, `until`, `on_nonfinite`, `spectrum_every`, `capture`,
            `shard`.

    Raises:
        TypeError: an argument has the wrong type, or a name that is no setting.
        ValueError: a setting is out of range, or `until` has no metric.

    >>> import lightning
    >>> from egalitarian import Until
    >>> egd = EGDCallback(until=Until(0.95), monitor="val_acc")
    >>> trainer = lightning.Trainer(max_epochs=10, callbacks=[egd], logger=False, enable_checkpointing=False)
    >>> egd in trainer.callbacks
    True
    """

    attachments: tuple[Attachment, ...] = ()
    """The attachments of the running fit, or of the last one: one for each optimizer with EGD."""

    def __init__(
        self,
        plan: Plans | Callable[[Any], Plans] | None = None,
        *,
        monitor: str | None = None,
        spectra: SpectrumWriter | None = None,
        **settings: Unpack[AttachSettings],
    ) -> None:
        check_settings(type(self).__name__, settings, plan, monitor, spectra, several=True)
        self._plan, self._monitor, self._spectra, self._settings = plan, monitor, spectra, settings
        self._loaded: dict[str, Any] | None = None  # the state of a checkpoint, until training starts
        self._hosts: Hosts = ()
        self._steppers: set[Optimizer] = set()
        self._late = False  # whether the metric is logged only when the epoch ends
        self._asked = False  # whether until has had a metric in this fit
        self._idle = False  # whether an epoch has ended without one so far

    # -- from the start of a fit to its end ---------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded = None  # forgets an earlier run; Lightning loads a checkpoint after this
        if stage == "fit":
            self._remove()
            self._late = self._asked = self._idle = False
            refuse_sharded(*_bases(trainer.strategy))
            if any(SEARCHES & _bases(each) for each in trainer.callbacks):  # they train first, and need EGD then
                trainer.callbacks = [self, *(each for each in trainer.callbacks if each is not self)]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers: list[Optimizer] = list(trainer.optimizers)
        own = set(pl_module.parameters())
        if not any(own & _held(optimizer) for optimizer in optimizers):
            raise ValueError(
                "configure_optimizers must return an optimizer of the module's parameters, got none; return one"
            )
        self._steppers = set(optimizers)
        plans = self._plans(pl_module, optimizers)
        hosts = zip(optimizers, plans, strict=True)
        model = trainer.strategy.model
        self._attach([(optimizer, wrapped(plan, model)) for optimizer, plan in hosts if plan is not None])
        if trainer.ckpt_path and self._loaded is None:
            for egd in self.attachments:
                warn_of_no_state(egd)

    def _attach(self, hosts: Hosts) -> None:
        self._remove()
        attached: list[Attachment] = []
        try:
            for optimizer, plan in hosts:  # the state_dict stays bare: EGD is removed when the fit ends
                attached.append(attach(optimizer, plan, save_with_optimizer=False, **self._settings))
        except BaseException:
            for egd in attached:
                egd.remove()
            raise
        self.attachments, self._hosts = tuple(attached), hosts

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()  # after callbacks that unfreeze layers have restored the param groups

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._restore()  # a search may also start with an epoch

    def _plans(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> Sequence[nn.Module | Plan | None]:
        if self._plan is None:
            return _shared(module, optimizers)
        plans: Plans = made_plan(self._plan, module, several=True) if callable(self._plan) else self._plan
        each = [plans] if isinstance(plans, Plan) else list(plans)
        if len(each) != len(optimizers):
            raise ValueError(
                f"plan must have one plan per optimizer, got {len(each)} for {len(optimizers)}; put None for an optimizer "
                f"that has no EGD"
            )
        return each

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if optimizer not in self._steppers:
            raise RuntimeError(
                f"the optimizers must be those of the start of fit, got another {type(optimizer).__name__}, without EGD; "
                f"change param groups in place, or call fit again"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._settings.get("until") is not None and self._idle:
            warn_user("until got no metric: no validation came before the end of fit; validate more often")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._write(trainer)
            self._remove()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._remove()

    def _remove(self) -> None:
        self._hosts = ()
        for egd in self.attachments:
            egd.remove()

    # -- the switch-off, and spectra ----------------------------------------------------------------------------------

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if trainer.is_last_batch and self._monitor not in trainer.callback_metrics:
            self._late = True  # such as an average over the epoch
        if not self._late:
            self._observe(trainer)
        self._write(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._late or not trainer.enable_validation:
            self._observe(trainer)
        self._idle = not self._asked
        self._write(trainer)

    def _observe(self, trainer: Trainer) -> None:
        if self._monitor is None or self._settings.get("until") is None:
            return
        logged = trainer.callback_metrics
        if self._monitor not in logged:
            way_out = f"log it with self.log({self._monitor!r}, ...), in training_step with on_step=True"
            raise missing_metric(self._monitor, sorted(logged), way_out)
        metric = trainer.strategy.broadcast(logged[self._monitor])  # all ranks decide alike
        self._asked = True
        for egd in self.attachments:
            observe(egd, self._monitor, metric, rank_zero_info)

    def _write(self, trainer: Trainer) -> None:
        if self._spectra is not None and trainer.is_global_zero:
            for number, egd in enumerate(self.attachments):
                self._spectra.write(egd, f"egd/{number}" if self.attachments[1:] else "egd")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:  # a search for a learning rate saves and restores it
            return self._loaded
        return {"attachments": [egd.state_dict() for egd in self.attachments]} if self.attachments else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict  # used when training starts: optimizers may not exist yet
        if self._hosts:  # a search has trained with EGD: starts again, without its spectra
            self._attach(self._hosts)

    def _restore(self) -> None:
        if self._loaded is None:
            return
        saved: Sequence[Mapping[str, Any]] = self._loaded["attachments"]
        if len(saved) != len(self.attachments):
            raise ValueError(
                f"the checkpoint must have a state for each of {len(self.attachments)} optimizers with EGD, got "
                f"{len(saved)}; resume with the optimizers and the plan of the saved run"
            )
        for egd, state in zip(self.attachments, saved, strict=True):
            egd.load_state_dict(state)
        self._loaded = None

    def __getstate__(self) -> dict[str, Any]:
        if self._hosts:
            warn_of_copy(type(self).__name__)
        kept = {name: value for name, value in vars(self).items() if name not in ("log", "log_dict")}  # the module's
        return {**kept, "attachments": (), "_hosts": (), "_steppers": set()}


def _bases(thing: object) -> frozenset[str]:
    """The names of its class and base classes. Names serve both packages of Lightning, which have different classes."""
    return frozenset(kind.__name__ for kind in type(thing).__mro__)


def _held(optimizer: Optimizer) -> set[Any]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _shared(module: LightningModule, optimizers: Sequence[Optimizer]) -> list[nn.Module | None]:
    """The module for each optimizer that holds a matrix of its plan, else None and a warning. One alone always gets it."""
    if len(optimizers) == 1:
        return [module]
    taken = {entry.parameter for entry in matrices(module).taken}
    idle = [number for number, optimizer in enumerate(optimizers) if not taken & _held(optimizer)]
    for number in idle:
        warn_user(
            f"optimizer {number} ({type(optimizers[number]).__name__}) holds no matrix of the module's plan, so it has no "
            f"EGD; pass EGDCallback(plan=...) with a plan for each optimizer, None for this one"
        )
    return [None if number in idle else module for number in range(len(optimizers))]
