"""EGD under Lightning: as in a plain loop, bit for bit; resumed as never stopped; mistakes are named."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import pytorch_lightning
import torch
from documents import ROOT, blocks, execute
from lightning.pytorch import strategies
from lightning.pytorch.callbacks import BackboneFinetuning, BatchSizeFinder, LearningRateFinder
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egalitarian as eg
from egalitarian.integrations.lightning import EGDCallback
from egalitarian.integrations.tensorboard import SpectrumWriter

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return x, x[:, :4].argmax(1)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=16)


class Classifier(lightning.LightningModule):
    """Adam on a small network. Its metric is the accuracy, or what a test says it is."""

    def __init__(self, metrics: Callable[[int], float] | None = None, log: str = "val_acc") -> None:
        super().__init__()
        self.net, self.metrics, self.log_as = network(), metrics, log

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        accuracy = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log(self.log_as, accuracy if self.metrics is None else self.metrics(self.trainer.current_epoch))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class TwoOptimizers(Classifier):
    """Manual optimization: the first layer, and all others."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        first, rest = self.net[0].parameters(), self.net[1:].parameters()
        return [torch.optim.SGD(first, lr=0.1, momentum=0.9), torch.optim.Adam(rest, lr=1e-2)]


def trainer(*callbacks: Any, epochs: int = 2, **settings: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return lightning.Trainer(
        max_epochs=epochs, callbacks=list(callbacks), **{"accelerator": "cpu", "devices": 1, **quiet, **settings}
    )


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def plain_loop(accumulate: int = 1, clip: float = 0.0, dtype: torch.dtype | None = None, egd: bool = True) -> nn.Module:
    """Two epochs as Lightning makes them, by hand."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    if egd:
        eg.attach(optimizer, model)
    for number, (x, y) in enumerate(batch for _ in range(2) for batch in loader()):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None, cache_enabled=False):
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
        scaler.scale(loss).backward()
        if number % accumulate == accumulate - 1:
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (2, 0.0), (2, 0.01)])
def test_a_fit_is_the_plain_loop(dtype: torch.dtype | None, accumulate: int, clip: float) -> None:
    module = Classifier()
    precision: dict[str, Any] = {"precision": "32-true" if dtype is None else "bf16-mixed"}
    if dtype == torch.float16:  # by name, Lightning takes bfloat16 in its place on a CPU
        precision = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}
    fit = trainer(EGDCallback(), accumulate_grad_batches=accumulate, gradient_clip_val=clip, **precision)
    fit.fit(module, loader())
    assert same(module.net, plain_loop(accumulate, clip, dtype))
    assert not same(module.net, plain_loop(accumulate, clip, dtype, egd=False))


def test_the_other_name_of_lightning_is_the_same() -> None:
    class Other(pytorch_lightning.LightningModule):
        training_step, configure_optimizers = Classifier.training_step, Classifier.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net = network()

    module = Other()
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    pytorch_lightning.Trainer(max_epochs=2, callbacks=[EGDCallback()], **settings).fit(module, loader())
    assert same(module.net, plain_loop())


# two optimizers


def test_each_of_two_optimizers_gets_the_matrices_that_it_holds() -> None:
    module, egd = TwoOptimizers(), EGDCallback()
    trainer(egd).fit(module, loader())
    by_hand = network()
    first, rest = (
        torch.optim.SGD(by_hand[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(by_hand[1:].parameters(), lr=1e-2),
    )
    eg.attach(first, eg.matrices(by_hand, include="0.weight"))
    eg.attach(rest, eg.matrices(by_hand, include="2.weight"))
    for x, y in [batch for _ in range(2) for batch in loader()]:
        for optimizer in (first, rest):
            optimizer.zero_grad()
            nn.functional.cross_entropy(by_hand(x), y).backward()
            optimizer.step()
    assert same(module.net, by_hand)
    assert [type(each.optimizer) for each in egd.attachments] == [torch.optim.SGD, torch.optim.Adam]


def test_plans_of_ones_own_and_none() -> None:
    def plans(module: Any) -> list[eg.Plan | None]:
        return [None, eg.matrices(module.net[1:], head=None)]

    egd = EGDCallback(plans)
    trainer(egd).fit(TwoOptimizers(), loader())
    (attached,) = egd.attachments
    assert isinstance(attached.optimizer, torch.optim.Adam)
    assert len(attached.plan.taken) == 2


def test_an_optimizer_without_matrices_is_named() -> None:
    class Biases(TwoOptimizers):
        def configure_optimizers(self) -> Any:
            weights = [p for p in self.parameters() if p.ndim == 2]
            return [
                torch.optim.Adam(weights, lr=1e-2),
                torch.optim.SGD([p for p in self.parameters() if p.ndim == 1], lr=0.1),
            ]

    egd = EGDCallback()
    with pytest.warns(UserWarning, match=r"optimizer 1 \(SGD\) holds no matrix"):
        trainer(egd).fit(Biases(), loader(), loader())
    assert len(egd.attachments) == 1


def test_plans_must_be_as_many_as_optimizers() -> None:
    with pytest.raises(ValueError, match="one plan per optimizer, got 1 for 2; put None"):
        trainer(EGDCallback(lambda module: eg.matrices(module.net))).fit(TwoOptimizers(), loader())


@pytest.mark.parametrize(("wrong", "name"), [(None, "NoneType"), (["net"], "str"), ("net", "str")])
def test_a_function_must_return_plans(wrong: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"plan must be a Plan, .* got {name}; return matrices\(model, ...\) from the"):
        trainer(EGDCallback(lambda module: wrong)).fit(Classifier(), loader())


# the switch-off


def states(egd: EGDCallback) -> list[bool]:
    return [each.state_dict()["active"] for each in egd.attachments]


@pytest.mark.parametrize(("accuracies", "active"), [([0.1, 0.2, 0.3], True), ([0.1, 0.96, 0.3], False)])
def test_a_validation_metric_switches_egd_off_and_says_so(
    accuracies: list[float], active: bool, caplog: pytest.LogCaptureFixture
) -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    with caplog.at_level("INFO", "lightning.pytorch"):
        trainer(egd, epochs=3).fit(Classifier(accuracies.__getitem__), loader(), loader())
    assert states(egd) == [active]
    assert caplog.text.count("EGD switched off by val_acc = 0.96") == (not active)
    assert f"was active={active}" in repr(egd.attachments)


def test_one_metric_decides_for_all_elements_of_a_stack() -> None:
    class Experts(Classifier):
        def __init__(self) -> None:
            super().__init__(lambda epoch: 0.96)
            self.experts = nn.Parameter(torch.ones(3, 8, 8))

        def training_step(self, batch: Any, index: int) -> Tensor:
            return super().training_step([torch.einsum("bi,kij->bj", batch[0], self.experts), batch[1]], index)

    def plan(module: Any) -> eg.Plan:
        return eg.matrices(module, include="experts", stack="experts")

    egd = EGDCallback(plan, until=eg.Until(0.95), monitor="val_acc")
    trainer(egd, epochs=1).fit(Experts(), loader(), loader())
    assert egd.attachments[0].state_dict()["active"] == [False] * 3


def test_the_sanity_check_is_no_observation() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    fit = trainer(egd, epochs=1, limit_val_batches=1)
    fit.fit(Classifier(lambda epoch: 0.99 if fit.sanity_checking else 0.1), loader(), loader())
    assert states(egd) == [True]


def test_without_validation_the_metric_is_of_training() -> None:
    egd = EGDCallback(until=eg.Until(100.0, mode="min"), monitor="train_loss")
    trainer(egd, epochs=1).fit(Classifier(), loader())
    assert states(egd) == [False]


@pytest.mark.parametrize(("patience", "active"), [(1, False), (2, True)])
def test_a_mean_over_the_training_epoch_is_read_once_at_its_end(patience: int, active: bool) -> None:
    egd = EGDCallback(until=eg.Until(100.0, mode="min", patience=patience), monitor="train_loss_epoch")
    trainer(egd).fit(Classifier(), loader(), loader())
    assert states(egd) == [active]


def test_a_metric_that_is_not_logged_is_named_with_those_that_are() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_accuracy")
    with pytest.raises(ValueError, match="'train_loss_step', 'val_acc', got 'val_accuracy'; did you mean 'val_acc'"):
        trainer(egd, epochs=1).fit(Classifier(), loader(), loader())
    egd = EGDCallback(until=eg.Until(0.95), monitor="f1")
    with pytest.raises(ValueError, match=r"got 'f1'; log it with self.log\('f1', ...\)"):
        trainer(egd, epochs=1).fit(Classifier(), loader(), loader())


def test_in_the_middle_of_an_epoch_the_metric_must_be_there() -> None:
    egd = EGDCallback(until=eg.Until(100.0, mode="min"), monitor="train_loss_epoch")
    with pytest.raises(ValueError, match="got 'train_loss_epoch'; did you mean 'train_loss_step'"):
        trainer(egd, val_check_interval=2).fit(Classifier(), loader(), loader())


def test_with_several_loaders_the_metric_has_the_name_of_one() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")

    class Two(Classifier):
        def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, index)

    with pytest.raises(ValueError, match="did you mean 'val_acc/dataloader_idx_0'"):
        trainer(egd).fit(Two(), loader(), [loader(), loader()])


def test_a_metric_on_another_scale_warns_at_the_users_line() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    with pytest.warns(UserWarning, match="percentage") as caught:
        trainer(egd, epochs=1).fit(Classifier(lambda epoch: 60.0), loader(), loader())
    assert [each.filename for each in caught if "percentage" in str(each.message)] == [__file__]


def test_a_fit_without_a_validation_says_that_until_was_never_asked() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    fit = trainer(egd, epochs=2, check_val_every_n_epoch=3)
    with pytest.warns(UserWarning, match="until got no metric: no validation came before the end of fit"):
        fit.fit(Classifier(), loader(), loader())
    fit.save_checkpoint("done.ckpt")
    trainer(egd, epochs=2, check_val_every_n_epoch=3).fit(Classifier(), loader(), loader(), ckpt_path="done.ckpt")


# checkpoints

CHAIN = [eg.LowRankPolar(4), eg.GrokfastEMA(alpha=0.9, lamb=1.0)]  # randomized, and with a memory


@pytest.mark.parametrize("kind", [Classifier, TwoOptimizers])
def test_a_resumed_fit_is_the_unbroken_one(kind: type[Classifier]) -> None:
    def callback() -> EGDCallback:
        return EGDCallback(transform=CHAIN, until=eg.Until(0.4, patience=2), monitor="val_acc")

    whole, unbroken = kind(), callback()
    trainer(unbroken, epochs=6).fit(whole, loader(), loader())
    half = trainer(callback(), epochs=3)
    half.fit(kind(), loader(), loader())
    half.save_checkpoint("half.ckpt")
    resumed, egd = kind(), callback()
    trainer(egd, epochs=6).fit(resumed, loader(), loader(), ckpt_path="half.ckpt")
    assert same(whole, resumed)
    for one, other in zip(unbroken.attachments, egd.attachments, strict=True):
        assert one.state_dict()["step"] == other.state_dict()["step"] == 24
        assert one.state_dict()["active"] is other.state_dict()["active"]


def test_egd_that_was_off_is_off_after_resuming() -> None:
    half = trainer(EGDCallback(until=eg.Until(0.95), monitor="val_acc"), epochs=1)
    half.fit(Classifier(lambda epoch: 0.99), loader(), loader())
    half.save_checkpoint("off.ckpt")
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    trainer(egd, epochs=2).fit(Classifier(lambda epoch: 0.1), loader(), loader(), ckpt_path="off.ckpt")
    assert states(egd) == [False]


def test_a_checkpoint_without_egd_warns() -> None:
    half = trainer(epochs=1)
    half.fit(Classifier(), loader())
    half.save_checkpoint("plain.ckpt")
    with pytest.warns(UserWarning, match="no state of this callback, so EGD starts at step 0, switched on"):
        trainer(EGDCallback(), epochs=2).fit(Classifier(), loader(), loader(), ckpt_path="plain.ckpt")


def test_states_must_be_as_many_as_attachments() -> None:
    half = trainer(EGDCallback(), epochs=1)
    half.fit(TwoOptimizers(), loader(), loader())
    half.save_checkpoint("two.ckpt")
    fit = trainer(EGDCallback(lambda module: [eg.matrices(module.net[0], head=None), None]), epochs=2)
    with pytest.raises(ValueError, match="a state for each of 1 optimizers with EGD, got 2"):
        fit.fit(TwoOptimizers(), loader(), ckpt_path="two.ckpt")


class TwoHalves(TwoOptimizers):
    """Two networks of one shape, as torch alone would confuse them."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        self.net, self.parts = nn.Sequential(), nn.ModuleDict({"one": network(), "other": network()})
        self.names = ["other", "one"] if swapped else ["one", "other"]

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        for optimizer, name in zip(self.optimizers(), self.names, strict=True):  # type: ignore[arg-type]
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self.parts[name](batch[0]), batch[1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parts[name].parameters(), lr=0.1) for name in self.names]

    validation_step = None  # type: ignore[assignment]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_the_state_of_the_other_optimizer_is_refused(swapped: bool, by_hand: bool) -> None:
    """With the callback, and with attachments of one's own, which travel in the optimizers' states."""

    class ByHand(TwoHalves):
        def configure_optimizers(self) -> Any:
            optimizers = super().configure_optimizers()
            self.egds = [eg.attach(optimizer, self) for optimizer in optimizers]
            return optimizers

    kind = ByHand if by_hand else TwoHalves
    half = trainer(*[] if by_hand else [EGDCallback()], epochs=1)
    half.fit(kind(), loader())
    half.save_checkpoint("halves.ckpt")
    fit = trainer(*[] if by_hand else [EGDCallback()], epochs=2)
    if swapped:
        with pytest.raises(ValueError, match=r"one that differs in '\S*one\S*' \(16 x 8 then, not equalised now\)"):
            fit.fit(kind(swapped), loader(), ckpt_path="halves.ckpt")
    else:
        module = kind()
        fit.fit(module, loader(), ckpt_path="halves.ckpt")
        egds = module.egds if isinstance(module, ByHand) else fit.callbacks[0].attachments  # type: ignore[attr-defined]
        assert [egd.state_dict()["step"] for egd in egds] == [8, 8]


class Watched(Classifier):
    """Notes at each step whether the gradient is equalised. It has what searches change."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size, self.equalised = 1e-2, 16, list[bool]()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*data()), batch_size=self.batch_size)

    val_dataloader = train_dataloader

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(self.note)
        return optimizer

    def note(self, *step: Any) -> None:
        gradient = self.net[2].weight.grad
        self.equalised.append(torch.allclose(gradient @ gradient.T, torch.eye(16), atol=1e-4))


def searches() -> list[Any]:
    sizes = BatchSizeFinder(steps_per_trial=2, init_val=16, max_trials=1)
    return [LearningRateFinder(num_training_steps=5, update_attr=False), sizes]


class OneEpoch(lightning.Callback):
    """Ends the fit, but not a search in it, which is without callbacks."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        trainer.should_stop = True


def test_a_search_trains_with_egd_and_leaves_no_trace() -> None:
    """It trains inside the fit, then restores a checkpoint of its own."""
    settings: dict[str, Any] = {"transform": CHAIN, "spectrum_every": 1}
    plain, searched, alone, egd = Watched(), Watched(), EGDCallback(**settings), EGDCallback(**settings)
    trainer(alone, OneEpoch()).fit(plain)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*EGD.*")  # its checkpoint is none that lacks EGD
        trainer(egd, *searches(), OneEpoch()).fit(searched)
    assert same(plain, searched)
    assert len(searched.equalised) == 5 + 2 + 4
    assert egd.attachments[0].state_dict()["step"] == 4
    assert list(egd.attachments[0].spectrum()["net.2.weight"]) == [0, 1, 2, 3]


def test_every_step_of_a_search_is_equalised() -> None:
    inside = Watched()
    trainer(EGDCallback(), *searches(), OneEpoch()).fit(inside)
    assert inside.equalised == [True] * (5 + 2 + 4)
    module, egd = Watched(), EGDCallback()
    tuned = trainer(egd, OneEpoch())
    Tuner(tuned).lr_find(module, num_training=5, update_attr=False)
    assert module.equalised == [True] * 5
    tuned.fit(module)
    assert module.equalised == [True] * 9
    assert egd.attachments[0].state_dict()["step"] == 4


def test_a_search_in_a_resumed_fit_keeps_what_was_saved() -> None:
    half = trainer(EGDCallback(until=eg.Until(0.95), monitor="val_acc"), epochs=1)
    half.fit(Classifier(lambda epoch: 0.99), loader(), loader())
    half.save_checkpoint("off.ckpt")
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    search = LearningRateFinder(num_training_steps=5, update_attr=False)
    module = Classifier(lambda epoch: 0.1)
    trainer(egd, search, epochs=2).fit(module, loader(), loader(), ckpt_path="off.ckpt")
    assert states(egd) == [False]


def test_a_search_in_the_middle_of_a_fit_keeps_the_state() -> None:
    class Later(LearningRateFinder):
        def on_fit_start(self, *args: Any) -> None:
            pass

        def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
            if trainer.current_epoch == 1 and self.optimal_lr is None:
                steps.append(egd.attachments[0].state_dict()["step"])
                self.lr_find(trainer, pl_module)

        def on_train_batch_start(self, *args: Any) -> None:
            steps.append(egd.attachments[0].state_dict()["step"])

    steps: list[int] = []
    egd = EGDCallback(transform=CHAIN, until=eg.Until(0.95), monitor="val_acc")
    module = Classifier(lambda epoch: 0.99)
    trainer(egd, Later(num_training_steps=3, update_attr=False)).fit(module, loader(), loader())
    assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert states(egd) == [False]


# layers that are unfrozen later


class Unfreezable(Classifier):
    """Its first layer is frozen until epoch 1."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.net[0]
        self.gradients: list[Tensor] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)
        optimizer.register_step_post_hook(self.note)
        return optimizer

    def note(self, *step: Any) -> None:
        if self.backbone.weight.grad is not None:
            self.gradients.append(self.backbone.weight.grad.clone())


class Unfreezing(BackboneFinetuning):
    """Lightning's own leaves the layer frozen in a resumed fit."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if trainer.current_epoch > 1:
            self.make_trainable(pl_module.backbone)


def unfreezing() -> BackboneFinetuning:
    return Unfreezing(1, lambda epoch: 1.0, backbone_initial_lr=0.1, should_align=False)


def everything(module: Any) -> eg.Plan:
    return eg.matrices(module, include=["backbone", "net.2"])


def test_a_layer_that_a_plan_names_is_taken_once_it_is_unfrozen() -> None:
    module = Unfreezable()
    trainer(EGDCallback(everything), unfreezing()).fit(module, loader(), loader())
    assert len(module.gradients) == 4
    for gradient in module.gradients:
        assert torch.allclose(gradient.T @ gradient, torch.eye(8), atol=1e-4)


def test_a_layer_that_is_unfrozen_outside_the_plan_is_named_with_the_way_out() -> None:
    with pytest.warns(UserWarning, match=r"'net.0.weight' frozen when .* include=\['net.0.weight', ...\]"):
        trainer(EGDCallback(), unfreezing()).fit(Unfreezable(), loader(), loader())


def test_the_memory_of_a_layer_that_was_unfrozen_is_restored() -> None:
    def fit(module: Unfreezable, epochs: int, **resume: Any) -> lightning.Trainer:
        run = trainer(EGDCallback(everything, transform=CHAIN), unfreezing(), epochs=epochs)
        run.fit(module, loader(), loader(), **resume)
        return run

    whole, resumed = Unfreezable(), Unfreezable()
    fit(whole, 4)
    fit(Unfreezable(), 2).save_checkpoint("unfrozen.ckpt")
    fit(resumed, 4, ckpt_path="unfrozen.ckpt")
    assert same(whole, resumed)


def test_a_test_run_leaves_no_state_to_the_next_fit() -> None:
    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    first = trainer(egd, epochs=1)
    first.fit(Classifier(lambda epoch: 0.99), loader(), loader())
    first.save_checkpoint("off.ckpt")
    module, again = Classifier(lambda epoch: 0.1), EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    run = trainer(again, epochs=1)
    run.test(module, loader(), ckpt_path="off.ckpt", verbose=False)
    assert again.attachments == ()
    run.fit(module, loader(), loader())
    assert states(again) == [True]


# the end


def test_egd_leaves_with_the_fit_and_a_second_starts_from_step_0() -> None:
    module, egd = Classifier(lambda epoch: 0.99), EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    trainer(egd, epochs=1).fit(module, loader(), loader())
    (first,) = egd.attachments
    assert not first.optimizer._optimizer_step_pre_hooks
    module.metrics = lambda epoch: 0.1
    trainer(egd, epochs=1).fit(module, loader(), loader())
    (second,) = egd.attachments
    assert second is not first
    assert states(egd) == [True]
    assert second.state_dict()["step"] == 4


def test_egd_leaves_after_an_error() -> None:
    class Fails(Classifier):
        def on_train_epoch_end(self) -> None:
            raise RuntimeError("no more")

    egd = EGDCallback()
    with pytest.raises(RuntimeError, match="no more"):
        trainer(egd).fit(Fails(), loader())
    assert not egd.attachments[0].optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda egd: pickle.loads(pickle.dumps(egd))], ids=["copy", "pickle"])
def test_a_copy_has_no_attachment_and_attaches_its_own(copied: Callable[[EGDCallback], EGDCallback]) -> None:
    class Copies(Classifier):
        def on_train_epoch_end(self) -> None:
            with pytest.warns(UserWarning, match="copy or pickle of this EGDCallback does not include the EGD"):
                assert copied(egd).attachments == ()

    egd = EGDCallback(until=eg.Until(0.95), monitor="val_acc")
    trainer(egd, epochs=1).fit(Copies(), loader(), loader())
    again, module = copied(egd), Classifier()
    assert again.attachments == ()
    assert len(egd.attachments) == 1
    trainer(again).fit(module, loader(), loader())
    assert same(module.net, plain_loop())


# mistakes


def test_two_callbacks_are_refused() -> None:
    with pytest.raises(RuntimeError, match="EGDCallback"):
        trainer(EGDCallback(), EGDCallback())


def test_an_attachment_by_hand_is_refused() -> None:
    class ByHand(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            eg.attach(optimizer, self)
            return optimizer

    with pytest.raises(ValueError, match="at most one attachment"):
        trainer(EGDCallback()).fit(ByHand(), loader())


def test_an_attachment_by_hand_alone_is_the_plain_loop_and_resumes() -> None:
    class ByHand(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            self.egd = eg.attach(optimizer, self)
            return optimizer

    half, module = trainer(epochs=1), ByHand()
    half.fit(ByHand(), loader(), loader())
    half.save_checkpoint("by-hand.ckpt")
    trainer().fit(module, loader(), loader(), ckpt_path="by-hand.ckpt")
    assert same(module.net, plain_loop())
    assert module.egd.state_dict()["step"] == 8
    with pytest.warns(UserWarning, match="no state of this callback"):
        trainer(EGDCallback()).fit(Classifier(), loader(), loader(), ckpt_path="by-hand.ckpt")


@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"])
def test_shards_are_refused(name: str) -> None:
    assert hasattr(strategies, name)  # which need GPUs: this one has the name alone
    kind: Any = type("Mine", (type(name, (SingleDeviceStrategy,), {}),), {})
    with pytest.raises(ValueError, match=f"got {name}, which shards them; use DDP"):
        trainer(EGDCallback(), strategy=kind(torch.device("cpu"))).fit(Classifier(), loader())


def test_a_module_without_an_optimizer_is_refused() -> None:
    class Without(TwoOptimizers):
        def configure_optimizers(self) -> Any:
            return None

    with pytest.raises(ValueError, match="configure_optimizers must return an optimizer"):
        trainer(EGDCallback()).fit(Without(), loader())


def test_an_optimizer_that_is_replaced_is_noticed() -> None:
    class Replaces(Classifier):
        def on_train_epoch_start(self) -> None:
            if self.trainer.current_epoch == 1:
                self.trainer.strategy.optimizers = [torch.optim.SGD(self.parameters(), lr=0.1)]

    with pytest.raises(RuntimeError, match="must be those of the start of fit, got another SGD"):
        trainer(EGDCallback()).fit(Replaces(), loader())


class Silent:
    """In the place of a SummaryWriter."""

    def add_scalar(self) -> None: ...
    def add_histogram(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"until": eg.Until(0.95)}, ValueError, r"monitor must name the metric for Until\(.*\), got None; for example"),
        ({"monitor": 3}, TypeError, "monitor must be the name of a metric, got 3"),
        ({"until": 0.95, "monitor": "val_acc"}, TypeError, "until must be an Until"),
        ({"transfrom": eg.Polar()}, TypeError, "transfrom"),
        ({"plan": eg.Polar()}, TypeError, "plan must be a Plan, .* got Polar; leave it out"),
        ({"plan": network()}, TypeError, "got Sequential"),
        ({"transform": eg.Polar}, TypeError, "call it"),
        ({"spectra": SpectrumWriter(Silent())}, ValueError, "spectrum_every"),
        (
            {"spectra": Silent(), "spectrum_every": 1},
            TypeError,
            r"must be a SpectrumWriter, got Silent; pass Spec",
        ),
        (
            {"precision": "exact"},
            TypeError,
            r"EGDCallback must be .* got 'precision'; pass transform=Polar\(precision=...\)",
        ),
        ({"save_with_optimizer": False}, TypeError, "got 'save_with_optimizer'; leave it out, since EGD's state is in"),
        ({"monitr": "val_acc"}, TypeError, "got 'monitr'; did you mean 'monitor'"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        EGDCallback(**settings)


def test_a_monitor_without_a_rule_warns() -> None:
    with pytest.warns(UserWarning, match="no effect without until"):
        EGDCallback(monitor="val_acc")


def test_a_loss_with_the_rule_of_an_accuracy_warns() -> None:
    with pytest.warns(UserWarning, match=r"'val_loss' looks like a loss, .* above 0\.95; .* pass mode='min'"):
        EGDCallback(until=eg.Until(0.95), monitor="val_loss")
    EGDCallback(until=eg.Until(0.1, mode="min"), monitor="val_loss")


def test_checking_settings_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    EGDCallback(transform=CHAIN)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_lightning_the_error_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "egalitarian.integrations.lightning")
    with pytest.raises(ImportError, match=r"pip install 'egalitarian\[lightning\]'"):
        importlib.import_module("egalitarian.integrations.lightning")


# the page, and the example

PAGE = ROOT / "docs" / "trainers.md"


def test_the_page_runs() -> None:
    class Gan(TwoOptimizers):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = network(), network()

        def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
            for optimizer, part in zip(self.optimizers(), (self.generator, self.discriminator), strict=True):  # type: ignore[arg-type]
                optimizer.zero_grad()
                self.manual_backward(part(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters()) for part in (self.generator, self.discriminator)]

        validation_step = None  # type: ignore[assignment]

    found = {block.marked.partition(": ")[2]: block for block in blocks(PAGE.read_text(encoding="utf-8"))}
    names: dict[str, Any] = {"eg": eg, "module": Classifier(), "gan": Gan()}
    names |= {"train_loader": loader(), "val_loader": loader()}
    for name in ("a fit that resumes", "two optimizers"):
        execute(found[name], PAGE, names)
    assert len(names["trainer"].optimizers) == 2


def test_the_example_groks_and_resumes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "hosts" / "lightning_module.py"), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "bitwise the unbroken one: True" in done.stdout


DDP = """
import os
import lightning, torch
from test_lightning import Classifier, loader
from egalitarian import Until
from egalitarian.integrations.lightning import EGDCallback

class Differing(Classifier):  # every process observes another metric
    def validation_step(self, batch, index):
        self.log("val_acc", 0.1 if self.trainer.global_rank == 0 else 0.99, sync_dist=False)

egd = EGDCallback(until=Until(0.95), monitor="val_acc", shard="owners")
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, callbacks=[egd], **quiet)

class Report(lightning.Callback):
    def on_train_end(self, trainer, module):
        owners = "rank 1 of 2 replicas" in str(egd.attachments[0].plan)
        weight = float(module.net[0].weight.sum())
        print(f"process {trainer.global_rank}: {egd.attachments[0].state_dict()['step']} {owners} {weight:.9f}", flush=True)

trainer.callbacks.insert(0, Report())
trainer.fit(Differing(), loader(), loader())
os._exit(0)  # a DDP module holds gloo's threads, which abort at exit now and then
"""


def test_two_processes_with_different_metrics_stay_replicas() -> None:
    """The first one decides for both, and the matrices are divided."""
    Path("two.py").write_text(DDP, encoding="utf-8")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "hosts"), str(ROOT / "tests" / "helpers")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "two.py"], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = dict(re.findall(r"process (\d): (.*)", done.stdout))
    assert set(told) == {"0", "1"}, done.stdout
    assert told["0"] == told["1"]
    assert " True " in told["0"]
