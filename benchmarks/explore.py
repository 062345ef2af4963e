"""What `egalitarian explore` costs a run: trained by a worker, and with the page open in a browser, in turns.

Both train the same request and store it. Seconds are those from the run's first file to its last checkpoint: training,
measuring, saving and everything for the page. The page is in headless Chromium, driven by Playwright, so this runs in the
environment of `make test-browser`.

With `--without-browser` one process trains, and its messages are on and off in turns of two seconds: what the trainer does
for the page, without server and browser. Its turns are so short that it can be measured on a busy machine, too.

    python benchmarks/explore.py [--rounds 5] [--without-browser] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import os
import queue
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from egalitarian.lab.config import Record
from egalitarian.lab.executors import WORKER, process_environment, request_json
from egalitarian.lab.explorer.messages import Outlet
from egalitarian.lab.explorer.trainer import LiveMeter, LiveRun
from egalitarian.lab.problems import Task
from egalitarian.lab.runs import Request, Store, choose_device, hardware
from egalitarian.lab.training import Ensemble, FullMeter, Meter, Stepper, train


class Case(NamedTuple):
    name: str
    method: str
    title: str
    values: dict[str, Any]
    epochs: int


SHORT = {"task.modulus": 23, "model.width": 128, "training.batch": 64, "measure.threshold": 1}
CASES = (
    Case("long epochs: EGD, addition mod 97", "egd", "EGD", {"measure.threshold": 1}, 60),
    Case("short epochs: SGD, addition mod 23", "sgd", "SGD", SHORT, 3000),
)


def plain(case: Case, runs: Path) -> None:
    request = Request("addition-97", case.method, (0,), "cpu", 1, runs, values=case.values, epochs=case.epochs)
    subprocess.run(
        WORKER, input=request_json(request), text=True, env=process_environment(0), check=True, stdout=subprocess.DEVNULL
    )


def watched(case: Case, runs: Path, browser: Any) -> None:
    """The same, started on the page and watched there."""
    command = [sys.executable, "-m", "egalitarian", "explore", "--no-browser", "--device", "cpu", "--runs", str(runs)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=process_environment(0))
    assert server.stdout is not None
    address = re.findall(r"http://\S+", server.stdout.readline())[0]
    page = browser.new_page()
    page.goto(address)
    other = "SGD" if case.title == "EGD" else "EGD"
    page.locator(".q-chip", has_text=other).get_by_role("button").click()
    page.get_by_label("Most epochs").fill(str(case.epochs))
    page.get_by_label("Settings", exact=True).fill("\n".join(f"{key}={value}" for key, value in case.values.items()))
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_text("Finished.").wait_for(timeout=600_000)
    page.close()
    server.send_signal(signal.SIGINT)
    server.wait(20)


class Switched:
    """A meter that is one of two."""

    splits_time = True

    def __init__(self, plain: Meter, live: Meter) -> None:
        self.now, self.meters = plain, {"worker": plain, "watched": live}

    def wants_gradient(self, epoch: int) -> bool:
        return self.now.wants_gradient(epoch)

    def take_gradient(self, gradient: Tensor) -> None:
        self.now.take_gradient(gradient)

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        return self.now.measure(epoch)


def within(case: Case, rounds: int) -> str:
    """A row of the table: CPU milliseconds of an epoch, by turns, as medians of rounds."""
    request = Request("addition-97", case.method, (0,), "cpu", 1, Path("runs"), values=case.values)
    experiment = request.loaded
    assert isinstance(experiment.task, Task)
    ensemble = Ensemble(experiment, [0], choose_device("cpu"))
    stepper = Stepper(experiment.method(case.method), ensemble.parameters)
    page = subprocess.Popen([sys.executable, "-c", READS], stdin=subprocess.PIPE)
    assert page.stdin is not None
    outlet = Outlet(page.stdin)
    run = LiveRun(request, outlet, queue.SimpleQueue())
    meter = Switched(
        FullMeter(ensemble, stepper), LiveMeter(FullMeter(ensemble, stepper), ensemble, outlet, experiment.task)
    )
    taken: dict[str, list[float]] = {"worker": [], "watched": []}
    epochs = train(ensemble, stepper, meter=meter)
    next(epochs)
    for turn in range(2 * rounds):
        kind = ("worker", "watched", "watched", "worker")[turn % 4]
        meter.now = meter.meters[kind]
        began, used, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < TURN:
            epoch = next(epochs)
            if kind == "watched":
                run.epoch([], epoch.records)
            count += 1
        taken[kind].append((time.process_time() - used) / count * 1000)
    outlet.close()
    page.stdin.close()
    page.wait(10)
    return row(case, taken, "ms")


TURN = 2.0
READS = "import sys; [None for _ in sys.stdin.buffer]"
"""A page that reads all messages."""


def row(case: Case, taken: Mapping[str, Sequence[float]], unit: str) -> str:
    worker, there = (statistics.median(taken[kind]) for kind in ("worker", "watched"))
    ratios = [two / one - 1 for one, two in zip(taken["worker"], taken["watched"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    span = f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
    return f"| {case.name} | {worker:.2f} {unit} | {there:.2f} {unit} | {span} |"


def seconds(runs: Path) -> float:
    """From the run's first file to its last checkpoint."""
    (stored,) = Store(runs).all()
    assert stored.newest is not None
    return stored.newest.path.stat().st_mtime - (stored.folder / "spec.json").stat().st_mtime


def measure(case: Case, rounds: int, browser: Any) -> str:
    """A row of the table: seconds of whole runs, as medians of rounds."""
    taken: dict[str, list[float]] = {"worker": [], "watched": []}
    for turn in range(rounds):
        for kind in ("worker", "watched") if turn % 2 else ("watched", "worker"):
            with tempfile.TemporaryDirectory() as folder:
                runs = Path(folder) / "runs"
                if kind == "worker":
                    plain(case, runs)
                else:
                    watched(case, runs, browser)
                taken[kind].append(seconds(runs))
                print(f"{time.strftime('%X')} {case.name}, {kind}: {taken[kind][-1]:.2f} s", flush=True)
    return row(case, taken, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-browser", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if arguments.without_browser:
        rows = [within(case, arguments.rounds) for case in CASES]
        how = "CPU time of an epoch in one process, without server and browser"
    else:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            options = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            rows = [measure(case, arguments.rounds, browser) for case in CASES]
        how = "With the page in headless Chromium"
    machine, day = hardware(choose_device("cpu")), datetime.date.today().isoformat()
    lines = [f"{machine}, {os.cpu_count()} cores, {day}. {how}. Medians of {arguments.rounds} rounds, in turns.", ""]
    lines += ["| run | worker | watched | slower by (quartiles) |", "|---|---|---|---|", *rows]
    print("\n".join(lines))
    if arguments.save:
        kind = "-without-browser" if arguments.without_browser else ""
        short = "-".join(re.findall(r"[a-z0-9]+", str(machine).lower())[:2])
        target = Path(__file__).parent / "results" / f"explore{kind}_{short}_{day}.md"
        target.write_text("\n".join(["# What the explorer costs a run", "", *lines, ""]))


if __name__ == "__main__":
    main()
