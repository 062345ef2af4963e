"""What executors cost: 64 small runs one after another in this process, with `--jobs 2`, and with `--jobs 2` on Ray.

Every run is a method of its own with one seed, so that each is a request of its own. Each is trained for a few epochs. What
a worker needs beyond the training is mostly the start of Python with torch. Commands are timed from start to end.
This needs the environment of `make test-cluster`.

    python benchmarks/sweeps.py [--runs 64] [--epochs 40] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from egalitarian.lab.executors import process_environment
from egalitarian.lab.runs import Store, choose_device, hardware

WAYS = {
    "this process": (1, []),
    "`--jobs 2`": (2, ["--jobs=2"]),
    "`--jobs 2 --on ray`": (2, ["--jobs=2", "--on=ray"]),
}
"""How many workers there are at a time, and the options."""
HEAD = """extends = "addition-97"
only = ["sgd"]

[task]
modulus = 23

[model]
width = 32

[training]
batch = 64
"""
METHOD = """
[methods.{name}]
title = "SGD, lr {lr}"
epochs = {epochs}
optim = {{ lr = {lr} }}
"""


def experiment(runs: int, epochs: int) -> str:
    """A file with so many methods."""
    methods = [
        METHOD.format(name=f"lr-{number}", lr=round(0.1 + 0.01 * number, 2), epochs=epochs) for number in range(runs)
    ]
    return "".join([HEAD, *methods])


def row(way: str, file: Path, runs: int) -> str:
    """A row of the table: seconds of the command, of training alone, and what a run needs of a worker beyond it."""
    workers, options = WAYS[way]
    folder = file.parent / way.strip("`").replace(" ", "")
    methods = ",".join(f"lr-{number}" for number in range(runs))
    command = [sys.executable, "-m", "egalitarian", "run", str(file), "-m", methods, "--seeds=0", "--device=cpu"]
    began = time.perf_counter()
    subprocess.run([*command, "--runs", str(folder), *options], check=True, capture_output=True, env=process_environment(0))
    seconds = time.perf_counter() - began
    stored = list(Store(folder).all())
    assert len(stored) == runs, f"{way}: {len(stored)} runs are stored"
    training = sum(run.time_spent.share or 0.0 for run in stored)
    return f"| {way} | {seconds:.0f} | {training:.0f} | {(workers * seconds - training) / runs:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        file.write_text(experiment(arguments.runs, arguments.epochs))
        rows = [row(way, file, arguments.runs) for way in WAYS]
    machine, day = hardware(choose_device("cpu")), datetime.date.today().isoformat()
    lines = [
        f"{machine}, {os.cpu_count()} cores, {day}. {arguments.runs} runs of {arguments.epochs} epochs; each command once. "
        f"Other programs ran on the same cores.",
        "",
        "| trained by | seconds | seconds of training, summed over runs | seconds of a worker beyond training, a run |",
        "|---|---|---|---|",
        *rows,
    ]
    print("\n".join(lines))
    if arguments.save:
        short = "-".join(re.findall(r"[a-z0-9]+", machine.lower())[:2])
        target = Path(__file__).parent / "results" / f"sweeps_{short}_{day}.md"
        target.write_text("\n".join(["# What executors cost", "", *lines, ""]))


if __name__ == "__main__":
    main()
