"""EGD with Accelerate: two micro-batches per step, clipping, and a run that is saved and loaded.

python examples/hosts/accelerate_loop.py [--quick]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import egalitarian as eg
from egalitarian.integrations.accelerate import attach_prepared


def build(accelerator: Accelerator) -> tuple[nn.Module, Any, Any, eg.Attachment]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.02}), lr=0.1, momentum=0.9)
    x = torch.randn(1024, 20)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return model, optimizer, loader, attach_prepared(accelerator, optimizer, model, plan)


def train(accelerator: Accelerator, model: nn.Module, optimizer: Any, loader: Any, epochs: int) -> None:
    for epoch in range(epochs):
        right = 0
        for x, y in loader:
            with accelerator.accumulate(model):
                output = model(x)
                accelerator.backward(nn.functional.cross_entropy(output, y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                right += int((output.argmax(1) == y).sum())
        accelerator.print(f"epoch {epoch}   accuracy {right / len(loader.dataset):6.1%}")


def main(epochs: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    whole, optimizer, loader, egd = build(accelerator)
    with tempfile.TemporaryDirectory() as folder:
        train(accelerator, whole, optimizer, loader, epochs // 2)
        accelerator.save_state(folder)
        train(accelerator, whole, optimizer, loader, epochs // 2)

        accelerator.free_memory()  # as a new process would start
        resumed, optimizer, loader, egd = build(accelerator)
        accelerator.load_state(folder)
        train(accelerator, resumed, optimizer, loader, epochs // 2)
    print(egd)
    same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    print(f"the resumed run is bitwise the unbroken one: {same}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main(2 if "--quick" in sys.argv else 10)
