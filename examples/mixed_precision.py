"""AdamW with EGD under autocast: say which precision the gradients are computed in.

Under bf16 autocast gradients arrive as float32, but their rounding noise is bfloat16's. `compute=torch.bfloat16` raises the
cut-off above that noise, so that it is not promoted to full-strength directions.

    python examples/mixed_precision.py [--quick]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import egalitarian as eg


def main(steps: int) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = nn.Linear(256, 10).to(device)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    egd = eg.attach(optimizer, model, eg.Polar(compute=torch.bfloat16), spectrum_every=50)
    print(egd.plan)
    for step in range(steps):
        x = torch.randn(64, 256, device=device)  # 64 examples: the gradients have rank 64, the rest is noise
        with torch.no_grad():
            y = teacher(x).argmax(1)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before the step, so before equalising: it changes nothing there
        optimizer.step()
        if step % 50 == 0:
            directions = torch.linalg.svdvals(model[2].weight.grad)
            print(f"step {step}: loss {loss.item():.3f}, {int((directions > 0.5).sum())} directions of 256 move")
        optimizer.zero_grad()
    print(egd.spectrum()["2.weight"][0])


if __name__ == "__main__":
    main(60 if "--quick" in sys.argv else 300)
