"""What `egalitarian explore` costs a run: with and without the page open in a browser, in turns of a few seconds.

A run trains in the explorer. In turns, the page is open in headless Chromium, driven by Playwright, or closed; epochs per
second are compared. This needs the environment of `make test-browser`.

With `--without-browser` one process trains, and its messages are on and off in turns: what the trainer does for the page,
without server and browser. It compares CPU time, so it can be measured on a busy machine, too.

    python benchmarks/explore.py [--rounds 12] [--without-browser] [--save]
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
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from egalitarian.lab.config import Record
from egalitarian.lab.executors import process_environment
from egalitarian.lab.explorer.messages import Outlet
from egalitarian.lab.explorer.trainer import LiveMeter, LiveRun
from egalitarian.lab.problems import Task
from egalitarian.lab.runs import Request, choose_device, hardware
from egalitarian.lab.training import Ensemble, FullMeter, Meter, Stepper, train


class Case(NamedTuple):
    name: str
    method: str
    title: str
    values: dict[str, Any]


SHORT = {"task.modulus": 23, "model.width": 128, "training.batch": 64, "measure.threshold": 1}
CASES = (
    Case("long epochs: EGD, addition mod 97", "egd", "EGD", {"measure.threshold": 1}),
    Case("short epochs: SGD, addition mod 23", "sgd", "SGD", SHORT),
)


def watched(case: Case, rounds: int, browser: Any) -> str:
    """A row of the table: milliseconds of an epoch by the clock, as medians of rounds."""
    taken: dict[str, list[float]] = {"without": [], "watched": []}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "egalitarian", "explore", "--no-browser", "--device", "cpu", "--runs", folder]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=process_environment(0))
        assert server.stdout is not None
        address = re.findall(r"http://\S+", server.stdout.readline())[0]
        page = browser.new_page()
        page.goto(address)
        other = "SGD" if case.title == "EGD" else "EGD"
        page.locator(".q-chip", has_text=other).get_by_role("button").click()
        page.get_by_label("Most epochs").fill("1000000")
        page.get_by_label("Settings", exact=True).fill("\n".join(f"{key}={value}" for key, value in case.values.items()))
        page.get_by_role("button", name="Start", exact=True).click()
        page.get_by_text(re.compile(r"Epoch \d\d")).wait_for(timeout=120_000)
        for turn in range(2 * rounds):
            kind = ("without", "watched", "watched", "without")[turn % 4]
            page.goto(address if kind == "watched" else "about:blank")
            time.sleep(1.0)  # until it is loaded
            began, first = time.perf_counter(), epoch_of(address)
            time.sleep(2 * TURN)
            taken[kind].append((time.perf_counter() - began) / (epoch_of(address) - first) * 1000)
        page.close()
        server.send_signal(signal.SIGINT)
        server.wait(20)
    return row(case, taken, "ms")


def epoch_of(address: str) -> int:
    """Of the run on the page, without a browser."""
    with urllib.request.urlopen(address) as answer:
        return int(re.findall(r"Epoch (\d+) of", answer.read().decode())[0])


class Switched:
    """A meter that is one of two."""

    splits_time = True

    def __init__(self, plain: Meter, live: Meter) -> None:
        self.now, self.meters = plain, {"without": plain, "watched": live}

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
    taken: dict[str, list[float]] = {"without": [], "watched": []}
    epochs = train(ensemble, stepper, meter=meter)
    next(epochs)
    for turn in range(2 * rounds):
        kind = ("without", "watched", "watched", "without")[turn % 4]
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
    worker, there = (statistics.median(taken[kind]) for kind in ("without", "watched"))
    ratios = [two / one - 1 for one, two in zip(taken["without"], taken["watched"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    span = f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
    return f"| {case.name} | {worker:.2f} {unit} | {there:.2f} {unit} | {span} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
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
            rows = [watched(case, arguments.rounds, browser) for case in CASES]
        how = "Milliseconds of an epoch, with the page closed and open in headless Chromium"
    machine, day = hardware(choose_device("cpu")), datetime.date.today().isoformat()
    lines = [f"{machine}, {os.cpu_count()} cores, {day}. {how}. Medians of {arguments.rounds} rounds, in turns.", ""]
    lines += ["| run | without | with the page | slower by (quartiles) |", "|---|---|---|---|", *rows]
    print("\n".join(lines))
    if arguments.save:
        kind = "-without-browser" if arguments.without_browser else ""
        short = "-".join(re.findall(r"[a-z0-9]+", str(machine).lower())[:2])
        target = Path(__file__).parent / "results" / f"explore{kind}_{short}_{day}.md"
        target.write_text("\n".join(["# What the explorer costs a run", "", *lines, ""]))


if __name__ == "__main__":
    main()
