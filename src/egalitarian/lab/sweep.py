"""Experiment x method x seeds to stored runs: goes on with what is half done, skips what is done, one company at a time."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from egalitarian.lab.ensemble import Ensemble
from egalitarian.lab.environment import environment
from egalitarian.lab.methods import Stepper
from egalitarian.lab.spec import Experiment, Run
from egalitarian.lab.store import Checkpoint, Record, Store, Writer
from egalitarian.lab.train import Epoch, train

SAVE_EVERY = 10.0
"""Seconds between checkpoints."""


@dataclass(frozen=True)
class Stop:
    """When a seed is done: at its budget, or so many epochs past the threshold; a longer one extends a stored run."""

    threshold: float
    epochs: int
    past: int

    @staticmethod
    def of(experiment: Experiment, method: str, epochs: int | None = None, past: int | None = None) -> Stop:
        measure = experiment.measure
        budget = experiment.method(method).epochs if epochs is None else epochs
        return Stop(measure.threshold, budget, measure.past if past is None else past)


@dataclass
class Progress:
    """What is known of one seed so far."""

    run: Run
    next_epoch: int = 0
    crossed: int | None = None
    """The first epoch past the threshold."""
    last: Record | None = None
    diverged: bool = False

    def take(self, record: Record, threshold: float) -> None:
        if "snapshot" in record:
            return
        self.last, self.next_epoch = record, record["epoch"] + 1
        loss, accuracy = record["train_loss"], record["test_accuracy"]
        self.diverged = loss is None or loss != loss
        if self.crossed is None and accuracy > threshold:
            self.crossed = record["epoch"]

    def done(self, stop: Stop) -> bool:
        past = self.crossed is not None and self.next_epoch > self.crossed + stop.past
        return self.diverged or past or self.next_epoch >= stop.epochs


class Listener(Protocol):
    """Whoever wants to see a sweep go on: a progress bar, a TensorBoard file."""

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None: ...
    def ends(self, runs: Sequence[Progress]) -> None: ...


class Silent:
    """No listener."""

    def begins(self, runs: Sequence[Progress], stop: Stop) -> None: ...
    def epoch(self, runs: Sequence[Progress], records: Sequence[Sequence[Record]]) -> None: ...
    def ends(self, runs: Sequence[Progress]) -> None: ...


class Interrupted(Exception):  # noqa: N818  # not an error: somebody asked
    """The sweep was asked to stop, and everything is saved."""


def sweep(
    experiment: Experiment,
    method: str,
    seeds: Sequence[int],
    store: Store,
    device: torch.device,
    *,
    stop: Stop | None = None,
    listener: Listener | None = None,
) -> list[Progress]:
    """Trains the seeds of one method until each is done; returns what is known of each, in the order given."""
    stop = stop or Stop.of(experiment, method)
    listener = listener or Silent()
    runs = [Run(experiment, method, seed) for seed in seeds]
    known = {run.seed: look_up(run, store, stop) for run in runs}
    waiting = [run for run in runs if not known[run.seed].done(stop)]
    with contextlib.ExitStack() as stack:
        writers = {run.seed: stack.enter_context(store.open(run)) for run in waiting}
        for checkpoints in _companies(writers):
            company = [known[seed] for seed in checkpoints]
            _train_company(company, writers, checkpoints, stop, device, listener)
    return [known[seed] for seed in seeds]


def look_up(run: Run, store: Store, stop: Stop) -> Progress:
    """What the store knows of a run."""
    progress = Progress(run)
    for record in store.find(run).records():
        progress.take(record, stop.threshold)
    return progress


def _companies(writers: dict[int, Writer]) -> list[dict[int, Checkpoint | None]]:
    """Which seeds go on together, each with its checkpoint: those that were together and have one at the same epoch.

    A kill may come between two seeds' checkpoints, so the newest that all members of a company have counts.
    """
    by_company: dict[tuple[int, ...], list[int]] = {}
    found = {seed: writer.checkpoints() for seed, writer in writers.items()}
    for seed, checkpoints in found.items():
        by_company.setdefault(checkpoints[0].company if checkpoints else (), []).append(seed)
    companies: list[dict[int, Checkpoint | None]] = []
    for seeds in by_company.values():
        epochs = [{checkpoint.epoch for checkpoint in found[seed]} for seed in seeds]
        common = max(set.intersection(*epochs), default=None)
        if common is None and epochs[0]:  # they have parted since: each goes on where it is
            companies += [{seed: found[seed][0]} for seed in seeds]
        else:
            companies.append(
                {seed: next((one for one in found[seed] if one.epoch == common), None) for seed in seeds}
            )
    return companies


def _train_company(
    company: list[Progress],
    writers: dict[int, Writer],
    checkpoints: dict[int, Checkpoint | None],
    stop: Stop,
    device: torch.device,
    listener: Listener,
) -> None:
    """All seeds from one epoch on; whoever is done leaves, and the others go on as a smaller company."""
    about = environment(device)
    states: list[dict[str, Tensor]] | None = []
    for progress in company:
        seed = progress.run.seed
        checkpoint = checkpoints[seed]
        writers[seed].begin(checkpoint, {**about, "epoch": 0 if checkpoint is None else checkpoint.epoch, "seeds": len(company)})
        _rewind(progress, writers[seed], checkpoint, stop)
        states = None if checkpoint is None or states is None else [*states, checkpoint.tensors()]
    listener.begins(company, stop)
    with _interrupts() as interrupted:
        while company:
            states = _until_one_is_done(company, writers, states, stop, device, listener, interrupted)
            left = [place for place, progress in enumerate(company) if not progress.done(stop)]
            listener.ends([progress for progress in company if progress.done(stop)])
            company, states = [company[place] for place in left], [states[place] for place in left]
            if interrupted.is_set() and company:
                raise Interrupted


def _until_one_is_done(
    company: list[Progress],
    writers: dict[int, Writer],
    states: list[dict[str, Tensor]] | None,
    stop: Stop,
    device: torch.device,
    listener: Listener,
    interrupted: threading.Event,
) -> list[dict[str, Tensor]]:
    """The states of all seeds once at least one is done, or somebody wants to stop; all of them saved."""
    first = company[0].run
    seeds = [progress.run.seed for progress in company]
    ensemble = Ensemble(first.experiment, seeds, device)
    stepper = Stepper(first.method, ensemble.parameters)
    if states is not None:
        _restore(ensemble, stepper, states)
    saved = time.monotonic()
    for epoch in train(ensemble, stepper, company[0].next_epoch):
        _keep(epoch, company, writers, stop, device)
        listener.epoch(company, epoch.records)
        over = interrupted.is_set() or any(progress.done(stop) for progress in company)
        if over or time.monotonic() - saved > SAVE_EVERY:
            states = _save(ensemble, stepper, [writers[seed] for seed in seeds], epoch.number + 1)
            saved = time.monotonic()
        if over:
            break
    assert states is not None
    return states


def _keep(
    epoch: Epoch, company: list[Progress], writers: dict[int, Writer], stop: Stop, device: torch.device
) -> None:
    timing = {
        "epoch": epoch.number,
        "training": epoch.training_seconds,
        "measuring": epoch.measuring_seconds,
        "seeds": len(company),
        "device": device.type,
    }
    for progress, records in zip(company, epoch.records, strict=True):
        writers[progress.run.seed].append(records, timing)
        for record in records:
            progress.take(record, stop.threshold)


def _save(ensemble: Ensemble, stepper: Stepper, writers: list[Writer], epoch: int) -> list[dict[str, Tensor]]:
    """First every seed's new checkpoint, then, when all are safe, away with the old ones."""
    states = [
        {**{f"parameters.{name}": tensor.detach()[place] for name, tensor in ensemble.parameters.items()}, **state}
        for place, state in enumerate(stepper.states())
    ]
    for writer, state in zip(writers, states, strict=True):
        writer.save(epoch, state, ensemble.seeds)
    for writer in writers:
        writer.forget(before=epoch)
    return states


def _restore(ensemble: Ensemble, stepper: Stepper, states: Sequence[dict[str, Tensor]]) -> None:
    with torch.no_grad():
        for name, parameter in ensemble.parameters.items():
            for own, state in zip(parameter, states, strict=True):
                own.copy_(state[f"parameters.{name}"])
    stepper.load([{key: value.to(ensemble.device) for key, value in state.items()} for state in states])


def _rewind(progress: Progress, writer: Writer, checkpoint: Checkpoint | None, stop: Stop) -> None:
    """Back to the checkpoint, where a company's common one is older than the seed's own."""
    progress.next_epoch, progress.crossed, progress.last, progress.diverged = 0, None, None, False
    if checkpoint is not None:
        for record in writer.records(checkpoint):
            progress.take(record, stop.threshold)
    for newer in writer.checkpoints():
        if checkpoint is None or newer.epoch > checkpoint.epoch:
            newer.path.unlink()


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the sweep after the running epoch, with everything saved; a second one ends it at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: FrameType | None) -> Any:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
