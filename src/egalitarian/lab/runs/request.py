"""Requests: what to train, as values. The command line builds them; this process or an executor carries them out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from egalitarian.lab.config import Experiment, Run, SpecError, load
from egalitarian.lab.runs.evidence import Evidence
from egalitarian.lab.runs.files import StoreError
from egalitarian.lab.runs.outcome import Listener, Outcome, Progress, Stop
from egalitarian.lab.runs.store import Store
from egalitarian.lab.runs.sweeps import Watch, read_progress, sweep, try_step

FOLDERS = ("runs", "data", "have")


@dataclass(frozen=True)
class Request:
    """Train some seeds of one method of one experiment."""

    kind: ClassVar[str] = "train"

    experiment: str
    """A name, or the path of a TOML file, as the user gave it."""
    method: str
    seeds: tuple[int, ...]
    device: str
    threads: int
    runs: Path
    """Folder of the stored runs."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Changed settings, by dotted key."""
    epochs: int | None = None
    """Instead of the method's budget."""
    past: int | None = None
    """Epochs after passing the threshold, instead of the experiment's."""
    final: bool = False
    """Whether the first seed trains through its whole budget, too."""
    data: Path | None = None
    """Folder of the data sets; None is the default."""
    have: Path | None = None
    """Folder of evidence: seeds that are complete in it are not trained."""
    preloaded: InitVar[Experiment | None] = None
    """The experiment, where the caller has loaded it already; it is not sent to a worker."""

    def __post_init__(self, preloaded: Experiment | None) -> None:
        if preloaded is not None:
            self.__dict__["loaded"] = preloaded
        if not self.seeds or min(self.seeds) < 0:
            raise SpecError(f"seeds must be at least one number from 0, got {list(self.seeds)}; for example [0, 1]")
        for what, least in (("epochs", 1), ("past", 0)):
            value = getattr(self, what)
            if value is not None and value < least:
                raise SpecError(f"{what} must be at least {least}, got {value}; leave it out for the experiment's own")

    @property
    def name(self) -> str:
        return f"{self.loaded.name} {self.method}"

    @cached_property
    def loaded(self) -> Experiment:
        """The experiment with its changed settings."""
        return load(self.experiment, methods=[self.method], values=self.values)

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        folders = {key: None if values[key] is None else str(values[key]) for key in FOLDERS}
        return {**values, **folders, "seeds": list(self.seeds), "values": dict(self.values)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        folders = {key: None if values[key] is None else Path(values[key]) for key in FOLDERS}
        return cls(**{**values, **folders, "seeds": tuple(values["seeds"])})

    def carry_out(self, listener: Listener) -> int:
        """Trains, as the only work of this process, and returns the exit status."""
        configure_process(self.threads, self.data)
        train_requests([self], listener)
        return 0

    def try_step(self) -> None:
        """Raises SpecError if the settings cannot work."""
        try_step(self.loaded, self.method, self.seeds[0])

    def is_stored(self) -> bool:
        """Whether there is nothing left to train; StoreError if a stored run is damaged."""
        return all(progress.done(stop) for seeds, stop in self.stages() for progress in _read(self, seeds, stop))

    def complete(self, seeds: Sequence[int], stop: Stop) -> dict[int, Progress]:
        """The progress of those seeds that are complete in the evidence."""
        done: dict[int, Progress] = {}
        if self.have is None:
            return done
        for seed in seeds:
            run = Run(self.loaded, self.method, seed, named_device(self.device).type)
            packed = Evidence(self.have).find(run)
            progress = Progress(run, Outcome(stop.threshold), evidence=self.have)
            for record in () if packed is None else packed.epochs():
                progress.take(record)
            if progress.done(stop):
                done[seed] = progress
        return done

    def stages(self) -> list[tuple[Sequence[int], Stop]]:
        """First every seed until its stop; then, if `final`, the first seed through its budget."""
        experiment, method = self.loaded, self.method
        stages: list[tuple[Sequence[int], Stop]] = [(self.seeds, Stop.of(experiment, method, self.epochs, self.past))]
        if self.final:
            budget = experiment.method(method).epochs if self.epochs is None else self.epochs
            stages.append((self.seeds[:1], Stop.of(experiment, method, budget, past=budget)))
        return stages


def train_requests(requests: Sequence[Request], listener: Listener, watch: Watch | None = None) -> list[list[Progress]]:
    """Trains in this process, one after another, what is not stored. Returns the progress of every request's seeds."""

    def train(request: Request, seeds: Sequence[int], stop: Stop) -> list[Progress]:
        device, store, done = choose_device(request.device), Store(request.runs), request.complete(seeds, stop)
        if done:
            listener.stored(list(done.values()), stop)
        if rest := [seed for seed in seeds if seed not in done]:
            trained = sweep(request.loaded, request.method, rest, store, device, stop=stop, listener=listener, watch=watch)
            done |= dict(zip(rest, trained, strict=True))
        return [done[seed] for seed in seeds]

    return _by_stage(requests, train)


def stored_progress(requests: Sequence[Request]) -> list[list[Progress]]:
    """The stored progress of every request's seeds, as `train_requests` returns it. Trains nothing."""
    return _by_stage(requests, _read)


def _read(request: Request, seeds: Sequence[int], stop: Stop) -> list[Progress]:
    store, device, done = Store(request.runs), named_device(request.device), request.complete(seeds, stop)
    rest = [seed for seed in seeds if seed not in done]
    stored = read_progress(request.loaded, request.method, rest, store, device, stop=stop)
    done |= dict(zip(rest, stored, strict=True))
    return [done[seed] for seed in seeds]


def _by_stage(
    requests: Sequence[Request], take: Callable[[Request, Sequence[int], Stop], list[Progress]]
) -> list[list[Progress]]:
    """Takes the first stages of all requests before the second stages: a full-length run takes longest."""
    done = [take(request, *request.stages()[0]) for request in requests]
    for request, known in zip(requests, done, strict=True):
        for stage in request.stages()[1:]:
            known[:1] = take(request, *stage)
    return done


def unfinished(requests: Sequence[Request], *, keep_damaged: bool = False) -> list[Request]:
    """The requests with something left to train. A damaged run is an error; with `keep_damaged` its worker reports it."""

    def is_stored(request: Request) -> bool:
        try:
            return request.is_stored()
        except StoreError:
            if keep_damaged:
                return False
            raise

    return [request for request in requests if not is_stored(request)]


def choose_device(text: str) -> torch.device:
    """The device of this name, which this machine must have. `auto` is the GPU if there is one."""
    chosen = named_device(text)
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        there = f"{torch.cuda.device_count()} GPU(s)" if torch.cuda.is_available() else "no GPU"
        raise SpecError(f"--device must be one that torch finds, got {text!r} and {there}; use --device cpu or auto")
    return chosen


def named_device(text: str) -> torch.device:
    """The device of this name, which another machine may have. `auto` is what this machine has."""
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(text)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise SpecError(f"--device must be auto, cpu, cuda or cuda:N, got {text!r}; auto chooses for you")
    return chosen


def configure_process(threads: int, data: Path | None) -> None:
    """Sets the number of CPU threads and the folder of the data sets, for this process and those that it starts.

    No folder leaves the one that is set. One thread is usually best: small matrix products on busy cores are many times
    slower when threads wait for each other.
    """
    if threads < 1:
        raise SpecError(f"threads must be at least 1, got {threads}; one is usually best")
    torch.set_num_threads(threads)
    if data is not None:
        os.environ["EGALITARIAN_DATA"] = str(data.expanduser())
