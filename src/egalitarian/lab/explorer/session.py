"""All runs of a server, which every page that is open shows: starting, queueing, ending, and the plane of their paths."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from egalitarian.lab.analysis import Plane, project
from egalitarian.lab.config import Run, SpecError
from egalitarian.lab.explorer.watched import Watched
from egalitarian.lab.runs import Request, choose_device

PATIENCE = 3.0
"""Seconds that trainers have to save their runs when the page is closed."""


class WatchedRuns:
    """All runs that were started since the server began, for every page that is open."""

    def __init__(self) -> None:
        self.runs: list[Watched] = []
        self.version = 0
        """How often runs were added or removed."""
        self._lock, self._closed = threading.Lock(), False
        self._plane: tuple[tuple[int, ...], Plane] | None = None

    def start(self, requests: Sequence[Request], *, together: bool) -> None:
        """Adds runs. They begin at once if `together`, else when no other run is training."""
        for request in requests:
            for run in self.runs:
                if not run.ended and _same(run.request, request):
                    raise SpecError(
                        f"run must not be training already, got {run.title} with the same settings and seed; stop it, or "
                        f"change the seed"
                    )
        with self._lock:
            added = [Watched(request, self._go_on) for request in requests]
            self.runs += added
            self.version += 1
        others = sum(run.trains for run in self.runs) + len(added) - 1
        for run in added if together else ():
            run.start(others)
        self._go_on()

    def again(self, run: Watched) -> None:
        """Resumes a run that was stopped or killed, with its own settings, as one that waits."""
        fresh = Watched(run.request, self._go_on)
        with self._lock:
            self.runs[self.runs.index(run)] = fresh
            self.version += 1
        self._go_on()

    def remove(self, run: Watched) -> None:
        """From the page; its files stay."""
        with self._lock:
            if run in self.runs and run.ended:
                self.runs.remove(run)
                self.version += 1

    def _go_on(self, ended: Watched | None = None) -> None:
        """Starts the next run that waits, if none is training."""
        with self._lock:
            if self._closed or any(run.trains for run in self.runs):
                return
            waiting = next((run for run in self.runs if run.state == "waiting"), None)
            if waiting is not None:
                waiting.start()

    def close(self) -> None:
        """Stops every trainer: it saves its run. One that takes longer than a few seconds is killed."""
        with self._lock:
            self._closed = True
        running = [run for run in self.runs if run.trains]
        for run in running:
            run.kill() if run.state == "starting" else run.stop()  # one that starts has nothing to save
        end = time.monotonic() + PATIENCE
        for run in running:
            if not run.wait(max(0.0, end - time.monotonic())):
                run.kill()
                run.wait(1.0)

    def plane(self) -> tuple[list[Watched], Plane] | None:
        """The paths of the newest run's experiment and seed, in the plane in which they move the most."""
        runs = [run for run in list(self.runs) if run.path]
        runs = [run for run in runs if _comparable(run.request, runs[-1].request)]
        if not runs:
            return None
        key = tuple(number for run in runs for number in (run.key, run.measured))
        if self._plane is None or self._plane[0] != key:
            columns = {}
            for run in runs:
                epochs, sketches = zip(*run.path, strict=True)
                columns[str(run.key)] = np.array(epochs, float), np.stack(sketches)
            self._plane = key, _steady(project(columns), self._plane and self._plane[1])
        return runs, self._plane[1]


def _same(one: Request, other: Request) -> bool:
    return _run(one).id == _run(other).id


def _run(request: Request) -> Run:
    return Run(request.loaded, request.method, request.seeds[0], choose_device(request.device).type)


def _comparable(one: Request, other: Request) -> bool:
    """Whether both start from the same weights, so that their paths belong into one plane."""
    first, second = ((each.loaded.task, each.loaded.model, each.seeds) for each in (one, other))
    return first == second


def _steady(plane: Plane, before: Plane | None) -> Plane:
    """With the signs of its axes so chosen that paths do not jump from one picture to the next."""
    name = next((name for name in plane.trajectories if before is not None and name in before.trajectories), None)
    if before is None or name is None:
        return plane
    now, known = plane.trajectories[name], before.trajectories[name]
    _, here, there = np.intersect1d(now.epochs, known.epochs, return_indices=True)
    signs = np.where((now.points[here] * known.points[there]).sum(0) < 0, -1.0, 1.0)
    moved = {name: each._replace(points=each.points * signs) for name, each in plane.trajectories.items()}
    return plane._replace(trajectories=moved)
