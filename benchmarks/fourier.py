"""What the Fourier measures cost: a run with them at every epoch, and one without, epoch by epoch in turn.

Both train the same network from the same seed, and measure everything else as the lab does. A reading is the median
difference of their epochs, in the processor's time, so that other programs do not count. In snapshots there are ten
readings per decade: the last column has their share of the time of a run that is as long as the paper's.

    python benchmarks/fourier.py [--threads 1] [--epochs 20] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from egalitarian.lab.config import Experiment, catalog, is_snapshot
from egalitarian.lab.runs import hardware
from egalitarian.lab.training import Ensemble, Epoch, Fourier, FullMeter, Stepper, train

CASES = (("addition-97", "sgd"), ("addition-97", "egd"), ("multiplication-97", "egd"), ("transformer", "egd"))
WARM_UP = 2
"""Epochs that do not count."""
CPU = torch.device("cpu")


def trained(experiment: Experiment, method: str, *, measured: bool) -> Iterator[Epoch]:
    """The epochs of one seed."""
    ensemble = Ensemble(experiment, [0], CPU)
    stepper = Stepper(experiment.method(method), ensemble.parameters, experiment.training.warmup)
    meter = FullMeter(ensemble, stepper, "snapshots", Fourier(experiment, ensemble) if measured else None)
    return train(ensemble, stepper, meter=meter)


def in_turn(experiment: Experiment, method: str, epochs: int) -> tuple[float, float]:
    """Milliseconds of an epoch without them, and of a reading."""
    rivals = [trained(experiment, method, measured=measured) for measured in (False, True)]
    without, difference = [], []
    for number in range(WARM_UP + epochs):
        spent = {}
        for rival in rivals if number % 2 else rivals[::-1]:
            start = time.process_time()
            next(rival)
            spent[rival] = time.process_time() - start
        plain, measured = (spent[rival] for rival in rivals)
        if number >= WARM_UP:
            without.append(1e3 * plain)
            difference.append(1e3 * (measured - plain))
    return statistics.median(without), statistics.median(difference)


def report(epochs: int) -> str:
    head = f"{hardware(CPU)}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, {datetime.date.today()}; "
    lines = [
        "# What the Fourier measures cost",
        "",
        f"{head}one seed, processor's time, medians of {epochs} epochs in turn; `benchmarks/fourier.py`.",
        "",
        "| experiment | method | epoch without ms | a reading ms | epochs of a run | readings | share of the run |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, method in CASES:
        experiment = catalog.load(name, ["measure.fourier=epochs"])
        epoch, reading = in_turn(experiment, method, epochs)
        claim = experiment.claims[method]
        length = claim.epochs if isinstance(claim.epochs, int) else (claim.steps or 0) // (experiment.steps_per_epoch or 1)
        readings = sum(is_snapshot(number) for number in range(length + 1))
        share = readings * reading / ((length + 1) * epoch)
        lines.append(
            f"| {name} | {method} | {epoch:.1f} | {reading:.1f} | {length + 1} | {readings} | **{100 * share:.2g} %** |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    text = report(options.epochs)
    print(text)
    if options.save:
        name = "-".join(hardware(CPU).lower().split()[:2])
        path = Path(__file__).parent / "results" / f"fourier_{name}_{datetime.date.today()}.md"
        path.write_text(text)
        print(f"written to {path.relative_to(Path(__file__).parent.parent)}")


if __name__ == "__main__":
    main()
