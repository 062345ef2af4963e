"""A store of made-up runs: records as the lab writes them, with crossings that a test chooses. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment, Run
from egalitarian.lab.runs.store import Record, Store, Stored
from egalitarian.lab.training.metrics import SKETCH, encode, is_snapshot

HERE = {
    "when": "2026-01-02T03:04:05+00:00",
    "egalitarian": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "safetensors": "0.8.0",
    "system": "Linux x86_64",
    "device": "cuda",
    "hardware": "NVIDIA H200",
    "threads": 1,
    "source": "0123456789abcdef",
    "commit": "0123456789ab",
}
SPECTRUM = 24


def write_run(
    store: Store,
    experiment: str | Experiment,
    method: str,
    seed: int,
    crossed: int | None = None,
    *,
    epochs: int | None = None,
    changes: Sequence[str] = (),
    ms: float = 2.0,
    together: int = 4,
    diverged: bool = False,
    learnt: Callable[[int], float] | None = None,
    **about: Any,
) -> Stored:
    """A run that passes the threshold at epoch `crossed` (and goes on for five), or not at all in `epochs` (its budget).

    With both it passes and goes on to `epochs`. `learnt`: training accuracy by epoch.
    """
    loaded = catalog.load(experiment, changes) if isinstance(experiment, str) else experiment
    run = Run(loaded, method, seed)
    last = epochs if epochs is not None else run.method.epochs if crossed is None else crossed + 6
    walk = np.random.default_rng([seed, len(method), last])
    direction = walk.normal(size=(2, SKETCH)) / math.sqrt(SKETCH)
    with store.open(run) as writer:
        writer.begin(None, {**HERE, **about, "epoch": 0, "seeds": together})
        for epoch in range(last):
            record = a_record(epoch, crossed, last, loaded.measure.threshold)
            if learnt is not None:
                record["train_accuracy"] = learnt(epoch)
            if diverged and epoch == last - 1:
                record |= dict.fromkeys(("train_loss", "test_loss", "distance", "weight_norm"), math.nan)
                direction = direction * math.nan
            records = [record]
            if is_snapshot(epoch):
                records.append({"epoch": epoch, "snapshot": a_snapshot(epoch, direction)})
            seconds = ms * together / 1000 * (1 + 0.1 * math.sin(epoch))
            timing = {"epoch": epoch, "training": seconds, "measuring": 0.5 * seconds, "seeds": together, "device": "cuda"}
            writer.append(records, timing)
        writer.save(last, {"parameters.output.weight": torch.zeros(1)}, range(together))
    return store.find(run)


def a_record(epoch: int, crossed: int | None, last: int, threshold: float = 0.95) -> Record:
    """Accuracies that rise in the logarithm of the epoch; past the threshold from `crossed` on, and never before."""
    goal = crossed if crossed is not None else 50 * last
    rise = 1 / (1 + math.exp(-6 * (math.log(epoch + 1) - math.log(goal + 1)) - math.log(19)))
    if epoch < goal:
        rise = min(rise, threshold - 0.01)
    return {
        "epoch": epoch,
        "train_loss": 4 / (epoch + 1),
        "train_accuracy": min(1.0, 0.2 + epoch / 20),
        "test_loss": 4 - 3 * rise,
        "test_accuracy": max(rise, threshold + 0.001) if crossed is not None and epoch >= crossed else rise,
        "weight_norm": 30 + math.log1p(epoch),
        "distance": 10 * math.log1p(epoch),
        "sigma_max": 0.1 / (1 + epoch) ** 0.3,
        "sigma_min": 0.0005 / (1 + epoch) ** 0.5,
        "rank": float(SPECTRUM),
        "effective_rank": 20.0,
        "active": True,
    }


def a_snapshot(epoch: int, direction: np.ndarray) -> dict[str, Any]:
    values = np.geomspace(0.1 / (1 + epoch) ** 0.3, 0.0005 / (1 + epoch) ** 0.5, SPECTRUM)
    turn = math.log1p(epoch)
    displacement = 3 * (turn * direction[0] + math.sin(turn) * direction[1])
    return {
        "singular_values": [float(f"{value:.6g}") for value in values],
        "displacement": encode(torch.tensor(displacement)),
    }
