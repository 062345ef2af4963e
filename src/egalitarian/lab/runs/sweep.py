"""Experiment x method x seeds to stored runs: goes on with what is half done, skips what is done, one company at a time."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.runs.environment import environment
from egalitarian.lab.training.stepper import Stepper, settled
from egalitarian.lab.runs.progress import Interrupted, Listener, Progress, Silent, Stop
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment, Polar, Run
from egalitarian.lab.runs.store import Store, Writer
from egalitarian.lab.training.loop import Epoch, train

SAVE_EVERY = 10.0
"""Seconds between checkpoints."""
STAY = {"cuda": 0.5}
"""The share of a company, by device, that may be done before the others go on without it: a graph recorded anew costs more
than some seeds in vain. Elsewhere the first that is done leaves."""


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
    runs = {seed: Run(experiment, method, seed) for seed in seeds}
    known = _look_up(runs, store, stop)
    waiting = [run for seed, run in runs.items() if not known[seed].done(stop)]
    if waiting:
        rehearse(experiment, method, waiting[0].seed)
    with contextlib.ExitStack() as stack:
        writers = {run.seed: stack.enter_context(store.open(run)) for run in waiting}
        if writers:
            known = _look_up(runs, store, stop)  # once more, now that no other process can change them
        if done := [progress for progress in known.values() if progress.done(stop)]:
            listener.stored(done, stop)
        try:
            companies = _companies([known[seed] for seed in writers if not known[seed].done(stop)])
            while companies:
                company = companies.pop(0)
                if not _fits(company, writers, stop, device, listener):
                    again = _look_up({each.run.seed: each.run for each in company}, store, stop)
                    known |= again
                    companies = _halves([each for each in again.values() if not each.done(stop)]) + companies
        except Interrupted as interrupted:
            interrupted.runs = [known[seed] for seed in seeds]
            raise
    return [known[seed] for seed in seeds]


def all_stored(experiment: Experiment, method: str, seeds: Sequence[int], stop: Stop, store: Store) -> bool:
    """Whether a sweep would find nothing to train."""
    runs = {seed: Run(experiment, method, seed) for seed in seeds}
    return all(progress.done(stop) for progress in _look_up(runs, store, stop).values())


def rehearse(experiment: Experiment, method: str, seed: int) -> None:
    """One step of one seed, kept nowhere: what cannot work is told before anything is made or trained for hours."""
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
    """What the store knows of each seed.

    A kill may come between the checkpoints of a company. An older one is removed only when all members have the newer, so
    whoever has both beside a member without the newer goes back to the older: to where they all can go on together.
    """
    stored = {seed: store.find(run) for seed, run in runs.items()}
    found = {seed: each.checkpoints() for seed, each in stored.items()}
    reached = {seed: checkpoints[0].epoch if checkpoints else -1 for seed, checkpoints in found.items()}
    known = {}
    for seed, checkpoints in found.items():
        shared = [one for one in checkpoints if all(reached.get(other, one.epoch) >= one.epoch for other in one.company)]
        checkpoint = next(iter(shared or checkpoints[-1:]), None)
        known[seed] = Progress(runs[seed], checkpoint)
        for record in stored[seed].records(checkpoint) if checkpoint else ():
            known[seed].take(record, stop.threshold)
    return known


def _fits(
    company: list[Progress], writers: dict[int, Writer], stop: Stop, device: torch.device, listener: Listener
) -> bool:
    """Trains the company to its end; False where the GPU's memory is too small for so many at once."""
    try:
        _train_company(company, writers, stop, device, listener)
        return True
    except torch.OutOfMemoryError as error:
        if len(company) == 1:
            raise SpecError(
                f"one seed must fit into the GPU's memory, got: {str(error).splitlines()[0]}; lower training.batch, free "
                f"GPU memory, or use --device cpu"
            ) from error
        listener.note(f"The GPU's memory is too small for {len(company)} seeds at once; continuing with half as many.")
    except RuntimeError as error:
        if "CUDA error" not in str(error) or "device-side assert" in str(error):
            raise  # the code's fault, not the GPU's
        raise SpecError(
            f"the GPU must work until the end, got: {str(error).splitlines()[0]}; run the same command again to resume "
            f"from the last checkpoint, on the GPU or with --device cpu"
        ) from error
    gc.collect()  # what the failed attempt held
    torch.cuda.empty_cache()
    return False


def _halves(company: list[Progress]) -> list[list[Progress]]:
    """Each half by itself; and those of a half that are at the same epoch."""
    middle = (len(company) + 1) // 2
    return [part for half in (company[:middle], company[middle:]) for part in _companies(half)]


def _companies(waiting: list[Progress]) -> list[list[Progress]]:
    """Which seeds go on together: those that were together and are at the same epoch; and all that are to begin."""
    companies: dict[tuple[int, tuple[int, ...]], list[Progress]] = {}
    for progress in waiting:
        past = progress.checkpoint.company if progress.checkpoint and progress.next_epoch else ()
        companies.setdefault((progress.next_epoch, past), []).append(progress)
    return list(companies.values())


def _train_company(
    company: list[Progress], writers: dict[int, Writer], stop: Stop, device: torch.device, listener: Listener
) -> None:
    """All seeds from one epoch on; whoever is done leaves, and the others go on as a smaller company."""
    about = {**environment(device), **_arithmetic(company[0].run, device)}
    about |= {"epoch": company[0].next_epoch, "seeds": len(company)}
    states = _load(company)
    for progress in company:
        writer, checkpoint = writers[progress.run.seed], progress.checkpoint
        if checkpoint is not None:
            writer.keep(checkpoint.epoch)  # first: a newer one would vouch for records that are cut off now
        writer.begin(checkpoint, about)
    with _interrupts() as interrupted:
        listener.begins(company, stop)  # whoever hears of it may stop it, and finds a checkpoint
        while company:
            states = _until_enough_are_done(company, writers, states, stop, device, listener, interrupted)
            left = [place for place, progress in enumerate(company) if not progress.done(stop)]
            listener.ends([progress for progress in company if progress.done(stop)])
            company, states = [company[place] for place in left], [states[place] for place in left]
            if interrupted.is_set():
                raise Interrupted


def _arithmetic(run: Run, device: torch.device) -> dict[str, str]:
    """What 'auto' has become."""
    chain = settled(run.method.transform, device, getattr(torch, run.experiment.training.precision))
    modes = [link.precision for link in chain if isinstance(link, Polar)]
    return {"polar": ", ".join(dict.fromkeys(modes))} if modes else {}


def _load(company: list[Progress]) -> list[dict[str, Tensor]] | None:
    """The seeds' states; None: they begin."""
    checkpoints = [progress.checkpoint for progress in company if progress.checkpoint is not None]
    if len(checkpoints) < len(company) or checkpoints[0].epoch == 0:
        return None
    return [checkpoint.tensors() for checkpoint in checkpoints]


def _until_enough_are_done(
    company: list[Progress],
    writers: dict[int, Writer],
    states: list[dict[str, Tensor]] | None,
    stop: Stop,
    device: torch.device,
    listener: Listener,
    interrupted: threading.Event,
) -> list[dict[str, Tensor]]:
    """The states of all seeds once some are done, or somebody wants to stop; each saved as it was when it was done."""
    first = company[0].run
    ensemble = Ensemble(first.experiment, [progress.run.seed for progress in company], device)
    stepper = Stepper(first.method, ensemble.parameters, first.experiment.training.warmup)
    own = [writers[progress.run.seed] for progress in company]
    everybody = range(len(company))
    if states is None:
        states = _save(ensemble, stepper, own, everybody, 0)
    else:
        _restore(ensemble, stepper, states)
    saved = time.monotonic()
    for epoch in train(ensemble, stepper, company[0].next_epoch, _spectra(first.experiment, device)):
        at_work = [place for place in everybody if not company[place].done(stop)]
        _keep(epoch, company, own, at_work, stop, device)
        listener.epoch([company[place] for place in at_work], [epoch.records[place] for place in at_work])
        done = [place for place in everybody if company[place].done(stop)]
        over = interrupted.is_set() or len(done) > STAY.get(device.type, 0.0) * len(company)
        if over or time.monotonic() - saved > SAVE_EVERY:
            states = _save(ensemble, stepper, own, at_work, epoch.number + 1)
            saved = time.monotonic()
        elif newly := [place for place in at_work if place in done]:
            _save(ensemble, stepper, own, newly, epoch.number + 1)
        if over:
            break
    return states


def _spectra(experiment: Experiment, device: torch.device) -> str:
    asked = experiment.measure.spectra
    return asked if asked != "auto" else "snapshots" if device.type == "cuda" else "epochs"


def _keep(
    epoch: Epoch, company: list[Progress], own: list[Writer], at_work: Sequence[int], stop: Stop, device: torch.device
) -> None:
    timing = {
        "epoch": epoch.number,
        "training": epoch.training_seconds,
        "measuring": epoch.measuring_seconds,
        "seeds": len(company),
        "device": device.type,
    }
    for place in at_work:
        own[place].append(epoch.records[place], timing)
        for record in epoch.records[place]:
            company[place].take(record, stop.threshold)


def _save(
    ensemble: Ensemble, stepper: Stepper, own: list[Writer], places: Sequence[int], epoch: int
) -> list[dict[str, Tensor]]:
    """First the new checkpoint of each of these seeds, then, when all are safe, away with the old. Returns all states."""
    states = [
        {**{f"parameters.{name}": tensor.detach()[place] for name, tensor in ensemble.parameters.items()}, **state}
        for place, state in enumerate(stepper.states())
    ]
    for place in places:
        own[place].save(epoch, states[place], ensemble.seeds)
    for place in places:
        own[place].keep(epoch)
    return states


def _restore(ensemble: Ensemble, stepper: Stepper, states: Sequence[dict[str, Tensor]]) -> None:
    with torch.no_grad():
        for name, parameter in ensemble.parameters.items():
            for own, state in zip(parameter, states, strict=True):
                own.copy_(state[f"parameters.{name}"])
    stepper.load([{key: value.to(ensemble.device) for key, value in state.items()} for state in states])


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
