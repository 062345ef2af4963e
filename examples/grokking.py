"""Grokking, and its end: addition mod 97, with plain SGD and with egalitarian gradients.

A two-layer network learns a + b mod 97 from half of all pairs. SGD fits them within some epochs and then sits at chance on
the other half for thousands; EGD does not. Each method runs until its test accuracy passes 95 %.

    python examples/grokking.py                  # EGD alone: seconds
    python examples/grokking.py --all --seeds 3  # every method, also SGD as in the paper: minutes

`egalitarian grok` does the same with more seeds at once, stored runs and a picture.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

import egalitarian as eg

P, WIDTH, BATCH, EPOCHS = 97, 512, 512, 8000
PAST = 5  # epochs above 95 % to go on for
Method = tuple[torch.optim.Optimizer, Callable[[float], object]]
"""An optimizer, and what is to be told the test accuracy after each epoch."""


def data(seed: int) -> tuple[Tensor, Tensor, int]:
    """All pairs, shuffled, as two one-hots side by side; the sum mod P; the size of the training half."""
    a, b = torch.cartesian_prod(torch.arange(P), torch.arange(P)).T
    x = torch.cat([nn.functional.one_hot(a, P), nn.functional.one_hot(b, P)], dim=1).float()
    order = torch.randperm(P * P, generator=torch.Generator().manual_seed(seed))
    return x[order], ((a + b) % P)[order], P * P // 2


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2 * P, WIDTH), nn.ReLU(), nn.Linear(WIDTH, P, bias=False))
    nn.init.normal_(model[0].weight, std=(2 / (2 * P)) ** 0.5)
    nn.init.normal_(model[2].weight, std=(2 / WIDTH) ** 0.5)
    nn.init.zeros_(model[0].bias)
    return model


def weights_decayed(model: nn.Sequential, lr: float, decay: float) -> torch.optim.SGD:
    """As in the paper's code: decay on both weight matrices, none on the bias."""
    groups = [{"params": [model[0].weight, model[2].weight], "weight_decay": decay}, {"params": [model[0].bias]}]
    return torch.optim.SGD(groups, lr=lr)


def sgd(lr: float, decay: float) -> Callable[[nn.Sequential], Method]:
    return lambda model: (weights_decayed(model, lr, decay), lambda accuracy: None)


def egd_decay_before(model: nn.Sequential) -> Method:
    """The paper's EGD: the hidden layer's decay goes into the gradient before it is equalised."""
    groups = [{"params": [model[2].weight], "weight_decay": 1e-4}, {"params": list(model[0].parameters())}]
    optimizer = torch.optim.SGD(groups, lr=0.7)
    return optimizer, eg.attach(optimizer, model, decay_before=1e-4, until=eg.Until(0.95)).observe


def egd_decay_after(model: nn.Sequential) -> Method:
    """Ours: the optimizer's own weight decay, on the scale of an equalised step, for the equalised matrix.

    No switch-off: a plain gradient is far smaller than an equalised one, and so large a decay would win over it.
    """
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}, left={"weight_decay": 1e-4}), lr=3.0)
    eg.attach(optimizer, plan)
    return optimizer, lambda accuracy: None


METHODS: dict[str, Callable[[nn.Sequential], Method]] = {
    "SGD, as in the paper": sgd(0.7, 1e-4),
    "SGD, lr 5": sgd(5.0, 1e-3),
    "EGD, as in the paper": egd_decay_before,
    "EGD, decay after, lr 3": egd_decay_after,
}


def train(method: str, seed: int, epochs: int, device: str) -> list[tuple[float, float]]:
    """(train accuracy, test accuracy) by epoch, up to a few epochs past 95 % test accuracy."""
    x, y, half = data(seed)
    x, y, model = x.to(device), y.to(device), network(seed).to(device)
    optimizer, observe = METHODS[method](model)
    batches = torch.Generator().manual_seed(seed)
    history: list[tuple[float, float]] = []
    while len(history) < epochs and sum(test > 0.95 for _, test in history) < PAST:
        for indices in torch.randperm(half, generator=batches).to(device).split(BATCH)[: half // BATCH]:
            nn.functional.cross_entropy(model(x[indices]), y[indices]).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            right = (model(x).argmax(1) == y).float()
        history.append((right[:half].mean().item(), right[half:].mean().item()))
        observe(history[-1][1])
    return history


def crossing(history: list[tuple[float, float]]) -> int | None:
    return next((epoch for epoch, (_, test) in enumerate(history) if test > 0.95), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--all", action="store_true", help="SGD, too: minutes")
    options = parser.parse_args()
    methods = list(METHODS) if options.all else ["EGD, as in the paper", "EGD, decay after, lr 3"]
    runs = {}
    for method in methods:
        runs[method] = [
            train(method, seed, 2 if options.quick else EPOCHS, options.device) for seed in range(options.seeds)
        ]
        crossings = [crossing(history) for history in runs[method]]
        passed = [epoch for epoch in crossings if epoch is not None]
        middle = f"median epoch {statistics.median(passed):g} of {sorted(passed)}" if passed else "not reached"
        quick = " (quick: 2 epochs)" if options.quick else ""
        print(f"{method:<24} 95 % test accuracy: {middle}, {len(passed)} of {options.seeds} seeds{quick}", flush=True)


if __name__ == "__main__":
    main()
