"""A process that trains one request, shows it to the page through messages, and obeys the page between two epochs.

It stores the run as `egalitarian run` does. When a setting changes, the stored run ends at that epoch, and a recording goes
on from there. Without a page it stops by itself.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from egalitarian.lab.config import Method, Record, Run, encode, everything, load
from egalitarian.lab.explorer.messages import Message, Outlet, Trace, read_messages
from egalitarian.lab.problems import DataError, Task
from egalitarian.lab.runs import (
    Interrupted,
    Progress,
    Request,
    RunRecording,
    Stop,
    Store,
    StoreError,
    choose_device,
    configure_process,
    interrupts,
    message_of,
    meter_of,
    restore,
    states_of,
    train_requests,
)
from egalitarian.lab.training import Ensemble, Meter, Sketch, Stepper, fourier_power, singular_values, train

EVERY = 1.0
"""Seconds between two looks at the weights."""
SHARE = 0.02
"""Of the time may go into such looks: where one takes long, they are rarer."""
MOST_VALUES = 256
"""Singular values that are sent of one gradient, evenly chosen."""
PATIENCE = 10.0
"""Seconds until a trainer whose page is gone ends in the middle of an epoch."""


class LiveMeter:
    """Another meter, with a look at gradient and weights about once a second. Its records are those of the other."""

    def __init__(self, meter: Meter, ensemble: Ensemble, outlet: Outlet, task: Task) -> None:
        self._meter, self._ensemble, self._outlet, self._task = meter, ensemble, outlet, task
        self._sketch: Sketch | None = None
        self.splits_time = meter.splits_time
        self._next, self._cost, self._looks = 0.0, 0.0, False
        self._values: Tensor | None = None

    def wants_gradient(self, epoch: int) -> bool:
        self._looks = time.monotonic() >= self._next
        self._passes_on = self._meter.wants_gradient(epoch)
        return self._passes_on or self._looks

    def take_gradient(self, gradient: Tensor) -> None:
        if self._passes_on:
            self._meter.take_gradient(gradient)
        if self._looks:
            began = time.perf_counter()
            self._values = singular_values(gradient)[0].cpu()
            self._cost = time.perf_counter() - began

    def measure(self, epoch: int) -> tuple[list[list[Record]], Tensor]:
        measured = self._meter.measure(epoch)
        if self._looks:
            began = time.perf_counter()
            self._look(epoch)
            cost = self._cost + time.perf_counter() - began
            self._next = time.monotonic() + max(EVERY, cost / SHARE)
        return measured

    @torch.no_grad()
    def _look(self, epoch: int) -> None:
        ensemble, values = self._ensemble, self._values
        if self._sketch is None:
            self._sketch = Sketch(ensemble.parameters)
        self._outlet.offer(
            epoch=epoch,
            singular_values=None if values is None else _thinned(values),
            fourier=_power(self._task, ensemble),
            sketch=encode(self._sketch(ensemble.parameters, ensemble.start)[0].tolist()),
        )


def _power(task: Task, ensemble: Ensemble) -> list[float] | None:
    """The share of each frequency in the weight that reads a modular task's numbers; None where there is none."""
    group, weight = task.group, ensemble.reading
    if group is None or weight is None:
        return None
    columns = weight.shape[-1] // group.modulus * group.modulus
    return _rounded(fourier_power(weight[..., :columns], group)[0].tolist()) if columns else None


def _thinned(values: Tensor) -> list[tuple[int, float]]:
    """(number, singular value), the largest first."""
    count = len(values)
    chosen = sorted({round(index) for index in torch.linspace(0, count - 1, min(count, MOST_VALUES)).tolist()})
    return list(zip([index + 1 for index in chosen], _rounded(values[chosen].tolist()), strict=True))


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def carried(saved: Mapping[str, Tensor], fresh: Mapping[str, Tensor], before: Method, after: Method) -> dict[str, Tensor]:
    """A seed's state under changed settings: what belongs to a setting that changed its kind starts as in `fresh`."""

    def optimizers(method: Method) -> list[str]:
        return [each.optimizer for each in (method.optim, method.hidden or method.optim, *method.groups.values())]

    kept = {key: value for key, value in saved.items() if not key.startswith(("optim.", "egd."))}
    for prefix, same in (
        ("optim.", optimizers(before) == optimizers(after)),
        ("egd.", before.transform == after.transform),
    ):
        kept |= {key: value for key, value in (saved if same else fresh).items() if key.startswith(prefix)}
    return kept | ({"egd.step": saved["count"]} if "egd.step" in kept else {})


class LiveRun:
    """Trains a request with the page as its listener. Commands are read after every epoch."""

    def __init__(self, request: Request, outlet: Outlet, commands: SimpleQueue[Message]) -> None:
        self._request, self._outlet, self._commands = request, outlet, commands
        self._stop = request.stages()[0][1]
        self._asked: dict[str, Any] = {}
        """Settings that are to change."""
        self._interrupted = False
        """Whether a command ends this stretch of training: the next ones wait for what follows."""

    def run(self) -> None:
        """Raises Interrupted after a stop."""
        try:
            train_requests([self._request], self, self._watch)
        except Interrupted as interrupted:
            if not self._asked:
                raise
            (progress,) = interrupted.runs
            self._record(progress)

    # what a listener does

    def stored(self, runs: Sequence[Progress], stop: Stop) -> None:
        self.begins(runs, stop)
        self.ends(runs)

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None:
        (progress,) = runs
        self._stop = stop
        curve = Trace()
        for record in Store(self._request.runs).find(progress.run).epochs():
            curve.add(_point(record))
        self._outlet.send(
            "begins",
            epoch=progress.next_epoch,
            budget=stop.epochs,
            threshold=stop.threshold,
            points=curve.points,
        )
        self._obey()

    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None:
        if records:
            self._outlet.add_point(_point(records[0][0]))
        self._obey()

    def ends(self, runs: Sequence[Progress]) -> None:
        for progress in runs:
            if progress.last is not None:
                self._outlet.send("ends", text=progress.ending_text(self._stop))

    def note(self, text: str) -> None:
        self._outlet.send("note", text=text)

    # what the page asks for

    def _obey(self) -> None:
        paused = False
        while not self._interrupted:
            try:
                command = self._commands.get(block=paused)
            except Empty:
                return
            if command["do"] in ("pause", "continue"):
                paused = command["do"] == "pause"
                self._outlet.send("state", state="paused" if paused else "running")
                continue
            self._asked = dict(command["values"]) if command["do"] == "change" else {}
            self._interrupted = True
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the run is saved

    def _watch(self, meter: Meter, ensemble: Ensemble, stepper: Stepper) -> Meter:
        task = self._request.loaded.task
        assert isinstance(task, Task)
        return LiveMeter(meter, ensemble, self._outlet, task)

    # a recording

    def _record(self, progress: Progress) -> None:
        """Trains on from the run's last checkpoint, with other settings, until the run is done or stopped."""
        if progress.done(self._stop):
            self.note("The run had ended before the settings could change; start another run.")
            return
        run, request = progress.run, self._request
        stored = Store(request.runs).find(run)
        assert stored.newest is not None
        state, method = stored.newest.tensors(), run.method
        about = {"experiment": run.experiment.name, "method": run.method_name, "seed": run.seed}
        about |= {"values": dict(request.values), "settings": everything(method)}
        recording = RunRecording.begin(request.runs, about, stored.epochs())
        values: dict[str, Any] = {}
        with interrupts() as interrupted:
            while self._asked and not progress.done(self._stop):
                asked, self._asked = self._asked, {}
                values |= asked
                changed = load(request.experiment, methods=[request.method], values={**request.values, **values})
                recording.append([{"epoch": progress.next_epoch, "change": asked}])
                self._outlet.send("recording", path=str(recording.path), epoch=progress.next_epoch, values=asked)
                now = Run(changed, request.method, run.seed, run.device)
                interrupted.clear()
                self._interrupted = False
                state = self._train_recorded(progress, now, recording, carried_from=(state, method), until=interrupted)
                method = now.method
        if progress.done(self._stop):
            self.ends([progress])
        else:
            raise Interrupted

    def _train_recorded(
        self,
        progress: Progress,
        run: Run,
        recording: RunRecording,
        *,
        carried_from: tuple[Mapping[str, Tensor], Method],
        until: threading.Event,
    ) -> dict[str, Tensor]:
        """One stretch with the same settings. Returns the state at its end."""
        saved, before = carried_from
        ensemble = Ensemble(run.experiment, [run.seed], choose_device(self._request.device))
        stepper = Stepper(run.method, ensemble.parameters, run.experiment.training.warmup)
        restore(ensemble, stepper, [carried(saved, stepper.states()[0], before, run.method)])
        meter = meter_of(run, ensemble, stepper, self._watch)
        lines: list[Record] = []
        written = time.monotonic()
        for epoch in train(ensemble, stepper, progress.next_epoch, meter=meter):
            (records,) = epoch.records
            for record in records:
                progress.take(record)
            lines += [record for record in records if "snapshot" not in record]
            self.epoch([progress], [records])
            over = until.is_set() or progress.done(self._stop)
            if over or time.monotonic() - written > EVERY:
                recording.append(lines)
                lines, written = [], time.monotonic()
            if over:
                break
        return states_of(ensemble, stepper)[0]


def _point(record: Record) -> tuple[int, float, float]:
    """Accuracies to four digits: a chart shows three."""
    train, test = (record.get(f"{part}_accuracy") for part in ("train", "test"))
    return record["epoch"], *(round(value, 4) if value is not None else float("nan") for value in (train, test))


def _obey_page(file: Iterable[bytes], commands: SimpleQueue[Message]) -> None:
    """Passes commands on. When the page is gone, the run stops, in the middle of an epoch if need be."""
    for command in read_messages(file):
        commands.put(command)
    commands.put({"do": "stop"})
    time.sleep(PATIENCE)
    os._exit(1)


def main() -> int:
    """Trains the request on the first line of standard input, and returns the exit status."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print must not be taken for messages
    outlet = Outlet(output)
    try:
        page = io.FileIO(sys.stdin.fileno(), closefd=False)  # a buffer's lock would be held by the thread at the end
        request = Request.from_json(json.loads(page.readline()))
        commands: SimpleQueue[Message] = SimpleQueue()
        threading.Thread(target=_obey_page, args=(page, commands), daemon=True).start()
        configure_process(request.threads, request.data)
        LiveRun(request, outlet, commands).run()
    except Interrupted:
        outlet.send("state", state="stopped")
    except (StoreError, DataError, ImportError, ValueError, OSError) as error:
        outlet.send("error", text=message_of(error))
        return 2
    finally:
        outlet.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # all is stored: the interpreter's own end takes a second, which Ctrl-C would wait for
