"""The sketches of randomized transforms: drawn on the CPU from a seed, or read from fixed memory in a CUDA graph."""

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

    A graph replays operations, but does not draw random numbers. Capture the step under `with sketches.kept():`.
    Then call `sketches.draw(step)` before each replay, with the number of that step, counted from 0.
    """

    def __init__(self) -> None:
        self._buffers: dict[SketchKey, Tensor] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager for the capture: a step captured inside reads its sketches from this object."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def _buffer(self, key: SketchKey, device: torch.device) -> Tensor:
        """The memory of this sketch; not filled at first."""
        if key not in self._buffers:
            self._buffers[key] = torch.empty(key.rows, key.columns, dtype=torch.float64, device=device)
        return self._buffers[key]

    def draw(self, step: int) -> None:
        """Fills every sketch with the values for this step, without synchronising."""
        for key, buffer in self._buffers.items():
            buffer.copy_(gaussian(key.rows, key.columns, key.seed_at(step), buffer.device), non_blocking=True)


_CURRENT: ContextVar[Sketches | None] = ContextVar("sketches", default=None)


def sketch_for(key: SketchKey, step: int, device: torch.device) -> Tensor | None:
    """The sketch of this step. During capture: the memory that `Sketches.draw` fills, or None without `Sketches.kept`."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        current = _CURRENT.get()
        return None if current is None else current._buffer(key, device)
    return gaussian(key.rows, key.columns, key.seed_at(step), device)


def sketch_seed(seed: int, name: str, step: int | None) -> int:
    """A seed for (seed, name, step), the same on every device and rank."""
    text = f"{seed}/{name}" if step is None else f"{seed}/{name}/{step}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
