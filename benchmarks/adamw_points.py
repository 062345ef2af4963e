"""Plain AdamW where the earlier search did not look: at EGD's learning rates and decays on MNIST and CIFAR-10.

The earlier search: docs/tuning-windows.md.

    python benchmarks/adamw_points.py --data FOLDER [--device cuda]     # three minutes on an H200

Writes results/provisional/adamw-points.csv, a row per point and seed. Accuracies are of test points (MNIST) and of training
points (CIFAR-10): this chooses nothing, it looks whether AdamW passes there at all.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import tomllib
from datetime import date
from itertools import product
from pathlib import Path

import torch

from egalitarian.lab.config import catalog
from egalitarian.lab.runs import Stop, Store, hardware, sweep

RESULTS = Path(__file__).parents[1] / "results"
FILE = RESULTS / "provisional" / "adamw-points.csv"
HEAD = ("family", "method", "lr", "decay", "seed", "crossed", "epochs", "mean_train_accuracy", "hardware", "torch", "date")
SEEDS = range(3)
GRIDS = {
    ("mnist", "adamw-decay"): ((0.016, 0.032, 0.064, 0.128), (2.0, 6.0, 18.0)),
    ("cifar", "adamw"): ((0.0005, 0.001, 0.002, 0.004), (0.09, 0.27, 0.81, 2.43)),
}
"""Learning rates and decays, by family and method; each has EGD's point among them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MNIST and CIFAR-10")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    os.environ["EGALITARIAN_DATA"] = str(options.data)
    device = torch.device(options.device)
    plan = tomllib.loads((RESULTS / "superseded" / "tuning.toml").read_text(encoding="utf-8"))["families"]
    with tempfile.TemporaryDirectory() as folder, FILE.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEAD)
        for (family, method), (rates, decays) in GRIDS.items():
            for lr, decay in product(rates, decays):
                changes = [f"methods.{method}.optim.lr={lr}", f"methods.{method}.optim.weight_decay={decay}"]
                experiment = catalog.load(plan[family]["experiment"], changes, added=plan[family]["added"])
                store, stop = Store(Path(folder)), Stop.of(experiment, method, epochs=plan[family]["budget"])
                for run in sweep(experiment, method, list(SEEDS), store, device, stop=stop):
                    records = [line for line in store.find(run.run).records() if "snapshot" not in line]
                    mean = sum(line["train_accuracy"] for line in records) / plan[family]["budget"]
                    made = (hardware(device), torch.__version__, date.today())
                    crossed = "" if run.crossed is None else run.crossed
                    table.writerow((family, method, lr, decay, run.run.seed, crossed, len(records), f"{mean:.4f}", *made))
                file.flush()
                print(family, lr, decay, "done", flush=True)


if __name__ == "__main__":
    main()
