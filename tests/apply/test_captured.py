"""When a capture is made, dropped and freed: with a graph that is imitated, on a CPU. tests/gpu has the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.apply import PassSettings, State, captured
from egalitarian.apply.batch import Batch, Batches, Gradient
from egalitarian.apply.captured import MOST, WAITING, WARM_UP, Captures, Recording
from egalitarian.transforms import Sketches

CUDA = torch.device("cuda", 0)
CHAIN = (eg.Momentum(0.5), eg.Polar())
SETTINGS = PassSettings(CHAIN)


class Imitation(Captures):
    """Captures on a machine without a GPU: a recording without a graph, or a capture that fails."""

    def __init__(self) -> None:
        super().__init__(CHAIN)
        self._enabled = True
        self.fails = False

    def _recorded(
        self, batches: Sequence[Batch], gradients: Sequence[Gradient], settings: PassSettings, state: State
    ) -> list[captured.Part]:
        self._pools[CUDA] = self._memory[CUDA] = torch.zeros(1)
        self._enabled = not self.fails
        indices = tuple(range(len(gradients)))
        graph: Any = object()
        return [Recording(graph, indices, (), State(0, dict(state.tensors)), Sketches(), True)]


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA cannot be asked."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that were waited for."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    return waited


def gradients_of(*sizes: tuple[int, int]) -> tuple[list[Batch], list[Gradient]]:
    weights = {f"w{index}": nn.Parameter(torch.randn(size)) for index, size in enumerate(sizes)}
    plan = eg.matrices(weights, include="*")
    gradients = [(entry, torch.randn(entry.shape)) for entry in plan]
    return [replace(batch, device=CUDA) for batch in Batches(CHAIN).of(gradients)], gradients


def memory_of(gradients: Sequence[Gradient]) -> State:
    return State(1, {entry.name: {"0.mean": torch.zeros(entry.shape)} for entry, _ in gradients})


def is_recorded(parts: Sequence[captured.Part]) -> bool:
    return any(isinstance(part, Recording) for part in parts)


def test_a_recording_follows_the_warm_up() -> None:
    captures = Imitation()
    batches, gradients = gradients_of((3, 4))
    found = [is_recorded(captures.parts(batches, gradients, SETTINGS, memory_of(gradients))) for _ in range(5)]
    assert found == [False] * WARM_UP + [True] * (5 - WARM_UP)


def test_without_a_memory_to_read_a_step_runs_eagerly() -> None:
    """Before the capture, since a memory must not start inside a graph; and later, if somebody clears the state."""
    captures = Imitation()
    batches, gradients = gradients_of((3, 4), (5, 6))
    full = memory_of(gradients)
    for _ in range(4):
        assert captures.parts(batches, gradients, SETTINGS, State()) is batches
    assert is_recorded(captures.parts(batches, gradients, SETTINGS, full))
    assert captures.parts(batches, gradients, SETTINGS, State(9)) is batches
    assert is_recorded(captures.parts(batches, gradients, SETTINGS, full))


def test_after_a_failed_capture_no_memory_is_held(waits: list[torch.device]) -> None:
    captures = Imitation()
    batches, gradients = gradients_of((3, 4))
    captures.fails = True
    for _ in range(WARM_UP + 1):
        captures.parts(batches, gradients, SETTINGS, memory_of(gradients))
    assert captures.parts(batches, gradients, SETTINGS, memory_of(gradients)) is batches
    assert not captures._parts
    assert not captures._pools
    assert not captures._memory
    assert waits == [CUDA]


def test_during_a_capture_of_the_users_nothing_is_freed(monkeypatch: pytest.MonkeyPatch, waits: list[torch.device]) -> None:
    """Freeing a graph or waiting for the device would end it."""
    captures = Imitation()
    batches, gradients = gradients_of((3, 4))
    for _ in range(WARM_UP + 1):
        captures.parts(batches, gradients, SETTINGS, memory_of(gradients))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        captures.release()
        assert captures.parts(batches, gradients, SETTINGS, memory_of(gradients)) is batches
        assert captures._dropped
        assert not waits
    assert captures.parts(batches, gradients, SETTINGS, memory_of(gradients)) is batches
    assert not captures._dropped
    assert waits == [CUDA]


def test_sets_of_gradients_that_never_return_cost_a_bounded_memory() -> None:
    captures = Imitation()
    for _ in range(3 * WAITING):
        batches, gradients = gradients_of((3, 4))
        assert captures.parts(batches, gradients, SETTINGS, memory_of(gradients)) is batches
    assert len(captures._steps) <= WAITING
    sets = [gradients_of((3, 4)) for _ in range(MOST + 3)]
    for _ in range(WARM_UP + 1):
        for batches, gradients in sets:
            captures.parts(batches, gradients, SETTINGS, memory_of(gradients))
    assert len(captures._parts) == MOST


# -- in a graph of the user's ------------------------------------------------------------------------------------------


def hosts() -> dict[str, Callable[[nn.Module], Any]]:
    def attached(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return optimizer, eg.attach(optimizer, model, CHAIN)

    return {"attach": attached, "EGD": lambda model: (eg.EGD(eg.matrices(model), lr=0.1, transform=CHAIN), None)}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def means(host: Any) -> list[Tensor]:
    optimizer, egd = host
    if egd is not None:
        return [value for kept in egd._state.tensors.values() for value in kept.values()]
    return [kept["egd.0.mean"] for kept in optimizer.state.values() if "egd.0.mean" in kept]


def step(model: nn.Module, host: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    host[0].step()


@pytest.mark.parametrize("name", hosts())
def test_memories_stay_where_a_users_graph_reads_them(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In other tensors, every replay would begin with the same memory."""
    ends = []
    for capturing in (False, True):
        model = network()
        host = hosts()[name](model)
        step(model, host)
        before = [value.data_ptr() for value in means(host)]
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda capturing=capturing: capturing)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
            step(model, host)
        assert before
        assert ([value.data_ptr() for value in means(host)] == before) is capturing
        ends.append([*(parameter.detach() for parameter in model.parameters()), *means(host)])
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def test_a_memory_that_starts_inside_a_users_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    host = hosts()["EGD"](model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="must exist before a CUDA graph is captured, got none; make one step before it"):
        step(model, host)
