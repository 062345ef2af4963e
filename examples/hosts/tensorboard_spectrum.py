"""The spectra of gradients in TensorBoard, from a loop of one's own. Then `tensorboard --logdir spectra` shows them.

python examples/hosts/tensorboard_spectrum.py [--quick]
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import egalitarian as eg
from egalitarian.integrations.tensorboard import SpectrumWriter


def main(epochs: int, folder: str = "spectra") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    egd = eg.attach(optimizer, model, until=eg.Until(0.95), spectrum_every=10)
    writer = SummaryWriter(folder)
    spectra = SpectrumWriter(writer)
    x = torch.randn(1024, 20)
    y = x[:, :3].argmax(1)
    for epoch in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        spectra.write(egd)  # once per epoch: each spectrum has the step at which it was stored
        egd.observe(accuracy)
        print(f"epoch {epoch}   accuracy {accuracy:6.1%}   EGD {'on' if egd.active else 'off'}")
    writer.close()
    name, stored = next(iter(egd.spectrum().items()))
    print(f"{name}: {len(stored)} spectra, the last {list(stored.values())[-1]}")
    print(f"to see them all: tensorboard --logdir {folder}")


if __name__ == "__main__":
    main(2 if "--quick" in sys.argv else 10)
