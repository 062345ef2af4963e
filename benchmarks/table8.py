"""Which reading of the paper explains Table 8? Its cells against those of each variant that is stored.

Train the variants first; a command resumes where it was stopped:

    for n in 1 3 4 9; do
        egalitarian run cifar-castanyer cifar-castanyer-deep cifar-wide cifar-reset cifar-filters \\
            --set task.shuffles=$n --seeds 0-1 --device cuda
        egalitarian run cifar-shuffle-$n --seeds 0-1 --device cuda
    done
    python benchmarks/table8.py [--runs runs] [--seeds 2]

Prints each cell's mean training accuracy over all epochs, then the distance from the paper's by three means: over all
epochs, over those after the first shuffle, and over the last three, which is what the code of Castanyer et al. reports.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from egalitarian.lab.config import Experiment, catalog
from egalitarian.lab.config.spec import either
from egalitarian.lab.runs import Store

SHUFFLES = (1, 3, 4, 9)
VARIANTS = ("cifar-shuffle", "cifar-castanyer", "cifar-castanyer-deep", "cifar-wide", "cifar-reset", "cifar-filters")
READINGS = ("all epochs", "after the first shuffle", "last three")


class Cell(NamedTuple):
    """One cell of Table 8, in %: the paper's number, and ours by each of `READINGS`, as means over seeds."""

    variant: str
    method: str
    shuffles: int
    paper: float
    ours: Mapping[str, float]


def curve(store: Store, experiment: Experiment, method: str, seed: int) -> list[float]:
    """Training accuracy by epoch, in %; empty if the run is not stored to its end."""
    for run in either(experiment, method, seed):
        records = [record for record in store.find(run).records() if "train_accuracy" in record]
        if len(records) >= experiment.method(method).epochs:
            return [100 * record["train_accuracy"] for record in records]
    return []


def cells(store: Store, seeds: Sequence[int]) -> Iterator[Cell]:
    """Those of which every seed is stored."""
    for variant in VARIANTS:
        for shuffles in SHUFFLES:
            paper = catalog.load(f"cifar-shuffle-{shuffles}")
            is_base = variant == "cifar-shuffle"
            experiment = paper if is_base else catalog.load(variant, [f"task.shuffles={shuffles}"])
            for method in experiment.methods:
                curves = [curve(store, experiment, method, seed) for seed in seeds]
                claim = paper.claims[method].mean_train_accuracy
                if claim is not None and all(curves):
                    parts = [(own, own[len(own) // (shuffles + 1) :], own[-3:]) for own in curves]
                    means = [statistics.fmean(map(statistics.fmean, each)) for each in zip(*parts, strict=True)]
                    yield Cell(variant, method, shuffles, 100 * claim, dict(zip(READINGS, means, strict=True)))


def show(found: Sequence[Cell]) -> None:
    variants = [variant for variant in VARIANTS if any(cell.variant == variant for cell in found)]
    print("|".join(["", " shuffles ", " method ", " the paper ", *(f" {variant} " for variant in variants), ""]))
    print("|---" * (3 + len(variants)) + "|")
    for shuffles, method, paper in dict.fromkeys((cell.shuffles, cell.method, cell.paper) for cell in found):
        ours = {
            cell.variant: cell.ours["all epochs"] for cell in found if (cell.shuffles, cell.method) == (shuffles, method)
        }
        columns = [f" {ours[variant]:.1f} " if variant in ours else " " for variant in variants]
        print("|".join(["", f" {shuffles} ", f" {method} ", f" {paper:.1f} ", *columns, ""]))
    print("\nMean distance from the paper, in points, with the number of cells\n")
    print("|".join(["", " variant ", " cells ", *(f" {reading} " for reading in READINGS), ""]))
    print("|---" * (2 + len(READINGS)) + "|")
    for variant in variants:
        for kind, is_egd in (("plain", False), ("with EGD", True)):
            own = [cell for cell in found if cell.variant == variant and cell.method.endswith("-egd") == is_egd]
            if own:
                away = [statistics.fmean(abs(cell.ours[reading] - cell.paper) for cell in own) for reading in READINGS]
                print("|".join(["", f" {variant} ", f" {len(own)} {kind} ", *(f" {each:.1f} " for each in away), ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the stored runs")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 0 on")
    options = parser.parse_args()
    found = list(cells(Store(options.runs), range(options.seeds)))
    if not found:
        raise SystemExit(f"runs must hold a variant of Table 8, got none in {options.runs}; train some as --help says")
    show(found)


if __name__ == "__main__":
    main()
