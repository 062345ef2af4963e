"""Trains seeds of one method and stores them as runs: skips stored seeds, resumes unfinished ones, in batches of seeds."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from egalitarian.lab.config import OLD_VERSION, Experiment, Run, SpecError, either
from egalitarian.lab.runs.outcome import Interrupted, Listener, Outcome, Progress, Silent, Stop
from egalitarian.lab.runs.provenance import environment
from egalitarian.lab.runs.store import Store, Writer
from egalitarian.lab.training import Ensemble, Epoch, Fourier, FullMeter, Meter, Spectra, Stepper, train

SAVE_EVERY = 10.0
"""Seconds between checkpoints."""
STAY = {"cuda": 0.5}
"""The share of a batch, by device, that may be done before the others continue without it. A new capture of CUDA graphs
costs more than a few seeds that continue without being recorded. Elsewhere a seed leaves as soon as it is done."""
States = list[dict[str, Tensor]]
Watch = Callable[[Meter, Ensemble, Stepper], Meter]
"""Makes a meter that looks at the networks, too, while they train. Its records are those of the meter that it gets."""


class Trainer:
    """Trains batches of seeds. A seed that is done leaves; the others continue as a smaller batch."""

    def __init__(
        self,
        writers: Mapping[int, Writer],
        stop: Stop,
        device: torch.device,
        listener: Listener,
        watch: Watch | None = None,
    ) -> None:
        self._writers, self._stop, self._device, self._listener = writers, stop, device, listener
        self._watch = watch

    def train(self, batch: list[Progress]) -> None:
        """Trains these seeds, which are at the same epoch, until each is done. Raises Interrupted when all are saved."""
        first, states = batch[0], _load(batch)
        about = {**environment(self._device), **_tiers(first.run)}
        about |= {"epoch": first.next_epoch, "seeds": len(batch)}
        for progress in batch:
            writer, checkpoint = self._writers[progress.run.seed], progress.checkpoint
            if checkpoint is not None:  # newer checkpoints go first: they hold checksums of records that begin() cuts off
                writer.remove_other_checkpoints(checkpoint.epoch)
            writer.begin(checkpoint, about)
        with interrupts() as interrupted:
            self._listener.begins(batch, self._stop)  # a listener may interrupt: the run has a checkpoint even then
            while batch:
                states = self._train_until_some_are_done(batch, states, interrupted)
                left = [index for index, progress in enumerate(batch) if not progress.done(self._stop)]
                self._listener.ends([progress for progress in batch if progress.done(self._stop)])
                batch, states = [batch[index] for index in left], [states[index] for index in left]
                if interrupted.is_set():
                    raise Interrupted

    def _train_until_some_are_done(
        self, batch: list[Progress], states: States | None, interrupted: threading.Event
    ) -> States:
        """The states of all seeds when enough are done or there is an interrupt. Each is saved as it was when done."""
        first = batch[0].run
        ensemble = Ensemble(first.experiment, [progress.run.seed for progress in batch], self._device)
        stepper = Stepper(first.method, ensemble.parameters, first.experiment.training.warmup)
        indices = range(len(batch))
        if states is None:
            states = self._save(ensemble, stepper, indices, 0)
        else:
            restore(ensemble, stepper, states)
        meter = meter_of(first, ensemble, stepper, self._watch)
        saved = time.monotonic()
        for epoch in train(ensemble, stepper, batch[0].next_epoch, meter=meter):
            training = [index for index in indices if not batch[index].done(self._stop)]
            self._record(epoch, batch, training)
            self._listener.epoch([batch[index] for index in training], [epoch.records[index] for index in training])
            done = [index for index in indices if batch[index].done(self._stop)]
            over = interrupted.is_set() or len(done) > STAY.get(self._device.type, 0.0) * len(batch)
            if over or time.monotonic() - saved > SAVE_EVERY:
                states = self._save(ensemble, stepper, training, epoch.number + 1)
                saved = time.monotonic()
            elif newly := [index for index in training if index in done]:
                self._save(ensemble, stepper, newly, epoch.number + 1)
            if over:
                break
        return states

    def _record(self, epoch: Epoch, batch: list[Progress], training: Sequence[int]) -> None:
        timing = {
            "epoch": epoch.number,
            "training": epoch.training_seconds,
            "measuring": epoch.measuring_seconds,
            "seeds": len(batch),
            "device": self._device.type,
        }
        for index in training:
            self._writers[batch[index].run.seed].append(epoch.records[index], timing)
            for record in epoch.records[index]:
                batch[index].take(record)

    def _save(self, ensemble: Ensemble, stepper: Stepper, indices: Sequence[int], epoch: int) -> States:
        """Writes the new checkpoints of these seeds, and removes the old when all are safe. Returns the states of all."""
        states = states_of(ensemble, stepper)
        for index in indices:
            self._writers[ensemble.seeds[index]].save(epoch, states[index], ensemble.seeds)
        for index in indices:
            self._writers[ensemble.seeds[index]].remove_other_checkpoints(epoch)
        return states


def _load(batch: list[Progress]) -> States | None:
    """The states of the seeds at their checkpoints; None for a fresh start."""
    checkpoints = [progress.checkpoint for progress in batch if progress.checkpoint is not None]
    if len(checkpoints) < len(batch) or checkpoints[0].epoch == 0:
        return None
    return [checkpoint.tensors() for checkpoint in checkpoints]


def states_of(ensemble: Ensemble, stepper: Stepper) -> States:
    """By seed: the weights, and all that it needs to resume."""
    return [
        {**{f"parameters.{name}": tensor.detach()[index] for name, tensor in ensemble.parameters.items()}, **state}
        for index, state in enumerate(stepper.states())
    ]


def restore(ensemble: Ensemble, stepper: Stepper, states: States) -> None:
    """Resumes from the states of all seeds."""
    with torch.no_grad():
        for name, parameter in ensemble.parameters.items():
            for own, state in zip(parameter, states, strict=True):
                own.copy_(state[f"parameters.{name}"])
    stepper.load([{key: value.to(ensemble.device) for key, value in state.items()} for state in states])


def meter_of(run: Run, ensemble: Ensemble, stepper: Stepper, watch: Watch | None = None) -> Meter:
    """What is measured of a run, with `measure.spectra` as it is meant on the device."""
    setting = run.experiment.measure.spectra
    auto: Spectra = "snapshots" if ensemble.device.type == "cuda" else "epochs"
    fourier = Fourier.of(run.experiment, ensemble)
    meter = FullMeter(ensemble, stepper, auto if setting == "auto" else setting, fourier)
    return meter if watch is None else watch(meter, ensemble, stepper)


def _tiers(run: Run) -> dict[str, str]:
    """The tiers of the polar factors, for the environment."""
    return {"polar": ", ".join(dict.fromkeys(run.method.tiers))} if run.method.tiers else {}


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the training after the running epoch, with everything saved; a second one ends it at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: FrameType | None) -> Any:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sweep(
    experiment: Experiment,
    method: str,
    seeds: Sequence[int],
    store: Store,
    device: torch.device,
    *,
    stop: Stop | None = None,
    listener: Listener | None = None,
    watch: Watch | None = None,
) -> list[Progress]:
    """Trains the seeds of one method as a batch until each is done; returns the progress of each, in the order given.

    It is a sweep over seeds, not over hyper-parameters. Stored seeds are not trained again, unfinished ones resume.
    `watch` may look at the networks while they train; it changes no record.
    """
    stop = stop or Stop.of(experiment, method)
    listener = listener or Silent()
    runs = {seed: Run(experiment, method, seed, device.type) for seed in seeds}
    known = _look_up(runs, store, stop)
    waiting = [run for seed, run in runs.items() if not known[seed].done(stop)]
    if waiting:
        try_step(experiment, method, waiting[0].seed)
        _note_others([run for run in waiting if known[run.seed].checkpoint is None], store, listener)
    with contextlib.ExitStack() as stack:
        writers = {run.seed: stack.enter_context(store.open(run)) for run in waiting}
        if writers:
            known = _look_up(runs, store, stop)  # again, now that no other process can change them
        if done := [progress for progress in known.values() if progress.done(stop)]:
            listener.stored(done, stop)
        trainer = Trainer(writers, stop, device, listener, watch)
        try:
            batches = _batches([known[seed] for seed in writers if not known[seed].done(stop)])
            while batches:
                batch = batches.pop(0)
                if not _train_within_memory(batch, trainer, listener):
                    again = _look_up({each.run.seed: each.run for each in batch}, store, stop)
                    known |= again
                    batches = _halves([each for each in again.values() if not each.done(stop)]) + batches
        except Interrupted as interrupted:
            interrupted.runs = [known[seed] for seed in seeds]
            raise
    return [known[seed] for seed in seeds]


def _note_others(fresh: Sequence[Run], store: Store, listener: Listener) -> None:
    """Says which of the runs that are not begun were trained by an older version, or with another tier."""
    if older := sum(store.before(run) is not None for run in fresh):
        exist = "1 older record exists" if older == 1 else f"{older} older records exist"
        listener.note(
            f"{_name(fresh[0])}: {exist}, of version {OLD_VERSION}. Such records stay as they are and are not continued."
        )
    others = [other for run in fresh for other in either(run.experiment, run.method_name, run.seed) if other.id != run.id]
    if found := [other for other in others if store.is_begun(other)]:
        theirs, ours = (", ".join(dict.fromkeys(run.method.tiers)) for run in (found[0], fresh[0]))
        seeds = "1 seed is" if len(found) == 1 else f"{len(found)} seeds are"
        listener.note(
            f"{_name(fresh[0])}: {seeds} stored with the {theirs} polar factor. On this device it is the {ours} one, "
            f"which makes other runs."
        )


def _name(run: Run) -> str:
    return f"{run.experiment.name} {run.method_name}"


def read_progress(
    experiment: Experiment, method: str, seeds: Sequence[int], store: Store, device: torch.device, *, stop: Stop
) -> list[Progress]:
    """The stored progress of each seed, in the order given. Trains nothing."""
    known = _look_up({seed: Run(experiment, method, seed, device.type) for seed in seeds}, store, stop)
    return [known[seed] for seed in seeds]


def try_step(experiment: Experiment, method: str, seed: int) -> None:
    """One step of one seed on the CPU, stored nowhere: settings that cannot work fail before hours of training."""
    try:
        ensemble = Ensemble(experiment, [seed], torch.device("cpu"))
        stepper = Stepper(experiment.method(method), ensemble.parameters, experiment.training.warmup)
        ensemble.backward(ensemble.epoch(0)[0])
        stepper.add_decay()
        stepper.step()
    except SpecError as error:
        raise SpecError(f"{experiment.name}, {method}: {error}") from None
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise SpecError(
            f"{experiment.name}, {method} must train for one step, got {type(error).__name__}: {reason}; check that the "
            f"task, the model and training.loss fit together, and that the memory is large enough"
        ) from error


def _look_up(runs: dict[int, Run], store: Store, stop: Stop) -> dict[int, Progress]:
    """The stored progress of each seed.

    A process may be killed between the checkpoints of a batch. An older checkpoint is removed only when all seeds of the
    batch have the newer one. So a seed that has both goes back to the older if another seed lacks the newer: from there
    they resume as one batch.
    """
    stored = {seed: store.find(run) for seed, run in runs.items()}
    found = {seed: each.checkpoints() for seed, each in stored.items()}
    reached = {seed: checkpoints[0].epoch if checkpoints else -1 for seed, checkpoints in found.items()}
    known = {}
    for seed, checkpoints in found.items():
        shared = [one for one in checkpoints if all(reached.get(other, one.epoch) >= one.epoch for other in one.batch)]
        checkpoint = next(iter(shared or checkpoints[-1:]), None)
        known[seed] = Progress(runs[seed], Outcome(stop.threshold), checkpoint)
        for record in stored[seed].records(checkpoint) if checkpoint else ():
            known[seed].take(record)
    return known


def _train_within_memory(batch: list[Progress], trainer: Trainer, listener: Listener) -> bool:
    """Trains the batch to its end. Returns False if the GPU's memory was too small for so many seeds."""
    try:
        trainer.train(batch)
        return True
    except torch.OutOfMemoryError as error:
        if len(batch) == 1:
            raise SpecError(
                f"one seed must fit into the GPU's memory, got: {_first_line(error)}; lower training.batch, free GPU "
                f"memory, or use --device cpu"
            ) from error
        listener.note(f"The GPU's memory is too small for {len(batch)} seeds at once; continuing with half as many.")
    except RuntimeError as error:
        if "CUDA error" not in str(error) or "device-side assert" in str(error):
            raise  # a bug, not a lost device
        raise SpecError(
            f"CUDA device lost: {_first_line(error)}; rerun the same command to resume from the last checkpoint, on the "
            f"GPU or with --device cpu"
        ) from error
    gc.collect()  # the memory of the failed attempt
    torch.cuda.empty_cache()
    return False


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _halves(batch: list[Progress]) -> list[list[Progress]]:
    """Each half as a batch, divided again where epochs differ."""
    middle = (len(batch) + 1) // 2
    return [part for half in (batch[:middle], batch[middle:]) for part in _batches(half)]


def _batches(waiting: list[Progress]) -> list[list[Progress]]:
    """Seeds that train as one batch: those at the same epoch that were one batch before, and all that start fresh."""
    batches: dict[tuple[int, tuple[int, ...]], list[Progress]] = {}
    for progress in waiting:
        previous = progress.checkpoint.batch if progress.checkpoint and progress.next_epoch else ()
        batches.setdefault((progress.next_epoch, previous), []).append(progress)
    return list(batches.values())
