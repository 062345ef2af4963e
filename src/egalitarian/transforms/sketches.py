"""The sketches of randomized transforms: drawn on the CPU from a seed; and their memory in a CUDA graph."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Which sketch: its seed's origin, the matrix it is for, whether it stays the same at every step, and its shape."""

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
        self._pages: dict[Place, Tensor] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager for the capture: a step captured inside reads its sketches from this object."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def _page(self, place: Place, device: torch.device) -> Tensor:
        """Where this sketch is; empty at first."""
        if place not in self._pages:
            self._pages[place] = torch.empty(place.rows, place.columns, dtype=torch.float64, device=device)
        return self._pages[place]

    def draw(self, step: int) -> None:
        """Fills every sketch with the values for this step, without synchronising."""
        for place, page in self._pages.items():
            page.copy_(gaussian(place.rows, place.columns, place.seed_at(step), page.device), non_blocking=True)


_CURRENT: ContextVar[Sketches | None] = ContextVar("sketches", default=None)


def sketch_for(place: Place, step: int, device: torch.device) -> Tensor | None:
    """The sketch of this step. During capture: the memory that `Sketches.draw` fills, or None without `Sketches.kept`."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        current = _CURRENT.get()
        return None if current is None else current._page(place, device)
    return gaussian(place.rows, place.columns, place.seed_at(step), device)


def gaussian(rows: int, columns: int, seed: int, device: torch.device) -> Tensor:
    """The same on every device; there without synchronising."""
    generator = torch.Generator("cpu").manual_seed(seed)
    sketch = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return sketch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else sketch.to(device)


def sketch_seed(seed: int, name: str, step: int | None) -> int:
    """A seed that is the same on every device, rank and day, and different for every (seed, name, step)."""
    text = f"{seed}/{name}" if step is None else f"{seed}/{name}/{step}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
