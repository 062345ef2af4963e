"""What `egalitarian explore` costs a run: trained by a worker, and with the page open in a browser, in turns.

Both train the same request and store it. Seconds are those from the run's first file to its last checkpoint: training,
measuring, saving and everything for the page. The page is in headless Chromium, driven by Playwright, so this runs in the
environment of `make test-browser`. With `--without-browser` this process takes the messages instead, and makes the charts'
data 20 times a second: that is what the page costs where cores are free for server and browser. Then CPU seconds of the
trainers are compared: on a busy machine they say more than the clock.

    python benchmarks/explore.py [--rounds 5] [--without-browser] [--save]
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from egalitarian.lab.executors import WORKER, process_environment, request_json
from egalitarian.lab.explorer import charts
from egalitarian.lab.explorer.messages import as_bytes
from egalitarian.lab.explorer.watched import Watched
from egalitarian.lab.runs import Request, Store, choose_device, hardware


class Case(NamedTuple):
    method: str
    title: str
    values: dict[str, Any]
    epochs: int


CASES = {
    "long epochs (addition mod 97)": Case("egd", "EGD", {"measure.threshold": 1}, 60),
    "short epochs (addition mod 23)": Case(
        "sgd", "SGD", {"measure.threshold": 1, "task.modulus": 23, "model.width": 128, "training.batch": 64}, 3000
    ),
}


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


def taken_here(case: Case, runs: Path, browser: Any) -> None:
    """The same without a server: this process takes the trainer's messages."""
    request = Request("addition-97", case.method, (0,), "cpu", 1, runs, values=case.values, epochs=case.epochs)
    run = Watched(request)
    run.start()
    assert run.pid is not None
    while not run.ended:
        as_bytes({"series": charts.newest(run)})
        time.sleep(1 / 20)
    assert run.state == "finished", run.text


def used() -> float:
    """CPU seconds of all processes that this one has started, and that have ended."""
    all_of_them = resource.getrusage(resource.RUSAGE_CHILDREN)
    return all_of_them.ru_utime + all_of_them.ru_stime


def seconds(runs: Path) -> float:
    """From the run's first file to its last checkpoint."""
    (stored,) = Store(runs).all()
    assert stored.newest is not None
    return stored.newest.path.stat().st_mtime - (stored.folder / "spec.json").stat().st_mtime


NO_BROWSER = "CPU seconds of trainers, imports included; the messages are taken by this process, without a browser"


def measure(rounds: int, watch: Callable[[Case, Path, Any], None], browser: Any) -> list[str]:
    """A row of the table for each case."""
    lines = []
    for name, case in CASES.items():
        taken: dict[str, list[float]] = {"worker": [], "watched": []}
        for turn in range(rounds):
            for kind in ("worker", "watched") if turn % 2 else ("watched", "worker"):
                with tempfile.TemporaryDirectory() as folder:
                    runs = Path(folder) / "runs"
                    before = used()
                    if kind == "worker":
                        plain(case, runs)
                    else:
                        watch(case, runs, browser)
                    taken[kind].append(used() - before if watch is taken_here else seconds(runs))
                    clock = f"{seconds(runs):.2f} s by the clock"
                    print(f"{time.strftime('%X')} {name}, {kind}: {taken[kind][-1]:.2f} s, {clock}", flush=True)
        worker, there = (statistics.median(taken[kind]) for kind in ("worker", "watched"))
        ratios = sorted(two / one - 1 for one, two in zip(taken["worker"], taken["watched"], strict=True))
        span = f"{ratios[0]:+.1%} to {ratios[-1]:+.1%}"
        lines.append(f"| {name} | {worker:.2f} s | {there:.2f} s | {there / worker - 1:+.1%} ({span}) |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-browser", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if arguments.without_browser:
        rows, how = measure(arguments.rounds, taken_here, None), NO_BROWSER
    else:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            options = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            rows, how = measure(arguments.rounds, watched, browser), "With the page in headless Chromium"
    machine, day = hardware(choose_device("cpu")), datetime.date.today().isoformat()
    lines = [f"{machine}, {os.cpu_count()} cores, {day}. {how}. Medians of {arguments.rounds} rounds, in turns.", ""]
    lines += ["| run | worker | watched | slower by (rounds) |", "|---|---|---|---|", *rows]
    print("\n".join(lines))
    if arguments.save:
        kind = "-without-browser" if arguments.without_browser else ""
        short = "-".join(re.findall(r"[a-z0-9]+", str(machine).lower())[:2])
        target = Path(__file__).parent / "results" / f"explore{kind}_{short}_{day}.md"
        target.write_text("\n".join(["# What the explorer costs a run", "", *lines, ""]))


if __name__ == "__main__":
    main()
