"""How a training step runs: operation by operation, or on a GPU as a captured CUDA graph with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.stepper import Stepper

T = TypeVar("T")
WARM_UP = 3
"""Eager steps before a capture, as torch recommends."""


class Steps(Protocol):
    """A training step in two halves: between them, the gradients are what a transform gets."""

    def gradients(self, chosen: Tensor) -> None:
        """Of the loss on these points, (seeds, batch), with the decay that comes before the transforms."""

    def update(self) -> None:
        """Transforms the gradients and changes the weights."""


MakeSteps = Callable[[Ensemble, Stepper], Steps]


class Eager:
    """Operation by operation, on any device."""

    def __init__(self, ensemble: Ensemble, stepper: Stepper) -> None:
        self._ensemble, self._stepper = ensemble, stepper

    def gradients(self, chosen: Tensor) -> None:
        self._ensemble.backward(self._ensemble.take(chosen))
        self._stepper.add_decay()

    def update(self) -> None:
        self._stepper.step()


class Captured:
    """Both halves as CUDA graphs: one launch for thousands of small operations, on the weights' own memory.

    The first steps are eager, until optimizer state is allocated and the learning rates have risen. The update is captured
    a second time, without transforms, when the last seed's transforms are switched off.
    """

    def __init__(self, ensemble: Ensemble, stepper: Stepper) -> None:
        self._eager, self._stepper = Eager(ensemble, stepper), stepper
        self._left = max(WARM_UP, stepper.warmup - stepper.count)
        """Eager steps to go."""
        self._chosen = torch.empty(len(ensemble.seeds), ensemble.batch, dtype=torch.int64, device=ensemble.device)
        self._gradients: torch.cuda.CUDAGraph | None = None
        self._updates: dict[bool, torch.cuda.CUDAGraph] = {}

    def gradients(self, chosen: Tensor) -> None:
        if self._left:
            on_side_stream(lambda: self._eager.gradients(chosen))
        elif chosen.shape == self._chosen.shape:
            self._chosen.copy_(chosen)
            if self._gradients is None:
                self._gradients = capture(lambda: self._eager.gradients(self._chosen))
            self._gradients.replay()
        else:  # an epoch's last, incomplete batch
            self._eager.gradients(chosen)

    def update(self) -> None:
        if self._left:
            on_side_stream(self._eager.update)
            self._left -= 1
            return
        stepper = self._stepper
        if stepper.all_off not in self._updates:
            count = stepper.count
            self._updates[stepper.all_off] = capture(self._eager.update)
            stepper.count = count  # a capture runs nothing
        if not stepper.all_off:
            stepper.sketches.draw(stepper.count)
        self._updates[stepper.all_off].replay()
        stepper.count += 1


def capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The operations of one call as a graph, to be replayed on the same memory."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def captured(call: Callable[[], T]) -> Callable[[], T]:
    """The same call as a graph. It returns the same tensors every time, with new values."""
    for _ in range(WARM_UP):
        on_side_stream(call)
    results: list[T] = []
    graph = capture(lambda: results.append(call()))

    def replay() -> T:
        graph.replay()
        return results[0]

    return replay


def on_side_stream(call: Callable[[], object]) -> None:
    """Runs it on a stream of its own that waits for the current one, which waits for it in turn."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)


def why_eager(ensemble: Ensemble, stepper: Stepper) -> str:
    """Why a step cannot be captured; empty if it can."""
    if ensemble.device.type != "cuda":
        return "no GPU"
    if ensemble.precision == torch.float64:
        return "float64 takes an SVD"
    return stepper.synchronises


def steps_for(ensemble: Ensemble, stepper: Stepper) -> Steps:
    """Captured if possible."""
    return Eager(ensemble, stepper) if why_eager(ensemble, stepper) else Captured(ensemble, stepper)
