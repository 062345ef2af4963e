"""How a training step is carried out: operation by operation, or on a GPU as a recorded CUDA graph, which is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from egalitarian.lab.ensemble import Ensemble
from egalitarian.lab.methods import Stepper

T = TypeVar("T")
WARM_UP = 3
"""Steps before a recording, as torch asks for."""


class Steps(Protocol):
    """A step in two halves: between them the gradients are as a transform will see them."""

    def gradients(self, chosen: Tensor) -> None:
        """Of these points, (seeds, batch), with the decay that is in the loss."""

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
    """Both halves as CUDA graphs: thousands of small operations are launched at once. The weights stay where they are."""

    def __init__(self, ensemble: Ensemble, stepper: Stepper, chosen: Tensor) -> None:
        self._eager, self._stepper = Eager(ensemble, stepper), stepper
        self._chosen = chosen.clone()
        before = [parameter.detach().clone() for parameter in ensemble.parameters.values()]
        count = stepper.count
        _warm_up(self._both)
        self._gradients = record(lambda: self._eager.gradients(self._chosen))
        self._update = record(self._eager.update)
        stepper.count = count
        with torch.no_grad():
            for parameter, value in zip(ensemble.parameters.values(), before, strict=True):
                parameter.copy_(value)

    def gradients(self, chosen: Tensor) -> None:
        if chosen.shape == self._chosen.shape:
            self._chosen.copy_(chosen)
            self._gradients.replay()
        else:  # an epoch's last, incomplete batch
            self._eager.gradients(chosen)

    def update(self) -> None:
        self._update.replay()
        self._stepper.stepped()

    def _both(self) -> None:
        self._eager.gradients(self._chosen)
        self._eager.update()


def record(what: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The operations of one call, to be repeated on the same memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        what()
    return graph


def recorded(what: Callable[[], T]) -> Callable[[], T]:
    """The same call as a graph: it gives back the same tensors every time, filled anew."""
    _warm_up(what)
    given: list[T] = []
    graph = record(lambda: given.append(what()))

    def again() -> T:
        graph.replay()
        return given[0]

    return again


def _warm_up(what: Callable[[], object]) -> None:
    """On a stream of its own that waits for all that was asked for before, and is waited for."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            what()
    torch.cuda.current_stream().wait_stream(side)


def why_eager(ensemble: Ensemble, stepper: Stepper) -> str:
    """Why a step cannot be recorded; empty where it can."""
    if ensemble.device.type != "cuda":
        return "no GPU"
    if not stepper.repeatable:
        return "the method remembers something between steps"
    if ensemble.precision == torch.float64:
        return "float64 takes an SVD"
    return ""


def steps_for(ensemble: Ensemble, stepper: Stepper) -> Steps:
    """Recorded where that can be done."""
    if why_eager(ensemble, stepper):
        return Eager(ensemble, stepper)
    return Recorded(ensemble, stepper, ensemble.choices(0)[0])
