"""EGD in Hugging Face's Trainer: a small Llama learns which of two tokens is the more frequent one.

EGD switches off once the accuracy of an evaluation is above 0.95.

python examples/hosts/huggingface_trainer.py [--quick]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForSequenceClassification, Trainer, TrainingArguments, set_seed

import egalitarian as eg
from egalitarian.integrations.huggingface import EGDTrainerCallback


class Majority(Dataset[dict[str, Tensor]]):
    """Rows of the tokens 1 and 2; the label says whether 2 is the more frequent one."""

    def __init__(self, rows: int, seed: int) -> None:
        self.tokens = torch.randint(1, 3, (rows, 15), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens == 2).sum().gt(7).long()}


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(predicted.predictions, 1) == predicted.label_ids).mean())}


def main(epochs: int) -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=3,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=2,
        pad_token_id=0,
    )
    egd = EGDTrainerCallback(until=eg.Until(0.95), monitor="accuracy")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            lr_scheduler_type="constant",
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            LlamaForSequenceClassification(config),
            arguments,
            train_dataset=Majority(1024, seed=0),
            eval_dataset=Majority(512, seed=1),
            compute_metrics=accuracy,
            callbacks=[egd],
            optimizer_cls_and_kwargs=egd.optimizer(torch.optim.AdamW, lr=3e-3, taken={"weight_decay": 0.1}),
        )
        trainer.train()
    print(egd.attachment)
    for line in trainer.state.log_history:
        if "eval_accuracy" in line:
            print(f"epoch {line['epoch']:g}   accuracy {line['eval_accuracy']:6.1%}")


if __name__ == "__main__":
    main(2 if "--quick" in sys.argv else 4)
