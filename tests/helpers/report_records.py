"""Made-up runs: records as the lab writes them, which pass at epochs that a test chooses. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from egalitarian.lab.analysis import RunSummary
from egalitarian.lab.config import SKETCH, Experiment, Run, catalog, encode, is_snapshot
from egalitarian.lab.runs import Outcome, Record, Store, Stored
from egalitarian.lab.runs.files import RECORDS

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
    old: bool = False,
    **about: Any,
) -> Stored:
    """Stores a run that passes at epoch `crossed` and stops five epochs later, or does not pass within its budget.

    Args:
        epochs: to train, with a crossing or without one.
        learnt: training accuracy by epoch.
        old: as version 1 stored it.
        about: of the environment, where it differs from `HERE`. With `polar="exact"`, a method's `auto` is exact.
    """
    loaded = catalog.load(experiment, changes) if isinstance(experiment, str) else experiment
    device = {"exact": "cpu", "fast": "cuda"}.get(about.get("polar", ""), about.get("device", HERE["device"]))
    run = Run(loaded, method, seed, device, old)
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
                if loaded.measure.fourier != "off":
                    record |= fourier_measures(epoch)
                    records[1]["snapshot"] |= {"fourier_power": a_power(epoch)}
            seconds = ms * together / 1000 * (1 + 0.1 * math.sin(epoch))
            timing = {"epoch": epoch, "training": seconds, "measuring": 0.5 * seconds, "seeds": together, "device": "cuda"}
            writer.append(records, timing)
        writer.save(last, {"parameters.output.weight": torch.zeros(1)}, range(together))
    return store.find(run)


def as_earlier(stored: Stored) -> Stored:
    """The run as earlier versions stored it: with a checksum of the records alone."""
    for checkpoint in stored.checkpoints():
        checkpoint._replace(checksums={RECORDS: checkpoint.checksums[RECORDS]}).write(checkpoint.tensors())
    return stored


def a_record(epoch: int, crossed: int | None, last: int, threshold: float = 0.95) -> Record:
    """Accuracies that rise in the logarithm of the epoch, and exceed the threshold from `crossed` on."""
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
        "displacement": encode(displacement),
    }


def fourier_measures(epoch: int) -> Record:
    learnt = epoch / (epoch + 20)
    losses = {"excluded_loss": 1 + 3 * learnt, "restricted_loss": 4 - 3 * learnt}
    return {"concentration": 0.9 * learnt, **losses, "logit_scale": 1 + epoch}


def a_power(epoch: int) -> list[float]:
    """Of 48 frequencies: the more is in the tenth, the later."""
    shares = np.full(48, 1.0)
    shares[9] += epoch
    return [float(f"{share:.6g}") for share in shares / shares.sum()]


def a_seed(crossed: int | None, epochs: int = 1000, budget: int | None = None) -> RunSummary:
    """A seed that passed at epoch `crossed`, or did not in the epochs it was trained; its budget is as many by default."""
    return RunSummary("addition-97", "egd", 0, "id", Outcome(0.95, epochs=epochs, crossed=crossed), budget or epochs)


def write_curves(store: Store) -> Store:
    """Three seeds of EGD and two of SGD on one task; one run without an epoch, and one with a single epoch."""
    for seed, crossed in enumerate([20, 60, 100]):
        write_run(store, "addition-97", "egd", seed, crossed)
    for seed in (1, 2):
        write_run(store, "addition-97", "sgd", seed, 300)
    write_run(store, "addition-79", "egd", 0, epochs=0)
    write_run(store, "addition-127", "egd", 0, epochs=1)
    return store


def write_gains(store: Store) -> Store:
    """SGD at 100, 200, 300 and EGD at 10, 20, 1000+ on two tasks; EGD alone on a third."""
    for experiment in ("addition-79", "addition-97"):
        for seed, (sgd, egd) in enumerate([(100, 10), (200, 20), (300, None)]):
            write_run(store, experiment, "sgd", seed, sgd, ms=1.0)
            write_run(store, experiment, "egd", seed, egd, ms=5.0)
    write_run(store, "addition-97", "egd-after", 0, 4, ms=5.0, hardware="another")
    write_run(store, "addition-97", "egd-rsvd-64", 0, 40, ms=2.0)
    write_run(store, "addition-97", "egd-rsvd-128", 0, 25, ms=4.0)
    write_run(store, "addition-127", "egd", 0, 7)
    write_run(store, "addition-97", "row-norm", 0, epochs=5)
    return store


def write_accuracies(store: Store) -> Store:
    """MNIST with one full-length run of EGD; shuffled labels with training accuracies 0.2, 0.3 and 0.4 on average."""
    for seed in range(3):
        write_run(store, "mnist", "adamw-decay", seed, 17)
        write_run(
            store, "mnist", "egd", seed, 6 + seed, epochs=1000 if seed == 0 else None, polar=("exact", "fast")[seed % 2]
        )
        write_run(store, "mnist", "egd-rsvd-16", seed, epochs=30, diverged=seed == 2)
        learnt = 0.2 + 0.1 * seed
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch, mean=learnt: mean + 0.1 * (-1) ** epoch)
        write_run(store, "cifar-shuffle-3", "adam-egd", seed, learnt=lambda epoch: 0.6)
        write_run(
            store, "cifar-shuffle-3", "radam", seed, learnt=lambda epoch: 0.229, epochs=40 if seed == 1 else None,
            diverged=seed == 1,
        )  # fmt: skip
    write_run(store, "cifar-shuffle-3", "radam-egd", 0, epochs=40)
    return store
