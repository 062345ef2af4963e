"""How long each experiment takes on a CPU and on a GPU, as `egalitarian list` shows it.

For the methods that `egalitarian run` trains by default and the seeds 0 to 7, until each is done; training and measuring.

GPU: the seconds that the stored runs took (results/summary.csv). Runs that shared the GPU with others count in full, so
parity and CIFAR-10 take less alone. CPU: the epochs that the stored runs needed, times an epoch of each method, timed here
on one thread for a few seconds. Where a method or a seed is not stored, or data are missing, there is no number.

    python benchmarks/durations.py [--seconds 2] [--gpu-only] [--save]
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.console import Duration, Durations, Machine, load_durations
from egalitarian.lab.runs import hardware
from egalitarian.lab.training import Eager, Ensemble, FullMeter, Stepper

ROOT = Path(__file__).parent.parent
STORED = (ROOT / "results" / "summary.csv", ROOT / "results" / "provisional" / "summary.csv")
FILE = ROOT / "src" / "egalitarian" / "lab" / "console" / "durations.toml"
SEEDS = range(8)
CPU = torch.device("cpu")
Row = Mapping[str, str]


def stored(experiment: Experiment) -> dict[str, list[Row]]:
    """Of every method that is trained by default, a row of each seed; empty where one is not stored."""
    rows: dict[tuple[str, int], Row] = {}
    for path in STORED:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["experiment"] == experiment.name and row["counts"] == "yes":
                    rows[row["method"], int(row["seed"])] = row
    try:
        return {name: [rows[name, seed] for seed in SEEDS] for name in experiment.usual}
    except KeyError:
        return {}


def needed(experiment: Experiment, row: Row) -> int:
    """The epochs until the run was done: some were trained longer, to see where they end."""
    trained = int(row["epochs"])
    return min(trained, int(row["crossed"]) + 1 + experiment.measure.past) if row["crossed"] else trained


def on_gpu(experiment: Experiment) -> float | None:
    """Seconds, where all of it was trained on a GPU."""
    rows = [row for own in stored(experiment).values() for row in own]
    if not rows or any(row["device"] != "cuda" for row in rows):
        return None
    return rounded(sum(float(row["seconds"]) * needed(experiment, row) / int(row["epochs"]) for row in rows))


def on_cpu(experiment: Experiment, patience: float) -> float | None:
    """Seconds, from what an epoch takes here."""
    methods = stored(experiment)
    if not methods:
        return None
    measuring = measuring_seconds(experiment, patience)
    return rounded(
        sum(
            (training_seconds(experiment, name, patience) + measuring) * sum(needed(experiment, row) for row in rows)
            for name, rows in methods.items()
        )
    )


def measuring_seconds(experiment: Experiment, patience: float) -> float:
    """Of one epoch of one seed: accuracies, losses and the spectrum, which do not depend on the method."""
    ensemble = Ensemble(experiment, [0], CPU)
    stepper = Stepper(next(iter(experiment.methods.values())), ensemble.parameters)
    Eager(ensemble, stepper).gradients(ensemble.choices(0)[0])
    meter = FullMeter(ensemble, stepper)

    def measure() -> None:
        if experiment.measure.spectra != "snapshots":
            meter.take_gradient(stepper.gradient)
        meter.measure(7)  # an epoch without a snapshot

    return timed(measure, patience)


def training_seconds(experiment: Experiment, method: str, patience: float) -> float:
    """Of one epoch of one seed."""
    ensemble = Ensemble(experiment, [0], CPU)
    steps = Eager(ensemble, Stepper(experiment.method(method), ensemble.parameters))
    choices = endless(ensemble)

    def step() -> None:
        steps.gradients(next(choices))
        steps.update()

    return timed(step, patience) * ensemble.steps


def timed(act: Callable[[], None], patience: float) -> float:
    """Seconds of one call: the median of as many as these seconds allow, after a first one, which alone may have to do."""
    seconds: list[float] = []
    while not seconds or sum(seconds) < patience:
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:] or seconds)


def endless(ensemble: Ensemble) -> Iterator[torch.Tensor]:
    epoch = 0
    while True:
        yield from ensemble.choices(epoch)
        epoch += 1


def rounded(seconds: float) -> float:
    """To two digits: it is not known better."""
    return float(f"{seconds:.2g}")


def measure(patience: float, gpu_only: bool) -> Durations:
    before, seconds = load_durations(), {}
    for name in (*catalog.names(), *catalog.beyond()):
        experiment = catalog.load(name)
        cpu = before.of(name).cpu
        if not gpu_only:
            try:
                cpu = on_cpu(experiment, patience)
            except SpecError as error:
                print(f"{name}: not timed on the CPU: {error}")
        seconds[name] = Duration(cpu=cpu, gpu=on_gpu(experiment))
        print(f"{name}: CPU {cpu} s, GPU {seconds[name].gpu} s", flush=True)
    here = Machine(hardware=hardware(CPU), date=str(datetime.date.today()))
    return Durations(cpu=before.cpu if gpu_only else here, gpu=where_stored(seconds), seconds=seconds)


def where_stored(seconds: Mapping[str, Duration]) -> Machine:
    """The GPU, or GPUs, of the stored runs, and when these were trained."""
    experiments = [catalog.load(name) for name, took in seconds.items() if took.gpu is not None]
    rows = [row for experiment in experiments for own in stored(experiment).values() for row in own]
    days = sorted({row["when"][:10] for row in rows})
    names = sorted({row["hardware"] for row in rows})
    return Machine(hardware=", ".join(names), date=" to ".join(dict.fromkeys((days[0], days[-1]))))


def written(durations: Durations) -> str:
    lines = [
        "# Seconds that each experiment takes: the methods trained by default, the seeds 0 to 7, training and measuring.",
        "# Written by benchmarks/durations.py, which says how it is measured; `egalitarian list` shows it to one digit.",
    ]
    for device in ("cpu", "gpu"):
        machine = getattr(durations, device)
        lines += ["", f"[{device}]", f'hardware = "{machine.hardware}"', f'date = "{machine.date}"']
    for name, took in durations.seconds.items():
        known = [f"{device} = {value:g}" for device in ("cpu", "gpu") if (value := getattr(took, device)) is not None]
        lines += ["", f"[seconds.{name}]", *known] if known else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for the steps of each method")
    parser.add_argument("--gpu-only", action="store_true", help="time nothing here; keep the file's CPU numbers")
    parser.add_argument("--save", action="store_true", help="write src/egalitarian/lab/console/durations.toml")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = written(measure(options.seconds, options.gpu_only))
    print(text)
    if options.save:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
