"""Experiment x method x seeds to stored runs: resumes unfinished seeds, skips stored ones, trains in batches of seeds."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence

import torch

from egalitarian.lab.config import Experiment, Run, SpecError
from egalitarian.lab.runs.outcome import Outcome
from egalitarian.lab.runs.progress import Interrupted, Listener, Progress, Silent, Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.runs.trainer import Trainer
from egalitarian.lab.training import Ensemble, Stepper


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
    """Trains the seeds of one method until each is done; returns the progress of each, in the order given."""
    stop = stop or Stop.of(experiment, method)
    listener = listener or Silent()
    runs = {seed: Run(experiment, method, seed) for seed in seeds}
    known = _look_up(runs, store, stop)
    waiting = [run for seed, run in runs.items() if not known[seed].done(stop)]
    if waiting:
        try_step(experiment, method, waiting[0].seed)
    with contextlib.ExitStack() as stack:
        writers = {run.seed: stack.enter_context(store.open(run)) for run in waiting}
        if writers:
            known = _look_up(runs, store, stop)  # again, now that no other process can change them
        if done := [progress for progress in known.values() if progress.done(stop)]:
            listener.stored(done, stop)
        trainer = Trainer(writers, stop, device, listener)
        try:
            batches = _batches([known[seed] for seed in writers if not known[seed].done(stop)])
            while batches:
                batch = batches.pop(0)
                if not _fits(batch, trainer, listener):
                    again = _look_up({each.run.seed: each.run for each in batch}, store, stop)
                    known |= again
                    batches = _halves([each for each in again.values() if not each.done(stop)]) + batches
        except Interrupted as interrupted:
            interrupted.runs = [known[seed] for seed in seeds]
            raise
    return [known[seed] for seed in seeds]


def all_stored(experiment: Experiment, method: str, seeds: Sequence[int], stop: Stop, store: Store) -> bool:
    """Whether a sweep would have nothing to train."""
    runs = {seed: Run(experiment, method, seed) for seed in seeds}
    return all(progress.done(stop) for progress in _look_up(runs, store, stop).values())


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


def _fits(batch: list[Progress], trainer: Trainer, listener: Listener) -> bool:
    """Trains the batch to its end; False if the GPU's memory is too small for so many seeds."""
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
    """The seeds that train together: those of one batch before that are at the same epoch, and all that start."""
    batches: dict[tuple[int, tuple[int, ...]], list[Progress]] = {}
    for progress in waiting:
        past = progress.checkpoint.batch if progress.checkpoint and progress.next_epoch else ()
        batches.setdefault((progress.next_epoch, past), []).append(progress)
    return list(batches.values())
