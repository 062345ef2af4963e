"""EGD under Hugging Face's Trainer: as in a plain loop, bit for bit; resumed as never stopped; mistakes are named."""

from __future__ import annotations

import copy
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from documents import ROOT, blocks, execute
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_callback import TrainerCallback
from transformers.utils import logging

import egalitarian as eg
from egalitarian.integrations.huggingface import EGDTrainerCallback

CHAIN = [eg.LowRankPolar(4), eg.GrokfastEMA(alpha=0.9, lamb=1.0)]  # randomized, and with a memory


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.x[index, :4].argmax()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(predicted.predictions, 1) == predicted.label_ids).mean())}


def trainer(folder: Path, *callbacks: TrainerCallback, compute_metrics: Any = accuracy, **settings: Any) -> Trainer:
    """Two epochs of four batches with SGD, in order, on the CPU. Settings are those of Trainer and of its arguments."""
    own = {
        name: settings.pop(name)
        for name in ("optimizers", "optimizer_cls_and_kwargs", "model", "eval_dataset")
        if name in settings
    }
    arguments = TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": 16,
            "num_train_epochs": 2,
            "learning_rate": 0.1,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "use_cpu": True,
            "disable_tqdm": True,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "train_sampling_strategy": "sequential",
            **settings,
        },
    )
    return Trainer(
        **{"model": Classifier(), "args": arguments, "train_dataset": Rows(), "eval_dataset": Rows(), **own},
        callbacks=list(callbacks),
        compute_metrics=compute_metrics,
    )


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def plain_loop(accumulate: int = 1, clip: float = 0.0, half: bool = False, egd: bool = True) -> nn.Module:
    """What the Trainer does, by hand."""
    model, rows = Classifier(), Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if egd:
        eg.attach(optimizer, model)
    x, y = rows.x, rows.x[:, :4].argmax(1)
    for number in range(8):
        part = slice(16 * (number % 4), 16 * (number % 4) + 16)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = model(x[part], y[part])["loss"]
        (loss / accumulate).backward()
        if number % accumulate == accumulate - 1:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (2, 0.0), (2, 0.01)])
def test_training_is_the_plain_loop(tmp_path: Path, half: bool, accumulate: int, clip: float) -> None:
    run = trainer(tmp_path, EGDTrainerCallback(), gradient_accumulation_steps=accumulate, max_grad_norm=clip, bf16=half)
    run.train()
    assert same(run.model, plain_loop(accumulate, clip, half))
    assert not same(run.model, plain_loop(accumulate, clip, half, egd=False))


def test_a_model_of_the_library_trains(tmp_path: Path) -> None:
    """Its plan is that of the bare model, and every step passes through EGD."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, num_key_value_heads=2, num_labels=4, pad_token_id=0)

    class Tokens(Rows):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            tokens = torch.randint(1, 16, (6,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": tokens, "labels": tokens[0] % 4}

    egd = EGDTrainerCallback(spectrum_every=1)
    run = trainer(
        tmp_path, egd, model=LlamaForSequenceClassification(config), eval_dataset=Tokens(), max_steps=2, optim="adamw_torch"
    )
    run.train_dataset = Tokens()
    run.train()
    assert egd.attachment is not None
    assert len(egd.attachment.plan.taken) == 7
    assert {len(kept) for kept in egd.attachment.spectrum().values()} == {2}


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "sgd", "rmsprop", "adagrad"])
def test_each_optimizer_of_the_trainer_steps_with_equalised_gradients(tmp_path: Path, optim: str) -> None:
    """Clipped ones: the Trainer clips, then calls `on_pre_optimizer_step`, then steps."""

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            before.append(kwargs["model"].net[2].weight.grad.clone())

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            after.append(kwargs["model"].net[2].weight.grad.clone())

    before: list[Tensor] = []
    after: list[Tensor] = []
    trainer(tmp_path, EGDTrainerCallback(), Watch(), optim=optim, max_steps=2, max_grad_norm=0.01).train()
    assert len(after) == 2
    for plain, equalised in zip(before, after, strict=True):
        assert plain.norm() <= 0.01
        assert torch.allclose(equalised, eg.polar(plain), atol=1e-6)


# an optimizer by plan


def test_the_optimizer_has_the_groups_of_the_plan(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(lambda model: eg.matrices(model, include="net.2.weight"))
    pair = egd.optimizer(torch.optim.SGD, lr=0.1, taken={"weight_decay": 0.5}, left={"weight_decay": 0.0})
    run = trainer(tmp_path, egd, optimizer_cls_and_kwargs=pair)
    run.train()
    taken, left = egd.attachment.optimizer.param_groups  # type: ignore[union-attr]
    assert [tuple(parameter.shape) for parameter in taken["params"]] == [(16, 16)]
    assert (taken["weight_decay"], left["weight_decay"], taken["lr"]) == (0.5, 0.0, 0.1)
    assert len(left["params"]) == 5


@pytest.mark.parametrize("wrong", ["sgd", torch.optim.SGD([torch.zeros(1)])])
def test_the_optimizer_must_be_a_class(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"optimizer_class must be a class, got (str|SGD); pass torch\.optim\.SGD"):
        EGDTrainerCallback().optimizer(wrong, lr=0.1)


def test_the_optimizer_must_have_its_learning_rate() -> None:
    egd = EGDTrainerCallback()
    with pytest.raises(TypeError, match="lr must be passed, got none; that of TrainingArguments has no effect here"):
        egd.optimizer(torch.optim.AdamW, taken={"lr": 0.1})
    egd.optimizer(torch.optim.AdamW, taken={"lr": 0.1}, left={"lr": 0.01})
    egd.optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.1))


def test_the_optimizer_without_its_callback_is_refused(tmp_path: Path) -> None:
    pair = EGDTrainerCallback().optimizer(torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError, match=r"callback must be in its Trainer, got none; pass Trainer\(callbacks=\[egd\]\)"):
        trainer(tmp_path, optimizer_cls_and_kwargs=pair).train()


# the switch-off


class Metrics:
    """Accuracies that a test chooses, one for each evaluation."""

    def __init__(self, *values: float) -> None:
        self.values = iter(values)

    def __call__(self, predicted: Any) -> dict[str, float]:
        return {"accuracy": next(self.values)}


def active(egd: EGDTrainerCallback) -> bool:
    assert egd.attachment is not None
    return bool(egd.attachment.state_dict()["active"])


@pytest.mark.parametrize("monitor", ["accuracy", "eval_accuracy"])
@pytest.mark.parametrize(("second", "on"), [(0.3, True), (0.96, False)])
def test_an_evaluation_switches_egd_off(tmp_path: Path, monitor: str, second: float, on: bool) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor=monitor)
    trainer(tmp_path, egd, compute_metrics=Metrics(0.1, second), eval_strategy="epoch").train()
    assert active(egd) is on
    assert f"was active={on}" in repr(egd.attachment)


def test_one_metric_decides_for_all_elements_of_a_stack(tmp_path: Path) -> None:
    class Experts(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.Parameter(torch.ones(3, 8, 8))

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return super().forward(torch.einsum("bi,kij->bj", x, self.experts), labels)

    egd = EGDTrainerCallback(
        lambda model: eg.matrices(model, include="experts", stack="experts"), until=eg.Until(0.95), monitor="accuracy"
    )
    trainer(tmp_path, egd, model=Experts(), compute_metrics=Metrics(0.96, 0.1), eval_strategy="epoch").train()
    assert egd.attachment is not None
    assert egd.attachment.state_dict()["active"] == [False] * 3


def test_the_log_says_when_egd_is_switched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    trainer(
        tmp_path, egd, compute_metrics=Metrics(0.1, 0.96), eval_strategy="epoch", log_level="info", num_train_epochs=2
    ).train()
    logging.set_verbosity_warning()  # the Trainer has set it for the process
    assert caplog.text.count("EGD switched off by eval_accuracy = 0.96") == 1


def test_each_of_several_datasets_has_its_metrics(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="hard_accuracy")
    sets = {"easy": Rows(), "hard": Rows()}
    metrics = Metrics(0.99, 0.1, 0.99, 0.2)
    trainer(tmp_path, egd, compute_metrics=metrics, eval_dataset=sets, eval_strategy="epoch").train()
    assert active(egd) is True


def test_a_metric_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="acuracy")
    with pytest.raises(ValueError, match=r"'eval_accuracy', .*, got 'acuracy'; did you mean 'eval_accuracy'"):
        trainer(tmp_path, egd, eval_strategy="epoch").train()


def test_a_metric_that_the_only_evaluation_lacks_is_named_at_the_end(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="acuracy")
    with pytest.warns(UserWarning, match=r"until got no metric: monitor must be .* did you mean 'eval_accuracy'"):
        trainer(tmp_path, egd, eval_strategy="epoch", num_train_epochs=1).train()


def test_a_rule_without_evaluations_warns(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    with pytest.warns(UserWarning, match="no effect with eval_strategy='no'; pass eval_strategy='epoch'") as caught:
        trainer(tmp_path, egd).train()
    assert caught[0].filename == __file__


# checkpoints


def test_a_checkpoint_of_other_matrices_is_refused(tmp_path: Path) -> None:
    saving = {"save_strategy": "epoch", "num_train_epochs": 1}
    trainer(tmp_path, EGDTrainerCallback(lambda model: eg.matrices(model, include="net.0.weight")), **saving).train()
    again = trainer(tmp_path, EGDTrainerCallback(), **{**saving, "num_train_epochs": 2})
    with pytest.raises(
        ValueError, match=r"differs in 'net\.2\.weight' \(not equalised then, 16 x 16 now\); load the state"
    ):
        again.train(resume_from_checkpoint=True)


def test_a_resumed_training_is_the_unbroken_one(tmp_path: Path) -> None:
    def callback() -> EGDTrainerCallback:
        return EGDTrainerCallback(transform=CHAIN, until=eg.Until(0.35, patience=2), monitor="accuracy")

    saving = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 4, "eval_strategy": "steps", "eval_steps": 1}
    shuffled = {"train_sampling_strategy": "random", "optim": "adamw_torch", "learning_rate": 0.01}
    unbroken, resumed = callback(), callback()
    whole = trainer(tmp_path / "a", unbroken, **saving, **shuffled)
    whole.train()
    (tmp_path / "a" / "checkpoint-5").rename(tmp_path / "moved")
    again = trainer(tmp_path / "b", resumed, **saving, **shuffled)
    again.train(resume_from_checkpoint=str(tmp_path / "moved"))
    assert same(whole.model, again.model)
    assert unbroken.attachment is not None
    assert resumed.attachment is not None
    one, other = unbroken.attachment.state_dict(), resumed.attachment.state_dict()
    assert one["step"] == other["step"] == 16
    assert one["active"] == other["active"]
    for name, memory in one["tensors"].items():
        for key, value in memory.items():
            assert torch.equal(value, other["tensors"][name][key])


def test_egd_that_was_off_is_off_after_resuming(tmp_path: Path) -> None:
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    first = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    trainer(tmp_path, first, compute_metrics=Metrics(0.99, 0.1), **settings).train()
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    run = trainer(tmp_path, egd, compute_metrics=Metrics(0.1, 0.1, 0.1), num_train_epochs=4, **settings)
    run.train(resume_from_checkpoint=True)
    assert active(egd) is False


def test_a_checkpoint_without_egd_warns_and_the_next_has_it(tmp_path: Path) -> None:
    settings = {"save_strategy": "epoch"}
    trainer(tmp_path, **settings).train()
    egd = EGDTrainerCallback()
    with pytest.warns(UserWarning, match="no state of this callback, so EGD starts at step 0, switched on"):
        trainer(tmp_path, egd, num_train_epochs=3, **settings).train(resume_from_checkpoint=True)
    last = EGDTrainerCallback()
    trainer(tmp_path, last, num_train_epochs=4, **settings).train(resume_from_checkpoint=True)
    assert last.attachment is not None
    assert last.attachment.state_dict()["step"] == 8


def test_restoring_callbacks_is_refused(tmp_path: Path) -> None:
    settings = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "accuracy"}
    settings |= {"load_best_model_at_end": True}
    trainer(tmp_path, EGDTrainerCallback(), EarlyStoppingCallback(3), **settings).train()
    settings |= {"restore_callback_states_from_checkpoint": True, "num_train_epochs": 3}
    with pytest.raises(ValueError, match="restore_callback_states_from_checkpoint must be False, got True"):
        trainer(tmp_path, EGDTrainerCallback(), EarlyStoppingCallback(3), **settings).train(resume_from_checkpoint=True)


# the end, and mistakes


def test_egd_leaves_with_the_training_and_a_second_starts_from_step_0(tmp_path: Path) -> None:
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    run = trainer(tmp_path, egd, compute_metrics=Metrics(0.99, 0.99, 0.1, 0.1), eval_strategy="epoch")
    run.train()
    first = egd.attachment
    assert first is not None
    assert not first.optimizer._optimizer_step_pre_hooks
    run.train()
    assert active(egd) is True
    assert egd.attachment is not first


def test_a_second_training_with_a_used_optimizer_warns(tmp_path: Path) -> None:
    """The Trainer keeps its optimizer, with its moments, and the callback starts EGD from step 0."""
    run = trainer(tmp_path, EGDTrainerCallback(), optim="adamw_torch")
    run.train()
    with pytest.warns(UserWarning, match="AdamW continues from an earlier train.*build a new Trainer"):
        run.train()


def test_a_copy_has_no_attachment(tmp_path: Path) -> None:
    class Copies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with pytest.warns(UserWarning, match="copy or pickle of this EGDTrainerCallback does not include the EGD"):
                assert copy.deepcopy(egd).attachment is None

    egd = EGDTrainerCallback()
    trainer(tmp_path, egd, Copies()).train()
    again = copy.deepcopy(egd)
    assert again.attachment is None
    assert egd.attachment is not None
    run = trainer(tmp_path, again)
    run.train()
    assert same(run.model, plain_loop())


def test_a_weight_that_the_optimizer_lacks_is_no_matter_of_egd(tmp_path: Path) -> None:
    """The Trainer leaves frozen weights out of its optimizer, so one that is unfrozen is not updated at all."""

    class Unfreezes(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            model.net[0].weight.requires_grad_(state.epoch >= 1)

    model = Classifier()
    frozen = model.net[0].weight.requires_grad_(False)
    before = frozen.clone()
    trainer(tmp_path, EGDTrainerCallback(), Unfreezes(), model=model).train()
    assert frozen.requires_grad
    assert torch.equal(frozen, before)


def test_training_can_start_again_after_an_error(tmp_path: Path) -> None:
    class Fails(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("no more")

    egd = EGDTrainerCallback()
    run = trainer(tmp_path, egd, Fails())
    with pytest.raises(RuntimeError, match="no more"):
        run.train()
    run.pop_callback(Fails)
    run.train()
    assert egd.attachment is not None
    assert egd.attachment.state_dict()["step"] == 8


def test_two_callbacks_are_refused(tmp_path: Path) -> None:
    egd = EGDTrainerCallback()
    for second in (egd, EGDTrainerCallback()):
        with pytest.raises(ValueError, match="the Trainer must have one EGDTrainerCallback, got 2; leave out the others"):
            trainer(tmp_path, egd, second).train()


def test_a_function_must_return_a_plan(tmp_path: Path) -> None:
    for wrong, name in ((None, "NoneType"), ([], "list")):
        with pytest.raises(TypeError, match=rf"plan must be a Plan, .*got {name}; return matrices\(model, ...\) from the"):
            trainer(tmp_path, EGDTrainerCallback(lambda model, wrong=wrong: wrong)).train()


def test_an_attachment_by_hand_is_refused(tmp_path: Path) -> None:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    with pytest.raises(ValueError, match="at most one attachment"):
        trainer(tmp_path, EGDTrainerCallback(), model=model, optimizers=(optimizer, None)).train()


def test_an_optimizer_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    class Replaces(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.epoch:
                run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)

    run = trainer(tmp_path, EGDTrainerCallback(), Replaces())
    with pytest.warns(UserWarning, match="did not reach the optimizer that EGD is attached to"):
        run.train()


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path, EGDTrainerCallback())
    run.args.optim = "lomo"
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)  # lomo_optim itself needs a GPU
    with pytest.raises(ValueError, match="optim must step after the backward pass, got 'lomo'"):
        run.train()


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_shards_are_refused(tmp_path: Path, kind: str) -> None:
    class Fakes(TrainerCallback):
        """As if Accelerate had been started with that strategy."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["optimizer"].accelerator_state = SimpleNamespace(distributed_type=DistributedType[kind])

    with pytest.raises(ValueError, match=f"got {kind}, which shards them; use DDP, or one device"):
        trainer(tmp_path, Fakes(), EGDTrainerCallback()).train()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"until": eg.Until(0.95)}, ValueError, r"monitor must name the metric for Until\(.*\), got None; for example"),
        ({"until": 0.95, "monitor": "accuracy"}, TypeError, "until must be an Until"),
        ({"transfrom": eg.Polar()}, TypeError, "transfrom"),
        ({"plan": eg.Polar()}, TypeError, "plan must be a Plan, .* got Polar; leave it out"),
        ({"plan": Classifier()}, TypeError, "got Classifier"),
        ({"plan": []}, TypeError, "plan must be a Plan, .* got list; leave it out"),
        ({"spectra": object()}, TypeError, "spectra must be a SpectrumWriter, got object"),
        ({"precision": "exact"}, TypeError, r"EGDTrainerCallback must be .* pass transform=Polar\(precision=...\)"),
        ({"save_with_optimizer": True}, TypeError, "got 'save_with_optimizer'; leave it out"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        EGDTrainerCallback(**settings)


def test_without_transformers_the_error_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "egalitarian.integrations.huggingface")
    with pytest.raises(ImportError, match=r"pip install 'egalitarian\[transformers\]'"):
        importlib.import_module("egalitarian.integrations.huggingface")


# the page, and the example

PAGE = ROOT / "docs" / "trainers.md"


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {block.marked.partition(": ")[2]: block for block in blocks(PAGE.read_text(encoding="utf-8"))}
    arguments = TrainingArguments("by-plan", num_train_epochs=1, report_to="none", disable_tqdm=True)
    names: dict[str, Any] = {"eg": eg, "model": Classifier(), "rows": Rows(), "accuracy": accuracy, "arguments": arguments}
    for name in ("a training that resumes", "an optimizer by plan"):
        execute(found[name], PAGE, names)
    taken, left = names["egd"].attachment.optimizer.param_groups
    assert (taken["weight_decay"], left["weight_decay"]) == (0.03, 0)
    assert (tmp_path / "out" / "checkpoint-16").is_dir()


def test_the_example_learns(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "hosts" / "huggingface_trainer.py"), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "was active=False" in done.stdout
    assert float(re.findall(r"accuracy +([\d.]+)%", done.stdout)[-1]) > 95
