"""EGD in Lightning: addition mod 97 groks, and a fit that stops halfway resumes as if it had not.

python examples/hosts/lightning_module.py [--quick]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egalitarian as eg
from egalitarian.integrations.lightning import EGDCallback

P = 97


class Addition(lightning.LightningModule):
    """Learns a + b mod P from two one-hots side by side."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2 * P, 512), nn.ReLU(), nn.Linear(512, P))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_validation_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch:2}   validation {float(self.trainer.callback_metrics['val_acc']):6.1%}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(eg.matrices(self).groups(taken={"weight_decay": 0.02}), lr=4.0)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """All pairs in a random order: one half to train on, one to validate."""
    order = torch.randperm(P * P, generator=torch.Generator().manual_seed(0))
    a, b = torch.cartesian_prod(torch.arange(P), torch.arange(P))[order].T
    x = torch.cat([nn.functional.one_hot(a, P), nn.functional.one_hot(b, P)], dim=1).float()
    y, half = (a + b) % P, P * P // 2
    training, validation = TensorDataset(x[:half], y[:half]), TensorDataset(x[half:], y[half:])
    return DataLoader(training, batch_size=512, drop_last=True), DataLoader(validation, batch_size=4096)


def fit(epochs: int, checkpoint: Path | None = None) -> tuple[Addition, lightning.Trainer]:
    module = Addition()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=[EGDCallback()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, *loaders(), ckpt_path=checkpoint)
    return module, trainer


def main(epochs: int) -> None:
    whole, _ = fit(epochs)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "half.ckpt"
        _, trainer = fit(epochs // 2)
        trainer.save_checkpoint(checkpoint)
        resumed, _ = fit(epochs, checkpoint)
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"the resumed fit is bitwise the unbroken one: {same}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main(4 if "--quick" in sys.argv else 20)
