"""Batches captured once as CUDA graphs and replayed: one launch instead of a hundred.

A recording has stand-ins for gradients, at fixed addresses. A step copies the gradients there, replays the graph, which
transforms the stand-ins in place, and copies them back. So the gradients may have other addresses at every step. The graph
runs the very code that runs without it: results are equal bit for bit.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from egalitarian.apply.batch import Batch, Gradient
from egalitarian.apply.gradients import PassSettings, is_expanded, transform_batch
from egalitarian.apply.state import State, Tensors, copied_in_place, start
from egalitarian.transforms import LowRankPolar, MatrixTransform, Site, Sketches, Transform, not_declared

WARM_UP = 2
"""Steps without a graph before a capture: kernels are compiled and libraries initialised in them."""
MOST = 16
"""Sets of gradients that are recorded. A model with experts has several."""
LARGEST = 2**24
"""Elements of the stand-ins of one recording, unless a single batch has more. Recordings share the memory of stand-ins."""
ALIGNMENT = 256
"""Bytes, as torch's allocator aligns."""
WAITING = 64
"""Sets of gradients whose steps are counted. Should all be different, the count begins again."""
_streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.MemPool]] = {}
"""For captures, one per device: each stream costs a workspace of the matrix library. The pool keeps that memory."""
_one_at_a_time = threading.Lock()
"""Captures of a device share its stream, in whatever threads they are."""


@dataclass(frozen=True, eq=False)
class Recording:
    """Batches of one device in one graph."""

    graph: torch.cuda.CUDAGraph
    indices: tuple[int, ...]
    """Of the gradients, among all of the step."""
    stand_ins: tuple[Tensor, ...]
    state: State
    """The memories of its parameters, at fixed addresses; the graph updates them in place."""
    sketches: Sketches
    active: bool | Tensor
    """What the graph reads, kept alive."""

    def run(self, gradients: Sequence[Gradient], settings: PassSettings, state: State) -> Tensors:
        """Transforms these gradients in place. Returns the memories after it."""
        grads = [gradients[index][1] for index in self.indices]
        torch._foreach_copy_(self.stand_ins, grads)
        scale = settings.grad_scale
        if scale is not None:
            for stand_in in self.stand_ins:
                stand_in.div_(scale.to(stand_in.device))
        if settings.decay is not None:
            for index, stand_in in zip(self.indices, self.stand_ins, strict=True):
                entry = gradients[index][0]
                if entry.taken and (decay := settings.decay(entry)):
                    stand_in.add_(entry.parameter, alpha=decay)
        if self.state.tensors:
            self._recall(state.tensors)
        self.sketches.draw(state.step)
        self.graph.replay()
        if scale is not None:
            for stand_in in self.stand_ins:
                stand_in.mul_(scale.to(stand_in.device))
        torch._foreach_copy_(grads, self.stand_ins)
        return self.state.tensors

    def recalls(self, tensors: Tensors) -> bool:
        """Whether these memories have all that the graph reads. Those of an optimizer's state may have been cleared."""
        return all(tensors.get(name, {}).keys() >= own.keys() for name, own in self.state.tensors.items())

    def _recall(self, tensors: Tensors) -> None:
        """Copies memories that are not the graph's own: those of a loaded state, or of a step without the graph."""
        for name, own in self.state.tensors.items():
            for key, value in own.items():
                if tensors[name][key] is not value:
                    value.copy_(tensors[name][key])


Part = Recording | Batch
"""What a pass goes through: batches with a graph, and one without."""


class Captures:
    """The recordings of one chain of transforms.

    Args:
        chain: the transforms.
        enabled: False never captures.
    """

    def __init__(self, chain: Sequence[Transform], enabled: bool = True) -> None:
        self._chain = tuple(chain)
        self._enabled = enabled and torch.cuda.is_available()
        self._steps: dict[Hashable, tuple[Sequence[Batch], int]] = {}  # with the batches, so that their ids stay theirs
        self._parts: dict[Hashable, tuple[Sequence[Batch], list[Part]]] = {}
        self._pools: dict[torch.device, Any] = {}
        self._memory: dict[torch.device, Tensor] = {}
        self._reasons: dict[str, None] = {}
        self._dropped: list[tuple[object, Mapping[torch.device, object], object]] = []
        """Recordings, pools and stand-ins that wait until a capture of the user's is over, which freeing them would end."""

    def parts(
        self, batches: list[Batch], gradients: Sequence[Gradient], settings: PassSettings, state: State
    ) -> Sequence[Part]:
        """The recordings for these batches, or the batches themselves as long as there is none."""
        if not any(batch.device.type == "cuda" for batch in batches) or torch.cuda.is_current_stream_capturing():
            return batches
        if self._dropped or (not self._enabled and self._parts):  # the latter after a capture that failed
            self.release()
        if not self._enabled:
            return batches
        active = settings.active
        key = (id(batches), settings.compute, settings.half, active if isinstance(active, bool) else id(active))
        if key in self._parts:
            parts = self._parts[key][1]
            known = all(part.recalls(state.tensors) for part in parts if isinstance(part, Recording))
            return parts if known else batches
        if len(self._parts) >= MOST:
            self._reasons[f"more than {MOST} sets of gradients: the others run without a graph"] = None
            return batches
        if len(self._steps) >= WAITING:
            self._steps.clear()
        self._steps[key] = batches, self._steps.get(key, (batches, 0))[1] + 1
        if self._steps[key][1] <= WARM_UP or not self._begun(batches, state):
            return batches
        self._parts[key] = batches, self._recorded(batches, gradients, settings, state)
        return self._parts[key][1]

    def _begun(self, batches: Sequence[Batch], state: State) -> bool:
        """Whether every memory exists: one that starts inside a graph would start again at every replay."""
        entries = (entry for batch in batches if batch.filtered for entry in batch.entries)
        return all(entry.name in state.tensors or not start(entry, self._chain, entry.parameter, None) for entry in entries)

    def release(self) -> None:
        """Frees graphs and their memory. They are recorded again when needed."""
        self._dropped.append((self._parts, self._pools, self._memory))
        self._steps, self._parts, self._pools, self._memory = {}, {}, {}, {}
        devices = {device for _, pools, _ in self._dropped for device in pools}
        if devices and torch.cuda.is_current_stream_capturing():
            return
        for device in devices:
            torch.cuda.synchronize(device)  # a replay may still run
        self._dropped.clear()

    @property
    def text(self) -> str:
        """What `print(plan)` says; empty before the first capture and where there is nothing to capture."""
        parts = [part for _, each in self._parts.values() for part in each]
        count = sum(isinstance(part, Recording) for part in parts)
        texts = [f"{count} CUDA graph{'s' * (count > 1)}, {self.bytes / 2**20:.0f} MiB"] if count else []
        return "; ".join(texts + [f"without a graph: {reason}" for reason in self._reasons])

    @property
    def bytes(self) -> int:
        """Memory of the stand-ins and of the graphs."""
        parts = [part for _, each in self._parts.values() for part in each if isinstance(part, Recording)]
        storages = {each.untyped_storage() for part in parts for each in part.stand_ins}
        stand_ins = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
        pools = set(self._pools.values())
        segments: list[Any] = torch.cuda.memory_snapshot() if pools else []  # type: ignore[no-untyped-call]
        graphs = sum(int(each["total_size"]) for each in segments if tuple(each["segment_pool_id"]) in pools)
        return stand_ins + graphs

    def _recorded(
        self, batches: Sequence[Batch], gradients: Sequence[Gradient], settings: PassSettings, state: State
    ) -> list[Part]:
        parts: list[Part] = []
        open_: dict[torch.device, list[Batch]] = {}
        for batch in batches:
            reason = why_eager(batch, self._chain, settings, gradients)
            if reason:
                if batch.device.type == "cuda":
                    self._reasons[reason] = None
                parts.append(batch)
                continue
            device = gradients[batch.indices[0]][1].device
            held = open_.setdefault(device, [])
            if held and sum(_elements(each, gradients) for each in [*held, batch]) > LARGEST:
                parts += self._record(device, held, gradients, settings, state)
                held.clear()
            held.append(batch)
        for device, held in open_.items():
            parts += self._record(device, held, gradients, settings, state)
        return parts

    def _record(
        self,
        device: torch.device,
        batches: Sequence[Batch],
        gradients: Sequence[Gradient],
        settings: PassSettings,
        state: State,
    ) -> list[Part]:
        """One recording; the batches themselves, and a warning, where the capture fails."""
        if not self._enabled:
            return list(batches)
        try:
            with torch.cuda.device(device):
                return [self._captured(device, batches, gradients, settings, state)]
        except Exception as error:
            torch.cuda.synchronize(device)
            self._enabled = False
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._reasons[f"the capture failed: {reason}"] = None
            warnings.warn(
                f"EGD could not be captured as a CUDA graph ({reason}); it runs without one from now on, which is slower. "
                f"Pass capture=False to silence this",
                stacklevel=2,
            )
            return list(batches)

    def _captured(
        self,
        device: torch.device,
        batches: Sequence[Batch],
        gradients: Sequence[Gradient],
        settings: PassSettings,
        state: State,
    ) -> Recording:
        indices = tuple(index for batch in batches for index in batch.indices)
        stand_ins = self._stand_ins(device, [gradients[index][1] for index in indices])
        entries = [gradients[index][0] for index in indices]
        names = {entry.name for entry in entries}
        kept = {
            name: {key: value.clone() for key, value in state.tensors[name].items()} for name in names & {*state.tensors}
        }
        own = State(state.step, kept)
        inside = replace(settings, decay=None, grad_scale=None, observe=None)
        sketches, graph = Sketches(), torch.cuda.CUDAGraph()
        pool = self._pools.setdefault(device, torch.cuda.graph_pool_handle())

        def transform() -> None:
            position = 0
            for batch in batches:
                grads = stand_ins[position : position + len(batch.indices)]
                position += len(batch.indices)
                copied_in_place(own, State(state.step, transform_batch(batch, grads, inside, own)))

        with sketches.kept():
            if any(isinstance(link, LowRankPolar) for link in self._chain):
                transform()  # allocates the sketches outside the graph's memory
            with _capturing(graph, pool, device):
                transform()
        return Recording(graph, indices, tuple(stand_ins), own, sketches, settings.active)

    def _stand_ins(self, device: torch.device, grads: Sequence[Tensor]) -> list[Tensor]:
        """Tensors like the gradients, in one piece of memory that all recordings of the device share."""
        sizes = [_bytes(grad) for grad in grads]
        aligned = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        if device not in self._memory or self._memory[device].numel() < sum(aligned):
            self._memory[device] = torch.empty(sum(aligned), dtype=torch.uint8, device=device)
        places = torch.split_with_sizes(self._memory[device][: sum(aligned)], aligned)
        return [
            place[:size].view(grad.dtype).as_strided(grad.shape, grad.stride())
            for place, size, grad in zip(places, sizes, grads, strict=True)
        ]


def why_eager(batch: Batch, chain: Sequence[Transform], settings: PassSettings, gradients: Sequence[Gradient]) -> str:
    """Why a batch cannot be captured; empty if it can."""
    if batch.device.type != "cuda":
        return f"on device {batch.device}"
    grads = [gradients[index][1] for index in batch.indices]
    if any(is_expanded(grad) or grad.is_inference() for grad in grads):
        return "expanded gradients"
    for link in chain:
        if isinstance(link, MatrixTransform):
            site = Site("", 0, settings.compute or grads[0].dtype, settings.half)
            for rows, columns in {(target.rows, target.columns) for entry in batch.entries for target in entry.targets}:
                if reason := link.why_eager(rows, columns, grads[0].dtype, batch.device, site):
                    return reason
        elif not link.captures:
            return not_declared(link)
    return ""


def _bytes(tensor: Tensor) -> int:
    """From the first entry to the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _elements(batch: Batch, gradients: Sequence[Gradient]) -> int:
    return sum(gradients[index][1].numel() for index in batch.indices)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    """As `torch.cuda.graph`, but it neither synchronises nor empties the cache, and other threads may use the device."""
    with _one_at_a_time:
        current, stream = torch.cuda.current_stream(device), _stream(device)
        stream.wait_stream(current)
        collects = gc.isenabled()
        gc.disable()  # freeing another graph would end the capture
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    yield
                except BaseException:
                    _abandoned(graph, pool, device)
                    raise
                graph.capture_end()
        finally:
            if collects:
                gc.enable()
        current.wait_stream(stream)


def _abandoned(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Ends a capture that has failed. Torch then leaves allocator and generator as if it went on."""
    try:
        graph.capture_end()
    except RuntimeError:
        with suppress(RuntimeError):  # it may have come as far as this
            torch._C._cuda_endAllocateToPool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())


def _stream(device: torch.device) -> torch.cuda.Stream:
    """With the workspace of the matrix library, which would otherwise be part of the first graph's memory.

    That workspace has a pool of its own. Torch's compiler frees all workspaces, and graphs go on writing there.
    """
    if device not in _streams:
        stream, pool = torch.cuda.Stream(device), torch.cuda.MemPool()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool, device):
            torch.mm(*[torch.zeros(16, 16, device=device)] * 2)
        _streams[device] = stream, pool
    return _streams[device][0]
