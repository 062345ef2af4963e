"""Writes results/provisional/: runs that the report in results/ does not have yet, and the curves of some.

summary.csv has a row per run. curves.csv.gz has the accuracies and losses of every epoch of the points that the README
quotes. Reads stored runs and trains nothing. Train them first (a quarter of an hour on a GPU; MNIST is needed):

    egalitarian run grokking -m all
    egalitarian run addition-97 multiplication-97 parity-3 -m adamw
    egalitarian run output order addition-97-validation addition-97-decay-after mnist-fine
    egalitarian run parity-2-hinge parity-3-hinge parity-4-hinge --jobs 8
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from pathlib import Path

from egalitarian.lab.analysis import gather
from egalitarian.lab.config import catalog
from egalitarian.lab.report import to_csv
from egalitarian.lab.runs import Store

FOLDER = Path(__file__).parents[1] / "results" / "provisional"
USUAL = (
    "addition-97-decay-after",
    "addition-97-validation",
    "mnist-fine",
    "order",
    "output",
    "parity-2-hinge",
    "parity-3-hinge",
    "parity-4-hinge",
)
"""Of these the methods trained by default, without curves: the report has some of them from a CPU, others not at all."""
POINTS = {
    "grokking": tuple(catalog.load("grokking").methods),
    "addition-97": ("adamw",),
    "multiplication-97": ("adamw",),
    "parity-3": ("adamw",),
}
"""Of these, curves too."""
SEEDS = range(8)
MEASURES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the stored runs")
    store = Store(parser.parse_args().runs)
    FOLDER.mkdir(exist_ok=True)
    methods_of = {**POINTS, **{name: catalog.load(name).usual for name in USUAL}}
    found = gather(store, tuple(methods_of))
    stored = {
        (run.experiment, run.method, run.seed): reading.stored
        for run, reading in zip(found.runs, found.readings, strict=True)
    }
    kept = [run for run in found.runs if run.method in methods_of[run.experiment] and run.seed in SEEDS]
    wanted = sum(len(methods) for methods in methods_of.values()) * len(SEEDS)
    if len(kept) != wanted:
        raise SystemExit(f"{wanted} runs must be stored, got {len(kept)}; train them as this file says")
    (FOLDER / "summary.csv").write_text(to_csv([run.csv_row() for run in kept]), encoding="utf-8")
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(["experiment", "method", "seed", "epoch", *MEASURES])
    for name, methods in POINTS.items():
        for method in methods:
            for seed in SEEDS:
                for record in stored[name, method, seed].records():
                    if "snapshot" not in record:
                        row = [f"{record[measure]:.5g}" for measure in MEASURES]
                        table.writerow([name, method, seed, record["epoch"], *row])
    data = gzip.compress(lines.getvalue().encode(), mtime=0)
    (FOLDER / "curves.csv.gz").write_bytes(data)
    print(f"{len(kept)} runs, {len(data) / 1e6:.2f} MB of curves")


if __name__ == "__main__":
    main()
