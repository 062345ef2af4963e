"""Spectra in TensorBoard: those that were stored, once, at their steps; from any loop, Lightning and the Trainer."""

from __future__ import annotations

import importlib
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from documents import ROOT, blocks, execute, namespace
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments
from transformers.integrations import TensorBoardCallback

import egalitarian as eg
from egalitarian.integrations.huggingface import EGDTrainerCallback
from egalitarian.integrations.lightning import EGDCallback
from egalitarian.integrations.tensorboard import SpectrumWriter


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"histograms": 0})
    events.Reload()
    return events


def scalars(folder: Path, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in read(folder).Scalars(tag)}


def trained(steps: int, **settings: Any) -> tuple[eg.Attachment, Callable[[], None]]:
    """An attachment after some steps, and one more step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, spectrum_every=2, **settings)
    x = torch.randn(16, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    for _ in range(steps):
        step()
    return egd, step


def test_what_is_written_is_what_was_stored(tmp_path: Path) -> None:
    egd, _ = trained(5)
    writer = SummaryWriter(str(tmp_path))
    SpectrumWriter(writer).write(egd)
    writer.close()
    stored = egd.spectrum()["0.weight"]
    assert list(stored) == [0, 2, 4]
    for what in ("condition", "effective_rank"):
        expected = {step: float(getattr(each, what)) for step, each in stored.items()}
        assert scalars(tmp_path, f"egd/0.weight/{what}") == pytest.approx(expected)
    assert scalars(tmp_path, "egd/0.weight/largest") == pytest.approx({n: float(s.values[0]) for n, s in stored.items()})
    assert scalars(tmp_path, "egd/active") == {4: 1.0}
    histograms = read(tmp_path).Histograms("egd/0.weight/log10_share")
    assert [event.step for event in histograms] == [0, 2, 4]
    smallest = float((stored[0].values[-1] / stored[0].values[0]).log10())
    assert histograms[0].histogram_value.min == pytest.approx(smallest)
    assert histograms[0].histogram_value.max == 0.0


def test_each_spectrum_is_written_once_and_the_switch_each_time(tmp_path: Path) -> None:
    egd, step = trained(3)
    writer = SummaryWriter(str(tmp_path))
    spectra = SpectrumWriter(writer)
    spectra.write(egd)
    spectra.write(egd)
    egd.off()
    step()
    step()
    spectra.write(egd, "egd")
    other, _ = trained(1)
    spectra.write(other, "other")
    writer.close()
    assert [event.step for event in read(tmp_path).Scalars("egd/0.weight/condition")] == [0, 2, 4]
    assert scalars(tmp_path, "egd/active") == {2: 1.0, 4: 0.0}
    assert scalars(tmp_path, "other/active") == {0: 1.0}


def test_a_stack_has_medians_and_the_share_that_is_on(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    egd = eg.attach(optimizer, eg.matrices({"w": weight}, include="w", stack=True), spectrum_every=1)
    weight.grad = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    egd.off([True, False, False])
    writer = SummaryWriter(str(tmp_path))
    SpectrumWriter(writer).write(egd)
    writer.close()
    median = float(egd.spectrum()["w"][0].condition.median())
    assert scalars(tmp_path, "egd/w/condition") == pytest.approx({0: median})
    assert scalars(tmp_path, "egd/active") == pytest.approx({0: 2 / 3})


def test_a_gradient_of_zeros_has_no_shares(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    egd = eg.attach(optimizer, eg.matrices({"w": weight}, include="w"), spectrum_every=1)
    weight.grad = torch.zeros(3, 2)
    optimizer.step()
    writer = SummaryWriter(str(tmp_path))
    with caplog.at_level(logging.ERROR):
        SpectrumWriter(writer).write(egd)
    writer.close()
    assert math.isnan(scalars(tmp_path, "egd/w/condition")[0])
    assert scalars(tmp_path, "egd/w/effective_rank") == {0: 0.0}
    assert not read(tmp_path).Tags()["histograms"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"writer must be a SummaryWriter, got str; pass SummaryWriter\('spectra'\)"):
        SpectrumWriter("runs")  # type: ignore[arg-type]
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(RuntimeError, match="spectrum_every=0"):
        SpectrumWriter(SummaryWriter(str(tmp_path))).write(egd)
    with pytest.raises(TypeError, match="egd must be an Attachment, got SGD; pass what attach returned"):
        SpectrumWriter(SummaryWriter(str(tmp_path))).write(egd.optimizer)  # type: ignore[arg-type]


def test_two_attachments_with_one_tag_warn(tmp_path: Path) -> None:
    (first, _), (second, step) = trained(1), trained(1)
    spectra = SpectrumWriter(SummaryWriter(str(tmp_path)))
    spectra.write(first)
    with pytest.warns(UserWarning, match=r"tag must differ between attachments, got a second one with 'egd'.*tag=\.\.\."):
        spectra.write(second)
    step()
    step()
    spectra.write(second)  # said once


# trainers


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers")
def test_lightning_writes_through_its_logger(tmp_path: Path) -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return self.net(batch[0]).square().sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    logger = TensorBoardLogger(str(tmp_path), name="", version="run")
    egd = EGDCallback(spectrum_every=2, spectra=SpectrumWriter(logger.experiment))
    settings: Any = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"log_every_n_steps": 1}
    fit = lightning.Trainer(max_epochs=2, logger=logger, callbacks=[egd], enable_checkpointing=False, **settings)
    fit.fit(Module(), DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=16))
    logger.experiment.flush()
    assert list(scalars(tmp_path / "run", "egd/net.0.weight/condition")) == [0, 2, 4]
    assert scalars(tmp_path / "run", "egd/active") == {2: 1.0, 4: 1.0}


def test_the_trainer_writes_beside_its_own_callback(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.net(x).square().sum()}

    class Rows(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 96

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"x": torch.randn(4, generator=torch.Generator().manual_seed(index))}

    writer = SummaryWriter(str(tmp_path))
    egd = EGDTrainerCallback(spectrum_every=2, spectra=SpectrumWriter(writer))
    arguments: Any = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    arguments |= {"per_device_train_batch_size": 16, "num_train_epochs": 1, "logging_steps": 3, "optim": "sgd"}
    run = Trainer(Model(), TrainingArguments(str(tmp_path), **arguments), train_dataset=Rows())
    run.add_callback(egd)
    run.add_callback(TensorBoardCallback(writer))
    run.train()
    writer.flush()
    assert list(scalars(tmp_path, "egd/net.0.weight/condition")) == [0, 2, 4]
    assert "train/loss" in read(tmp_path).Tags()["scalars"]


def test_without_tensorboard_the_error_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delitem(sys.modules, "egalitarian.integrations.tensorboard")
    with pytest.raises(ImportError, match=r"pip install 'egalitarian\[tensorboard\]'"):
        importlib.import_module("egalitarian.integrations.tensorboard")


# the page, and the example

PAGE, LOOP = ROOT / "docs" / "trainers.md", "a loop"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {block.marked: block for block in blocks(PAGE.read_text(encoding="utf-8"))}
    names = namespace()
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    execute(found[f"tests/hosts/{Path(__file__).name}: {LOOP}"], PAGE, names)
    assert scalars(tmp_path / "spectra", "egd/active") == {0: 1.0}


def test_the_example_writes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "hosts" / "tensorboard_spectrum.py"), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert list(scalars(tmp_path / "spectra", "egd/0.weight/condition")) == [0, 10, 20, 30]
