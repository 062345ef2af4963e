"""How a training step is carried out: operation by operation, or on a GPU as a recorded CUDA graph, which is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.stepper import Stepper

T = TypeVar("T")
WARM_UP = 3
"""Steps before a recording, as torch asks for."""


class Steps(Protocol):
    """A step in two halves: between them the gradients are as a transform will see them."""

    def gradients(self, chosen: Tensor) -> None:
        """Of these points, (seeds, batch), with the decay that comes before the transforms."""

    def update(self) -> None:
        """Transforms the gradients and moves the weights."""


class Eager:
    """Operation by operation: anywhere, anything."""

    def __init__(self, ensemble: Ensemble, stepper: Stepper) -> None:
        self._ensemble, self._stepper = ensemble, stepper

    def gradients(self, chosen: Tensor) -> None:
        self._ensemble.backward(self._ensemble.take(chosen))
        self._stepper.add_decay()

    def update(self) -> None:
        self._stepper.step()


class Recorded:
    """Both halves as CUDA graphs: thousands of small operations are launched at once. The weights stay where they are.

    The first steps are carried out one by one: what a step remembers has its memory then, and learning rates have risen.
    When the last seed's transforms go off, the update is recorded anew without them.
    """

    def __init__(self, ensemble: Ensemble, stepper: Stepper) -> None:
        self._eager, self._stepper = Eager(ensemble, stepper), stepper
        self._first = max(WARM_UP, stepper.warmup - stepper.count)
        self._chosen = torch.empty(len(ensemble.seeds), ensemble.batch, dtype=torch.int64, device=ensemble.device)
        self._gradients: torch.cuda.CUDAGraph | None = None
        self._updates: dict[bool, torch.cuda.CUDAGraph] = {}

    def gradients(self, chosen: Tensor) -> None:
        if self._first:
            aside(lambda: self._eager.gradients(chosen))
        elif chosen.shape == self._chosen.shape:
            self._chosen.copy_(chosen)
            if self._gradients is None:
                self._gradients = record(lambda: self._eager.gradients(self._chosen))
            self._gradients.replay()
        else:  # an epoch's last, incomplete batch
            self._eager.gradients(chosen)

    def update(self) -> None:
        if self._first:
            aside(self._eager.update)
            self._first -= 1
            return
        stepper = self._stepper
        if stepper.resting not in self._updates:
            count = stepper.count
            self._updates[stepper.resting] = record(self._eager.update)
            stepper.count = count  # nothing has been done yet
        if not stepper.resting:
            stepper.sketches.draw(stepper.count)
        self._updates[stepper.resting].replay()
        stepper.stepped()


def record(what: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The operations of one call, to be repeated on the same memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        what()
    return graph


def recorded(what: Callable[[], T]) -> Callable[[], T]:
    """The same call as a graph: it gives back the same tensors every time, filled anew."""
    for _ in range(WARM_UP):
        aside(what)
    given: list[T] = []
    graph = record(lambda: given.append(what()))

    def again() -> T:
        graph.replay()
        return given[0]

    return again


def aside(what: Callable[[], object]) -> None:
    """On a stream of its own that waits for all that was asked for before, and is waited for."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        what()
    torch.cuda.current_stream().wait_stream(side)


def why_eager(ensemble: Ensemble, stepper: Stepper) -> str:
    """Why a step cannot be recorded; empty where it can."""
    if ensemble.device.type != "cuda":
        return "no GPU"
    if ensemble.precision == torch.float64:
        return "float64 takes an SVD"
    return stepper.waits


def steps_for(ensemble: Ensemble, stepper: Stepper) -> Steps:
    """Recorded where that can be done."""
    if why_eager(ensemble, stepper):
        return Eager(ensemble, stepper)
    return Recorded(ensemble, stepper)
