"""The random matrices of randomized EGD: by seed, name and step, and in memory of their own for a captured CUDA graph."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from egalitarian.kernels import gaussian


class SketchKey(NamedTuple):
    """Which sketch: the transform's seed, the matrix's name, whether it stays the same at every step, and its shape."""

    seed: int
    name: str
    fixed: bool
    rows: int
    columns: int

    def seed_at(self, step: int) -> int:
        return sketch_seed(self.seed, self.name, None if self.fixed else step)


class Sketches:
    """The sketches of `LowRankPolar` in a captured CUDA graph, refilled before every replay.

    A graph replays operations, but does not draw random numbers. Make one step, and then capture one, under
    `with sketches.kept():`. Call `sketches.draw(step)` before each replay, with the number of that step, counted from 0.

    >>> from egalitarian import LowRankPolar, attach
    >>> layer, sketches = torch.nn.Linear(6, 4), Sketches()
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> egd = attach(optimizer, layer, LowRankPolar(2))
    >>> layer(torch.ones(8, 6)).sum().backward()
    >>> with sketches.kept():  # the step before the capture; then capture one
    ...     optimizer.step()
    >>> sketches.draw(1)  # before each replay
    """

    def __init__(self) -> None:
        self._buffers: dict[SketchKey, Tensor] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager for a step before the capture and for the capture: they read their sketches from this object."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def _buffer(self, key: SketchKey, device: torch.device) -> Tensor:
        """The memory of this sketch. It must not be memory of the graph, which may use that for something else first."""
        if key not in self._buffers:
            if is_capturing(device):
                raise RuntimeError(
                    f"a captured sketch must be known before the capture, got that of {key.name!r}; make one step under "
                    f"sketches.kept() first"
                )
            self._buffers[key] = torch.empty(key.rows, key.columns, dtype=torch.float64, device=device)
        return self._buffers[key]

    def draw(self, step: int) -> None:
        """Fills every sketch with the values for this step, without synchronising."""
        for key, buffer in self._buffers.items():
            buffer.copy_(gaussian(key.rows, key.columns, key.seed_at(step), buffer.device), non_blocking=True)


_CURRENT: ContextVar[Sketches | None] = ContextVar("sketches", default=None)


def sketch_for(key: SketchKey, step: int, device: torch.device) -> Tensor | None:
    """The sketch of this step. During capture: the memory that `Sketches.draw` fills, or None without `Sketches.kept`."""
    current = _CURRENT.get()
    if is_capturing(device):
        return None if current is None else current._buffer(key, device)
    drawn = gaussian(key.rows, key.columns, key.seed_at(step), device)
    return drawn if current is None else current._buffer(key, device).copy_(drawn)


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def sketch_seed(seed: int, name: str, step: int | None) -> int:
    """A seed for (seed, name, step), the same on every device and rank."""
    text = f"{seed}/{name}" if step is None else f"{seed}/{name}/{step}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
