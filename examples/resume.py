"""Stop and go on: an attachment has its own state_dict, and the resumed run is the unbroken one, bit for bit.

python examples/resume.py [--quick]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import egalitarian as eg


def build() -> tuple[nn.Module, torch.optim.Optimizer, eg.Attachment]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    chain = [eg.LowRankPolar(16), eg.GrokfastEMA(alpha=0.9, lamb=1.0)]  # randomized, and with a memory
    return model, optimizer, eg.attach(optimizer, model, chain, until=eg.Until(0.99))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(32, 20, generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    unbroken, optimizer, egd = build()
    train(unbroken, optimizer, range(20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        parts = {"model": unbroken, "optimizer": optimizer, "egd": egd}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)
        train(unbroken, optimizer, range(20, 40))

        resumed, optimizer, egd = build()
        saved = torch.load(path, weights_only=True)
    for name, part in {"model": resumed, "optimizer": optimizer, "egd": egd}.items():
        part.load_state_dict(saved[name])
    train(resumed, optimizer, range(20, 40))
    same = all(torch.equal(a, b) for a, b in zip(unbroken.parameters(), resumed.parameters(), strict=True))
    print(f"the resumed run is bitwise the unbroken one: {same}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
